"""Real captures through ``replay --verify``: ours, and those of others where they are at hand.

One process replays all files for an engine and a batch size, as a user would from a shell.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import netstack_gro
from netstack_gro.capture import open_capture
from netstack_gro.errors import UnsupportedLinkTypeError
from tests.capture_files import CAPTURES, records_of
from tests.command import environment
from tests.requirements import require_both_engines

OURS = Path(__file__).resolve().parent.parent / "pcaps"
FILES = [
    path
    for folder in (OURS, CAPTURES)
    if folder.is_dir()
    for path in sorted(folder.iterdir())
    if ".pcap" in path.name
]

BATCHES = ("--batch=1", "--batch=8", "--batch=64", "--batch=1024")
WINDOWS = ("--window=0.0001", "--window=0.01", "--window=10")
ENGINES = ("compiled", "interpreted") if netstack_gro.__compiled__ else ("interpreted",)


def is_readable(path: Path) -> bool:
    """Whether its link type is one that is read."""
    try:
        open_capture(path).close()
    except UnsupportedLinkTypeError:
        return False
    return True


READABLE = [path for path in FILES if is_readable(path)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not READABLE, reason="no capture is at hand"),
]


@cache
def replayed(engine: str, batches: str) -> dict[str, dict[str, Any]]:
    """The report of each file by its path; of all that can be read."""
    forced = {"NETSTACK_GRO_INTERPRETED": "1" if engine == "interpreted" else "0"}
    result = subprocess.run(
        [sys.executable, "-m", "netstack_gro", "replay", "--json", "--verify", batches, *READABLE],
        capture_output=True,
        text=True,
        timeout=110,
        env={**environment(), **forced},
        check=False,
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == 0, result.stderr
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    return {report["file"]: report for report in reports}


@pytest.mark.parametrize("batches", [*BATCHES, *WINDOWS])
@pytest.mark.parametrize("name", ENGINES)
def test_every_capture_is_given_back_byte_for_byte(name: str, batches: str) -> None:
    reports = replayed(name, batches)
    assert list(reports) == list(map(str, READABLE))
    for report in reports.values():
        assert report["verified"] is True, report
        assert report["engine"] == name
        assert report["error"] is None
        assert sum(report["verdicts"].values()) == report["packets_in"]


@pytest.mark.parametrize("batches", [*BATCHES, *WINDOWS])
def test_both_engines_report_the_same_of_every_capture(batches: str) -> None:
    require_both_engines(len(ENGINES))
    compiled, interpreted = (replayed(name, batches) for name in ENGINES)
    for path, report in compiled.items():
        assert report == {**interpreted[path], "engine": "compiled"}


def test_a_capture_of_another_link_type_is_refused_by_name() -> None:
    refused = [path for path in FILES if path not in READABLE]
    if not refused:
        pytest.skip("no such capture is at hand")
    for path in refused:
        with pytest.raises(UnsupportedLinkTypeError, match="link type 127"):
            open_capture(path)


@pytest.mark.parametrize("batches", ["--batch=64", "--window=0.01"])
def test_what_is_written_holds_every_packet_in_order(batches: str, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    result = subprocess.run(
        [sys.executable, "-m", "netstack_gro", "replay", "--json", batches, "-o", out, *READABLE],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    records = records_of(out.read_bytes())
    assert len(records) == sum(report["packets_out"] for report in reports)
    assert sum(len(record.data) for record in records) == sum(
        report["bytes_out"] for report in reports
    )


def shared(name: str, batches: str = "--batch=64") -> dict[str, Any]:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip("the captures of others are not at hand")
    return replayed(ENGINES[0], batches)[str(path)]


def test_a_capture_taken_before_segmentation_is_recognised() -> None:
    report = shared("zeek-krb-kerberos_tso.pcapng")
    assert report["verdicts"]["ip_length_zero"] == 7
    assert report["already_aggregated"] == 12
    assert report["checksum_offload"] == {"transport": 146, "ip_header": 158}


def test_frames_above_the_mss_are_recognised_and_those_of_the_loopback_device_are_not() -> None:
    assert shared("zeek-ssh-ssh.pcap")["already_aggregated"] == 237
    report = shared("zeek-http-http-post-large.pcap")
    assert report["already_aggregated"] == 0
    assert report["checksum_offload"]["transport"] == report["packets_in"] == 38


def test_the_files_can_be_found_in_a_checkout() -> None:
    if not (OURS / "manifest.json").exists():
        pytest.skip("the tests lie outside a source tree")
    assert len([path for path in FILES if path.parent == OURS]) >= 20
    assert os.fspath(OURS / "demo.pcapng") in map(str, READABLE)
