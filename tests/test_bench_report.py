import json
from pathlib import Path

import pytest

from benchmarks import timing
from benchmarks.report import figure_row, ratio_row, ratio_table, table, write
from benchmarks.timing import measure

pytestmark = pytest.mark.engineless


def test_numbers_stand_to_the_right() -> None:
    assert table(("name", "n"), [("a", "1"), ("bc", "22")], (1,)) == "name   n\na      1\nbc    22"


def test_a_row_has_what_programs_look_for() -> None:
    row = figure_row("case", "engine", "ns/packet", [3.0, 1.0, 2.0], more=7)
    assert row == {
        "case": "case",
        "engine": "engine",
        "unit": "ns/packet",
        "min": 1.0,
        "median": 2.0,
        "runs": 3,
        "more": 7,
    }


def test_a_ratio_says_to_what() -> None:
    row = ratio_row("case", "engine", [0.5], "other", 1.3)
    assert (row["unit"], row["against"], row["target"], row["median"]) == (
        "ratio",
        "other",
        1.3,
        0.5,
    )


@pytest.mark.parametrize(("median", "word"), [(1.3, "met"), (1.31, "missed")])
def test_the_median_meets_a_target_or_misses_it(median: float, word: str) -> None:
    row = ratio_row("case", "engine", [0.1, median, 9.0], "other", 1.3)
    line = ratio_table("held to", [row]).splitlines()[1]
    assert line.split() == ["case", f"{median:.3f}", "0.100", "1.3", word, "other"]


def test_a_time_with_a_target_names_its_unit() -> None:
    row = figure_row("case", "engine", "ns/packet", [99.96]) | {"target": 180}
    assert ratio_table("held to", [row]).splitlines()[1].split() == [
        "case",
        "100.0",
        "100.0",
        "180",
        "met",
        "ns/packet",
    ]


def test_rows_are_written_where_no_folder_was(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "rows.json", [{"case": "x"}])
    assert json.loads((tmp_path / "a" / "b" / "rows.json").read_text()) == [{"case": "x"}]


class Clock:
    """Time that passes only in the work: ``cost`` a piece, and ``call`` for each call of it."""

    def __init__(self, cost: int, call: int) -> None:
        self.now = 0
        self.cost, self.call = cost, call
        self.counts: list[int] = []

    def process_time_ns(self) -> int:
        return self.now

    def loop(self, count: int) -> None:
        self.counts.append(count)
        self.now += self.call + count * self.cost


@pytest.mark.parametrize("cost", [1, 250, 10**9])
def test_a_piece_of_work_is_timed_by_many(cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(cost, 0)
    monkeypatch.setattr(timing, "time", clock)
    assert measure(clock.loop, 0.001) == cost
    assert clock.counts[-1] == max(1, 10**6 // cost)


def test_work_begins_with_what_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100, 50)
    monkeypatch.setattr(timing, "time", clock)
    assert measure(clock.loop, 0.001, first=77) == pytest.approx(100, rel=0.01)
    assert clock.counts[0] == 77
