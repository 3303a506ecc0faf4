import json
import sys
from collections.abc import Callable
from pathlib import Path

import dpkt
import pytest

from benchmarks.building import Missing
from benchmarks.peers import bench, dpkt_gro, ours, programs
from benchmarks.peers.cases import CRITERIA, SERIES, TRAFFIC, Criterion
from benchmarks.peers.programs import Answer
from benchmarks.peers.results import Figures, WrongResultError, check, ratio_row
from benchmarks.traffic import HEADERS, Traffic, ones_complement, read, write
from netstack_gro import GroConfig, GroDispatcher

SMALL = Traffic("small", 12, 3, 40)


def parsed(packet: bytes) -> dpkt.Packet:
    return dpkt.ip.IP(packet) if packet[0] >> 4 == 4 else dpkt.ip6.IP6(packet)


# --- the packets --------------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", TRAFFIC, ids=lambda traffic: traffic.name)
def test_packets_have_right_lengths_and_checksums(traffic: Traffic) -> None:
    packets = traffic.build()
    assert len(packets) == traffic.packets
    for packet in packets:
        ip = parsed(packet)
        assert len(packet) == HEADERS[traffic.version] + traffic.payload
        assert len(ip.data.data) == traffic.payload
        assert dpkt_gro.right(ip, packet)
        assert dpkt_gro.header_of(ip, packet) is not None


def test_each_flow_is_one_run_of_consecutive_segments() -> None:
    segments = [parsed(packet).data for packet in SMALL.build()]
    assert [segment.sport - 1000 for segment in segments] == [0] * 4 + [1] * 4 + [2] * 4
    assert [segment.seq for segment in segments[:4]] == [1, 41, 81, 121]


def test_unequal_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no equal runs"):
        Traffic("uneven", 10, 3)


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 4, b"\x01", bytes(range(77))])
def test_the_checksum_completes_its_words_to_ffff(data: bytes) -> None:
    assert dpkt.in_cksum(data + bytes(len(data) % 2)) == ones_complement(data)


def test_a_batch_survives_its_file(tmp_path: Path) -> None:
    write(tmp_path / "batch", SMALL.build())
    assert read(tmp_path / "batch") == SMALL.build()


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_file_of_another_size_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "batch"
    write(path, SMALL.build())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match="its lengths say"):
        read(path)


@pytest.mark.parametrize("data", [b"", b"\x01\0\0", b"\x02\0\0\0\x01\0\0\0"])
def test_a_file_that_ends_in_its_lengths_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(ValueError, match=r"is no batch|ends within"):
        read(tmp_path / "batch")


# --- the engines in Python ----------------------------------------------------------------------


def rewritten(packet: bytes, change: Callable[[dpkt.Packet], None]) -> bytes:
    """The packet with a header changed, and right checksums."""
    ip = dpkt.ip.IP(packet)
    change(ip)
    ip.len = 20 + len(ip.data)
    ip.sum = ip.data.sum = 0
    return bytes(ip)


def setter(name: str, value: int | bytes, *, tcp: bool = True) -> Callable[[dpkt.Packet], None]:
    def change(ip: dpkt.Packet) -> None:
        setattr(ip.data if tcp else ip, name, value)

    return change


def shorten(ip: dpkt.Packet) -> None:
    ip.data.data = ip.data.data[:-1]


CHANGES = {
    "push": setter("flags", dpkt.tcp.TH_ACK | dpkt.tcp.TH_PUSH),
    "fin": setter("flags", dpkt.tcp.TH_ACK | dpkt.tcp.TH_FIN),
    "reset": setter("flags", dpkt.tcp.TH_RST),
    "sequence": setter("seq", 77),
    "acknowledgment": setter("ack", 2),
    "window": setter("win", 500),
    "options": setter("opts", bytes.fromhex("0101080a0000000200000002")),
    "ttl": setter("ttl", 63, tcp=False),
    "tos": setter("tos", 1, tcp=False),
    "id": setter("id", 500, tcp=False),
    "shorter": shorten,
    "empty": setter("data", b""),
}


def payloads_of_ours(packets: list[bytes]) -> list[int]:
    sizes: list[int] = []
    with GroDispatcher(
        lambda found: sizes.extend(ours.payload_of(packet, 0) for packet in found), GroConfig()
    ) as engine:
        engine.dispatch(ours.batch_of(packets))
    return sizes


