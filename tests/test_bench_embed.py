"""The comparisons inside other stacks measure what they say, and lose nothing."""

import json
from pathlib import Path

import pytest

from benchmarks import parts
from benchmarks.embed import bench
from tests.requirements import lacks_tun, require

pytestmark = [pytest.mark.slow, pytest.mark.engineless]  # it is not the engine that is tested


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_measures_and_loses_nothing(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(lacks_tun())
    monkeypatch.setattr(parts, "QUICK", 1)
    found = tmp_path / "embed.json"
    assert bench.main(["--quick", "--only", part, "--json", str(found)]) == 0
    rows = json.loads(found.read_text())
    assert {row["runs"] for row in rows} == {1}
    assert all(row["median"] > 0 for row in rows)
    assert {"case", "engine", "unit", "min", "median", "runs"} <= set(rows[0])
    assert any("against" in row for row in rows)
    assert "skipped" not in capsys.readouterr().out
