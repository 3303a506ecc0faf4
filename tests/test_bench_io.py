import json
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import parts
from benchmarks.building import Missing
from benchmarks.io import bench, datagrams, sizes, timer, tunnel, wireguard
from benchmarks.io.receivers import Check, Receiver, drain
from benchmarks.io.results import Ratio, Results, WrongResultError
from benchmarks.io.sender import Sender, body, stream
from tests import lab
from tests.requirements import lacks_root, lacks_tun, require

# --- what is sent -------------------------------------------------------------------------------


def test_a_datagram_begins_with_its_number_and_resembles_no_neighbour() -> None:
    bodies = [body(number, 100) for number in range(300)]
    assert [len(each) for each in bodies] == [100] * 300
    assert [int.from_bytes(each[:4], "big") for each in bodies] == list(range(300))
    assert all(one[4:] != other[4:] for one, other in pairwise(bodies))


def test_a_check_passes_what_was_sent() -> None:
    check = Check(100, 3, 40)
    for number in range(6):
        check(body(number, 40 if number % 3 == 2 else 100))
    assert check.seen == 6


@pytest.mark.parametrize(
    "wrong",
    [
        body(1, 100),  # one was lost
        body(0, 99),  # cut too early
        body(0, 100) + body(1, 100)[:1],  # and too late
        body(0, 40),
        body(0, 99) + b"\xff",
    ],
)
def test_a_check_finds_what_is_lost_or_wrongly_cut(wrong: bytes) -> None:
    with pytest.raises(WrongResultError, match="datagram 0"):
        Check(100, 3, 40)(wrong)


@pytest.mark.parametrize("mtu", sizes.MTUS)
def test_trains_are_as_long_as_the_kernel_takes_them(mtu: int) -> None:
    size = mtu - sizes.HEADERS
    length = sizes.train_length(size)
    assert 1 < length <= 64
    assert length * size <= 65507 < (length + 1) * size