def payloads_of_dpkt(packets: list[bytes]) -> list[int]:
    return [len(ip.data.data) for ip in dpkt_gro.merge(packets, verify=True)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("index", [0, 1, 3])
def test_dpkt_merges_what_our_engine_merges(
    change: Callable[[dpkt.Packet], None], index: int
) -> None:
    packets = Traffic("changed", 4, 1, 40).build()
    packets[index] = rewritten(packets[index], change)
    assert payloads_of_dpkt(packets) == payloads_of_ours(packets)


@pytest.mark.parametrize("at", [10, 36, 60])
def test_dpkt_leaves_a_damaged_packet_alone_as_our_engine_does(at: int) -> None:
    packets = Traffic("damaged", 4, 1, 40).build()
    packets[2] = packets[2][:at] + bytes([packets[2][at] ^ 1]) + packets[2][at + 1 :]
    assert payloads_of_dpkt(packets) == payloads_of_ours(packets) == [80, 40, 40]


@pytest.mark.parametrize("traffic", [SMALL, *TRAFFIC[:2], TRAFFIC[-1]], ids=lambda it: it.name)
def test_the_engines_in_python_deliver_everything(traffic: Traffic) -> None:
    packets = traffic.build()
    modes = [series.mode for series in SERIES if series.peer == "ours" and series.takes(traffic)]
    found = {mode: ours.prepare(packets, mode).outcome() for mode in modes}
    found |= {mode: dpkt_gro.prepare(packets, mode).outcome() for mode in ("trusted", "verified")}
    assert len(found) >= 4
    assert len(set(found.values())) == 1
    ((out, payload),) = set(found.values())
    check("any", traffic, Answer(1.0, out, payload))


# --- what they answer ---------------------------------------------------------------------------


def test_an_answer_is_read() -> None:
    assert Answer.parse('{"ns": 12.5, "out": 2, "payload": 80}\n') == Answer(12.5, 2, 80)


@pytest.mark.parametrize(
    "line",
    ["", "12", "[]", '{"ns": 1, "out": 2}', '{"ns": NaN, "out": 1, "payload": 1}', '{"ns": 0}'],
)
def test_what_is_no_measurement_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no answer|no time"):
        Answer.parse(line)


def test_lost_payload_is_an_error() -> None:
    with pytest.raises(WrongResultError, match="479 bytes of 480 came out"):
        check("engine", SMALL, Answer(1.0, 3, 479))


@pytest.mark.parametrize("out", [2, 4])
def test_packets_not_merged_as_they_can_are_an_error(out: int) -> None:
    with pytest.raises(WrongResultError, match=f"{out} packets came out, not 3 to 3"):
        check("engine", SMALL, Answer(1.0, out, SMALL.payload_bytes))


# --- the ratios ---------------------------------------------------------------------------------

CRITERION = Criterion("case", SMALL, "ours", ["slow", "fast", "absent"], 0.5)
FIGURES = {
    (SMALL.name, "ours"): Figures(3, [10.0, 20.0, 30.0]),
    (SMALL.name, "slow"): Figures(3, [90.0, 90.0, 90.0]),
    (SMALL.name, "fast"): Figures(3, [20.0, 80.0, 40.0]),
    (SMALL.name, "part"): Figures(3, [5.0, 10.0, 15.0]),
}


def test_a_ratio_is_of_the_same_round_and_to_the_fastest() -> None:
    row = ratio_row(CRITERION, FIGURES)
    assert row is not None
    assert row["against"] == "fast"
    assert (row["min"], row["median"], row["runs"]) == (0.25, 0.5, 3)
    assert row["target"] == 0.5


def test_a_part_is_taken_off_both_sides() -> None:
    criterion = Criterion("case", SMALL, "ours", ["fast"], 0.5, without="part")
    row = ratio_row(criterion, FIGURES)
    assert row is not None
    assert row["without"] == "part"
    assert row["median"] == pytest.approx((20 - 10) / (80 - 10), abs=1e-4)
    assert row["min"] == 0


@pytest.mark.parametrize(
    "criterion",
    [
        Criterion("case", SMALL, "absent", ["fast"], 0.5),
        Criterion("case", SMALL, "ours", ["absent"], 0.5),
        Criterion("case", SMALL, "ours", ["fast"], 0.5, without="absent"),
    ],
)
def test_what_was_not_measured_has_no_ratio(criterion: Criterion) -> None:
    assert ratio_row(criterion, FIGURES) is None


def test_ratios_are_of_engines_and_traffic_that_are_measured() -> None:
    series = {each.engine: each for each in SERIES}
    assert len(series) == len(SERIES)
    for criterion in CRITERIA:
        assert criterion.traffic in TRAFFIC
        parts = [criterion.without] if criterion.without else []
        for engine in [criterion.engine, *criterion.against, *parts]:
            assert series[engine].takes(criterion.traffic), engine


# --- peers that cannot be had -------------------------------------------------------------------


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(sys.modules, "dpkt", None)


@pytest.mark.parametrize(
    ("peer", "wanted"),
    [
        ("dpdk", "apt install gcc"),
        ("gvisor", "install Go 1"),
        ("wireguard", "install Go 1"),
        ("dpkt", "pip install dpkt"),
    ],
)
def test_a_peer_that_is_missing_says_what_to_install(
    nothing_installed: None, tmp_path: Path, peer: str, wanted: str
) -> None:
    with pytest.raises(Missing, match=wanted):
        programs.build(peer, tmp_path / "build")


def test_a_failing_build_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho first >&2\necho 'no such module' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(Missing, match="go failed: no such module"):
        programs.build("gvisor", tmp_path / "build")


def test_a_run_without_any_peer_measures_ours(
    nothing_installed: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "TRAFFIC", (SMALL, Traffic("six", 8, 8, 40, 6)))
    assert bench.main(["--quick", "--json", "found/peers.json"]) == 0
    printed = capsys.readouterr().out
    for name in ("DPDK", "gVisor", "wireguard-go", "dpkt"):
        assert f"skipped: {name}" in printed
    rows = json.loads(Path("found/peers.json").read_text())
    assert {row["engine"] for row in rows if row["case"] == "six"} == {
        "netstack-gro, trusted",
        "netstack-gro, verified",
    }
    assert all(row["unit"] == "ns/packet" and row["runs"] == 2 for row in rows)
    assert all(0 < row["min"] <= row["median"] for row in rows)


def test_a_peer_that_ends_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with programs.Program("ended", [sys.executable, "-c", "raise SystemExit(1)"]) as program:
        with pytest.raises(programs.PeerError, match="ended did not measure"):
            program.ask(tmp_path / "batch", "mode", 0.001)
    assert program._process.returncode == 1
