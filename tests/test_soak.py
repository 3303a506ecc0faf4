"""The soak test, for seconds in place of minutes, and that it would notice."""

import pytest

from tests import soak
from tests.engines import Engine
from tests.requirements import lacks_tun, require

START = 50 << 20
FLAT = [START] * 100


@pytest.mark.slow
def test_under_full_load_nothing_is_lost_and_memory_stays_flat(engine: Engine) -> None:
    require(lacks_tun())
    report = soak.run(3.0, engine)
    assert report.faults == []
    assert report.tcp_bytes >= report.transfers * soak.BYTES_AT_ONCE[engine.name] > 0
    assert report.packets > report.super_packets > 0
    assert report.datagrams > report.trains > 0


@pytest.mark.engineless
@pytest.mark.parametrize(
    ("samples", "faults"),
    [
        (FLAT, 0),
        ([START // 2] * 10 + FLAT, 0),
        (FLAT[:80] + [START + soak.FIRST_TOUCHED] * 40, 1),
        ([*FLAT[:20], START + soak.FIRST_TOUCHED, *FLAT], 0),
        ([START + (number << 15) for number in range(100)], 1),
        ([START + (number << 18) for number in range(100)], 2),
        (FLAT[:10], 1),
    ],
    ids=["flat", "start", "step", "first-touched", "leak", "large-leak", "too-short"],
)
def test_memory_that_grows_is_a_fault_and_memory_that_was_allocated_before_is_none(
    samples: list[int], faults: int
) -> None:
    report = soak.Report("none")
    soak.judge_memory(report, samples)
    assert len(report.faults) == faults, report.faults