@pytest.fixture
def received() -> Iterator[tuple[Receiver, socket.socket]]:
    """A receiver that counts what comes from a socket."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)

    def read(_expected: int) -> int:
        count = 0
        while True:
            try:
                near.recv(100)
            except BlockingIOError:
                return count
            count += 1

    with near, far:
        yield Receiver("counting", 0, read, near), far


@pytest.mark.parametrize("sent", [1, 4])
def test_a_round_that_is_not_complete_is_no_round(
    received: tuple[Receiver, socket.socket], monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    monkeypatch.setattr("benchmarks.io.receivers.PATIENCE_S", 0.01)
    monkeypatch.setattr(Receiver, "dropped", 0)
    receiver, far = received
    for _ in range(sent):
        far.send(b"x")
    with pytest.raises(WrongResultError, match=f"{sent} datagrams of 3, 0 dropped"):
        drain(receiver, 3)


def test_a_round_with_drops_is_no_round(
    received: tuple[Receiver, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Receiver, "dropped", 1)
    receiver, far = received
    far.send(b"x")
    with pytest.raises(WrongResultError, match="1 datagrams of 1, 1 dropped"):
        drain(receiver, 1)


# --- figures ------------------------------------------------------------------------------------


def test_a_prediction_scales_what_goes_with_the_bytes() -> None:
    assert sizes.predicted(100, 150, 1472, 1472) == 150
    assert sizes.predicted(100, 150, 2944, 1472) == 250
    assert sizes.predicted(150, 100, 2944, 1472) == 300, "no less than nothing for the objects"


def ratio(*rounds: float, at_least: float | None = None, at_most: float | None = None) -> Ratio:
    return Ratio("case", "ours", "theirs", "times", rounds, at_least, at_most)


@pytest.mark.parametrize(
    ("found", "verdict", "target"),
    [
        (ratio(5, 6, 7), "", ""),
        (ratio(5, 6, 7, at_least=6), "met", ">= 6"),
        (ratio(5, 5.9, 7, at_least=6), "missed", ">= 6"),
        (ratio(1.2, 1.1, 1, at_most=1.1), "met", "<= 1.1"),
        (ratio(0.5, 0.8, 1, at_least=0.9, at_most=1.1), "missed", "0.9 to 1.1"),
        (ratio(1.2, 1.2, 1, at_least=0.9, at_most=1.1), "missed", "0.9 to 1.1"),
        (ratio(0.9, 0.5, 2, at_least=0.9, at_most=1.1), "met", "0.9 to 1.1"),
    ],
)
def test_a_target_is_met_by_the_median(found: Ratio, verdict: str, target: str) -> None:
    assert (found.verdict, found.target) == (verdict, target)


def test_a_ratio_is_of_the_same_round() -> None:
    results = Results(["what was done"])
    for mine, its in ((10, 60), (20, 80), (30, 300)):
        results.add("case", "ours", "ns", mine, 7)
        results.add("case", "theirs", "ns", its, 7)
    results.count("case", "ours", dropped=0)
    results.times("case", "ours", "theirs", "ns", 6)
    results.times("case", "ours", "absent", "ns", 6)
    figure = {"case": "case", "unit": "ns", "runs": 3, "delivered": 7}
    assert results.rows() == [
        figure | {"engine": "ours", "min": 10, "median": 20, "dropped": 0},
        figure | {"engine": "theirs", "min": 60, "median": 80},
        {
            "case": "case, ns",
            "engine": "ours",
            "unit": "times",
            "min": 4,
            "median": 6,
            "runs": 3,
            "against": "theirs",
            "at_least": 6,
        },
    ]
    text = results.text()
    assert text.startswith("what was done\n")
    assert "dropped 0" in text
    assert "met" in text


# --- the table that a timer holds ---------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    with near, far:
        yield near, far


def test_without_a_timer_a_read_is_delivered_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    table = timer.Merging(near)
    for packet in stream(100, 4).build():
        far.send(packet)
    assert table.turn()
    assert (table.delivered, table.packets) == (4, 1)


def test_with_a_timer_packets_are_held_until_it_is_due(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    table = timer.Merging(near, 0.05)
    packets = stream(100, 4).build()
    start = time.monotonic()
    for packet in packets[:2]:
        far.send(packet)
    assert table.turn()
    for packet in packets[2:]:
        far.send(packet)
    assert table.turn()
    if time.monotonic() - start < 0.05:
        assert table.delivered == 0
    table.run(4 - table.delivered)
    assert time.monotonic() - start >= 0.05
    assert (table.delivered, table.packets) == (4, 1)


def test_a_full_table_does_not_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    table = timer.Merging(near, 60)
    for packet in stream(100, timer.CAPACITY + 1).build():
        far.send(packet)
        table.turn()
    assert (table.delivered, table.packets) == (timer.CAPACITY, 1)


def test_a_stream_that_ends_early_is_an_error(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "PATIENCE_S", 0.01)
    near, far = pair
    far.send(stream(100, 1).build()[0])
    with pytest.raises(WrongResultError, match="1 of 2 segments are missing"):
        timer.Merging(near).run(2)


# --- what cannot be had -------------------------------------------------------------------------


def no_go(_folder: Path) -> list[str]:
    raise Missing("no Go: install it")


def test_wireguard_without_go_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"install Go 1\.\d+"):
        wireguard.build(tmp_path / "build")


def test_a_run_that_can_measure_nothing_fails_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, part in bench.PARTS.items():
        monkeypatch.setitem(bench.PARTS, name, part._replace(lacks=lambda: "needs root"))
    assert bench.main(["--json", str(tmp_path / "io.json")]) == 1
    printed = capsys.readouterr()
    assert [f"skipped: {name}: needs root" in printed.out for name in bench.PARTS] == [True] * 4
    assert "nothing could be measured" in printed.err
    assert not (tmp_path / "io.json").exists()


# --- each part, once and short ------------------------------------------------------------------

CASES = {"udp": 2, "mtu": len(sizes.MTUS), "tun": 4, "timer": 3}
TARGETS = {"udp": 4, "mtu": 2 * (len(sizes.MTUS) - 1), "tun": 4, "timer": 1}


COUNTED = {
    "udp": "datagrams_a_train",
    "mtu": "datagrams_a_train",
    "tun": "segments_a_write",
    "timer": "segments_a_packet",
}
MERGED = {
    "udp": {1, datagrams.SEGMENTS},
    "mtu": {sizes.train_length(mtu - sizes.HEADERS) for mtu in sizes.MTUS},
    "tun": {1, 32, 42.7},  # 64 in 2, 128 in 3
    "timer": {1},  # the rest is for the machine to say
}


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_measures_and_loses_nothing(
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require(lacks_tun())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tunnel.wireguard, "build", no_go)
    assert bench.main(["--quick", "--only", part, "--json", "found/io.json"]) == 0
    rows = json.loads(Path("found/io.json").read_text())
    figures = [row for row in rows if "against" not in row]
    ratios = [row for row in rows if "against" in row]
    assert len({row["case"] for row in figures}) == CASES[part]
    held = [row for row in ratios if not row.keys().isdisjoint({"at_least", "at_most"})]
    assert len(held) == TARGETS[part]
    assert {row["runs"] for row in rows} == {parts.QUICK}
    assert all(0 < row["min"] <= row["median"] for row in rows)
    assert all(row["dropped"] == 0 and row["delivered"] > 0 for row in figures)
    printed = capsys.readouterr().out
    assert ("skipped: wireguard-go: no Go" in printed) == (part == "tun")
    assert {row[COUNTED[part]] for row in figures if COUNTED[part] in row} >= MERGED[part]


def test_a_sender_is_gone_with_its_network() -> None:
    require(lacks_root())
    with lab.Lab() as net, Sender(net, net.namespace(ipv6=False)) as sender:
        assert sender._process.poll() is None
    assert sender._process.returncode is not None
