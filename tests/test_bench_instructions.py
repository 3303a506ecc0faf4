import json
from dataclasses import replace

import pytest

from benchmarks import instructions
from benchmarks.building import Missing
from benchmarks.instructions import CASES, RECORDED, Counts, compare, with_record

pytestmark = pytest.mark.engineless

HERE = {"compiler": "gcc 12", "python": "cpython 3.11"}
THERE = {"compiler": "gcc 13", "python": "cpython 3.11"}
CASE, LONE = "1 flow, trusted", "batch of one"
BEFORE = Counts(HERE, 800.0, {CASE: 100.0, LONE: 1000.0})


def found(case: float, lone: float = 1000.0, **changes: object) -> Counts:
    return replace(BEFORE, cases={CASE: case, LONE: lone}, **changes)  # type: ignore[arg-type]


def risen(counts: Counts, *records: Counts) -> list[str]:
    return [each.case for each in compare(counts, records or [BEFORE])[1] if each.risen]


@pytest.mark.parametrize(("count", "cases"), [(50, []), (103, []), (103.1, [CASE]), (300, [CASE])])
def test_three_percent_more_are_too_many(count: float, cases: list[str]) -> None:
    assert compare(found(count), [BEFORE])[0] == []
    assert risen(found(count)) == cases


@pytest.mark.parametrize(("count", "cases"), [(119.9, []), (121, [CASE])])
def test_another_compiler_widens_the_bound(count: float, cases: list[str]) -> None:
    counts = found(count, made_with=THERE)
    assert compare(counts, [BEFORE])[0] == ["compiler gcc 13, not gcc 12"]
    assert risen(counts) == cases


@pytest.mark.parametrize("made_with", [{"compiler": "gcc 12"}, {**HERE, "libc": "musl"}])
def test_what_only_one_side_knows_is_a_difference(made_with: dict[str, str]) -> None:
    assert len(compare(found(110, made_with=made_with), [BEFORE])[0]) == 1


def test_another_build_of_python_is_told_by_what_a_call_costs() -> None:
    assert compare(found(100, reference=815.0), [BEFORE])[0] == []
    differing, _ = compare(found(100, reference=700.0), [BEFORE])
    assert differing == ["another build of Python: 700 instructions for a call, not 800"]


@pytest.mark.parametrize(("lone", "cases"), [(1200 + 399, []), (1200 + 401, [LONE])])
def test_a_dearer_interpreter_is_not_held_against_the_engine(lone: float, cases: list[str]) -> None:
    assert risen(found(100, lone, reference=1000.0)) == cases
    assert risen(found(120 + 2 * 200 / 64 + 1, reference=1000.0)) == [CASE]


def test_a_cheaper_interpreter_lowers_no_bound() -> None:
    assert risen(found(119, 1199, reference=400.0)) == []


@pytest.mark.parametrize("order", [1, -1])
def test_the_closest_record_counts(order: int) -> None:
    records = [BEFORE, found(200, made_with=THERE), found(300, reference=900.0)][::order]
    assert risen(found(104), *records) == [CASE]
    assert risen(found(206, made_with=THERE), *records) == []
    assert risen(found(207, made_with=THERE), *records) == [CASE]
    assert risen(found(309, reference=905.0), *records) == []
    assert risen(found(362, reference=950.0), *records) == [CASE]  # nearer to 900 than to 800
    assert risen(found(361, reference=950.0), *records) == []


def test_a_new_case_has_no_bound() -> None:
    counts = replace(BEFORE, cases={**BEFORE.cases, "new": 10.0**6})
    assert risen(counts) == []


def test_a_lost_case_is_an_error() -> None:
    with pytest.raises(ValueError, match="recorded, and not counted: batch of one"):
        compare(replace(BEFORE, cases={CASE: 1.0}), [BEFORE])


def test_no_record_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was ever recorded"):
        compare(BEFORE, [])


def test_a_record_replaces_that_of_the_same_making() -> None:
    there = found(200, made_with=THERE)
    assert with_record([BEFORE, there], found(90)) == [there, found(90)]
    assert with_record([there], BEFORE) == [there, BEFORE]


# --- what callgrind says ------------------------------------------------------------------------


def test_start_and_warming_up_do_not_count() -> None:
    totals = []
    for number, (name, count) in enumerate(instructions.plan()):
        packets = CASES[name].packets if name else 1
        once = 5000 + count * packets * (number + 1)
        totals += [10**9, once, once + count * packets * (number + 1)]
    counts = instructions.counts_of([*totals, 12345])
    assert counts.cases == {name: number + 1 for number, name in enumerate(CASES)}
    assert counts.reference == len(CASES) + 1


def test_missing_marks_are_noticed() -> None:
    with pytest.raises(Missing, match="saw 2 marks"):
        instructions.counts_of([1, 2])


def test_the_total_of_a_dump_is_found() -> None:
    assert instructions.total("version: 1\nevents: Ir\nsummary: 42\n\nfn=(1) x\n1 2\n") == 42
    with pytest.raises(ValueError, match="without its total"):
        instructions.total("fn=(1) x\n")


def test_the_worker_marks_before_between_and_after() -> None:
    calls: list[object] = []
    instructions._parts(calls.append, 30, lambda: calls.append("mark"))
    assert calls == [instructions.WARM, "mark", 30, "mark", 60, "mark"]


# --- the command --------------------------------------------------------------------------------


def test_every_case_is_recorded() -> None:
    records = [Counts(**each) for each in json.loads(RECORDED.read_text())]
    assert records
    for record in records:
        assert record.cases.keys() == CASES.keys()
        assert min(record.reference, *record.cases.values()) > 0
        assert with_record(records, record) == [each for each in records if each != record] + [
            record
        ]


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_without_valgrind_it_is_skipped_but_in_ci(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", ci)
    assert instructions.main([]) == status
    assert "no valgrind: apt install valgrind" in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.04, 1), (0.9, 0)])
def test_the_exit_status_tells_of_a_rise(
    factor: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = Counts(**json.loads(RECORDED.read_text())[0])
    cases = {name: count * factor for name, count in record.cases.items()}
    monkeypatch.setattr(instructions, "count", lambda: replace(record, cases=cases))
    assert instructions.main([]) == status
    printed = capsys.readouterr().out
    assert printed.count("RISEN") == (len(cases) if status else 0)
    assert printed.count("record it") == (len(cases) if factor < 1 else 0)
