import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import dpkt
import pytest

import netstack_gro
from benchmarks.batches import SLOT
from benchmarks.building import Missing
from benchmarks.engine import bench, cases, limits
from benchmarks.engine.cases import OTHER, Case, all_cases, ratio_rows, sum_name
from benchmarks.engine.limits import SUMS, Limits
from benchmarks.engine.plot import draw
from benchmarks.engine.settings import BASE, LONE, MANY, MANY_LARGE, RING, RUNS, Setting, settings
from benchmarks.process import LineProcess
from benchmarks.report import figure_row
from benchmarks.traffic import Traffic, ones_complement
from netstack_gro import GroConfig, GroDispatcher, IpIdMode, VirtioHeader, segment

VERIFIED = replace(BASE, verify=True)
EVERY = list(dict.fromkeys(each for group in settings().values() for each in group))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Limits:
    try:
        return limits.build(tmp_path_factory.mktemp("limits"))
    except Missing as error:
        pytest.skip(str(error))


# --- what the engine is given -------------------------------------------------------------------


def test_names_tell_settings_apart() -> None:
    assert len({each.name for each in EVERY}) == len(EVERY)
    assert BASE.name == "1 flow, batch 64, trusted"
    assert replace(MANY_LARGE, udp=True, version=6, payload=100, listed=True, ring=True).name == (
        "1,024 flows, batch 1,024, trusted, UDP, IPv6, payload 100, list of bytes, 16 MiB ring"
    )


def test_every_dimension_is_varied() -> None:
    assert {each.packets for each in EVERY} == {1, 2, 8, 32, 64, 128, 1024}
    assert {each.flows for each in EVERY} == {1, 8, 64, 1024}
    assert {each.payload for each in EVERY} == {1448, 100}
    for name in ("verify", "udp", "listed", "ring"):
        assert {getattr(each, name) for each in EVERY} == {False, True}
    assert {each.version for each in EVERY} == {4, 6}


def delivered(setting: Setting) -> list[tuple[int, int]]:
    """Segments and bytes of each packet that comes of the first batch."""
    found: list[tuple[int, int]] = []
    config = GroConfig(udp=setting.udp, received_checksums="verify" if setting.verify else "trust")
    with GroDispatcher(
        lambda packets: found.extend((packet.packets, len(packet)) for packet in packets), config
    ) as engine:
        engine.dispatch(setting.inputs()[0])
    return found


@pytest.mark.parametrize("setting", EVERY, ids=lambda setting: setting.name)
def test_a_batch_merges_by_flows(setting: Setting) -> None:
    found = delivered(setting)
    run = setting.packets // setting.flows
    assert sum(segments for segments, _ in found) == setting.packets
    if run <= 45:  # as many segments as fit a super-packet, whatever the headers
        assert [segments for segments, _ in found] == [run] * setting.flows
    else:
        assert len(found) < setting.flows * (run // 32 + 1)


@pytest.mark.parametrize("version", [4, 6])
def test_datagrams_have_right_lengths_and_checksums(version: int) -> None:
    for packet in Traffic("datagrams", 6, 2, 101, version, udp=True).build():
        ip = dpkt.ip.IP(packet) if version == 4 else dpkt.ip6.IP6(packet)
        assert (ip.data.ulen, len(ip.data.data), ip.data.dport) == (109, 101, 443)
        addresses = packet[12:20] if version == 4 else packet[8:40]
        pseudo = addresses + (109).to_bytes(4, "big") + (17).to_bytes(4, "big")
        assert dpkt.in_cksum(pseudo + packet[20 if version == 4 else 40 :] + b"\0") == 0


def test_a_ring_is_one_slab_of_batches_with_the_same_packets() -> None:
    batches = Setting(ring=True).inputs()
    assert len(batches) == Setting(ring=True).batches == RING // (64 * SLOT)
    slab = batches[0].slab
    assert len(slab) == RING
    assert all(batch.slab is slab and len(batch) == 64 for batch in batches)
    step = 64 * SLOT
    assert slab[:step] == slab[-step:]


def test_packets_of_a_list_have_memory_of_their_own() -> None:
    (packets,) = replace(LONE, packets=3, listed=True).inputs()
    (again,) = replace(LONE, packets=3, listed=True).inputs()
    assert packets == again
    assert len({id(each) for each in [*packets, *again]}) == 6


# --- the limits ---------------------------------------------------------------------------------


def test_every_sum_is_right(built: Limits) -> None:
    data = bytes((7 * at * at + 255) % 256 for at in range(2100))
    assert {"the engine's own", "add with carry"} <= set(built.sums) <= set(SUMS)
    for length in [*range(300), 1447, 1448, 1480, 2100]:
        for piece in (data[:length], b"\xff" * length):
            sums = {built.sum_of(name, piece) % 0xFFFF for name in built.sums}
            assert sums == {(0xFFFF - ones_complement(piece)) % 0xFFFF}, length


def test_copies_are_whole(built: Limits) -> None:
    slab, target = bytearray(range(250)), bytearray(91)
    built.copying(target, slab, 100, 30, 3)(2)
    assert target == slab[:30] + slab[100:130] + slab[200:230] + b"\0"


def test_pieces_beyond_the_slab_are_refused(built: Limits) -> None:
    slab = bytearray(2 * SLOT)
    built.summing("the engine's own", slab, 20, SLOT - 20, 1, 2)(3)
    with pytest.raises(ValueError, match="the slab at 4096"):
        built.summing("the engine's own", slab, 21, SLOT - 20, 1, 2)
    with pytest.raises(ValueError, match="do not fit 59"):
        built.copying(bytearray(59), slab, 30, 30, 2)


@pytest.mark.parametrize("into", [False, True])
def test_one_super_packet_is_linearised_and_cut(
    into: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = delivered(Setting(packets=cases.SUPER.packets))
    assert found == (45, cases.LENGTH)
    cases._linearise(into=into)(2)  # raises where there are more packets, or longer ones
    cut: list[list[bytes]] = []

    def cutting(data: bytes, header: VirtioHeader, mode: IpIdMode) -> list[bytes]:
        cut.append(list(segment(data, header, mode)))
        return cut[-1]

    monkeypatch.setattr(cases, "segment", cutting)
    cases._segment()(2)
    assert cut == [cases.SUPER.build()] * 2
    assert {len(packet) for packet in cut[0]} == {cases.WIRE}


# --- the ratios ---------------------------------------------------------------------------------

MADE_UP: dict[str, Sequence[float]] = {
    BASE.name: [10.0, 20.0, 30.0],
    VERIFIED.name: [50.0, 60.0, 70.0],
    MANY.name: [40.0, 40.0, 40.0],
    MANY_LARGE.name: [60.0, 48.0, 40.0],
    LONE.name: [150.0, 170.0, 190.0],
    sum_name("slow"): [99.0, 99.0, 99.0],
    sum_name("fast"): [30.0, 20.0, 40.0],
    sum_name("fast", ring=True): [1.0, 1.0, 1.0],
    cases.SEGMENT: [90.0, 90.0, 90.0],
    cases.CUT: [30.0, 40.0, 20.0],
    cases.COPIES[0]: [20.0, 20.0, 20.0],
    cases.COPIES[1]: [40.0, 40.0, 40.0],
    cases.LINEARISE[1]: [30.0, 20.0, 40.0],
}


def test_what_the_engine_is_held_to_comes_of_each_round() -> None:
    rows = {row["case"]: row for row in ratio_rows(MADE_UP, "made up")}
    assert {
        case: (row["median"], row["target"], row.get("against")) for case, row in rows.items()
    } == {
        "a batch of one, to the hook": (170, 180, None),
        "1,024 flows in 1,024 to 64 in 64, nothing merges": (1.2, 1.3, MANY.name),
        "verification to the best sum": (1.25, 1.3, "sum, fast"),
        "bytes(), 45 segments, to memcpy": (1.5, 1.3, cases.COPIES[0]),
        "segment(), 45 segments, to copy + sum": (1.5, 1.5, f"{cases.CUT} + sum, fast"),
    }
    assert rows["verification to the best sum"]["without"] == BASE.name
    assert all(row["engine"] == "made up" and row["runs"] == 3 for row in rows.values())


@pytest.mark.parametrize("missing", [name for name in MADE_UP if name != sum_name("slow")])
def test_what_was_not_measured_has_no_ratio(missing: str) -> None:
    whole = {row["case"] for row in ratio_rows(MADE_UP, "made up")}
    part = {name: found for name, found in MADE_UP.items() if name != missing}
    left = {row["case"] for row in ratio_rows(part, "made up")}
    assert left <= whole
    unused = {sum_name("fast", ring=True), sum_name("fast"), *cases.COPIES}  # there is another
    assert missing in unused or left < whole
    assert ratio_rows({}, "made up") == []


def test_ratios_are_of_cases_that_are_measured(built: Limits) -> None:
    names = [case.name for case in all_cases(built)]
    assert len(set(names)) == len(names)
    ratios = ratio_rows({name: [1.0, 2.0] for name in names}, "any")
    assert len(ratios) == 11
    assert {each.name for each in OTHER} | {RUNS.name} <= set(names)


# --- the run ------------------------------------------------------------------------------------


def test_a_run_writes_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "found" / "engine.json"
    assert bench.main(["--quick", "--only", "batch 64, trusted", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    kind = "compiled" if netstack_gro.__compiled__ else "interpreted"
    assert {row["engine"] for row in rows} == {kind}
    assert {row["unit"] for row in rows} == {"ns/packet", "ratio"}
    for row in rows:
        assert 0 < row["min"] <= row["median"] or row["unit"] == "ratio"
        assert row["runs"] == 2
        assert (row["unit"] == "ratio") == ("against" in row)
    printed = capsys.readouterr().out
    for row in rows:
        assert row["case"] in printed


def test_a_run_without_a_compiler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench.main(["--quick", "--only", "batch 1, trusted"]) == 0
    printed = capsys.readouterr().out
    assert "skipped: the limits in C: no C compiler: apt install gcc" in printed
    assert "skipped: the plot: no matplotlib" in printed
    assert len(json.loads(Path("build/bench/engine.json").read_text())) == 3


def test_words_that_no_case_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "all_cases", lambda limits: [Case("a", ["b"], 1, lambda: print)])
    monkeypatch.setattr(bench, "_limits", lambda: None)
    with pytest.raises(SystemExit):
        bench.main(["--only", "nothing like it"])


def test_the_other_engine_answers_in_the_same_rounds() -> None:
    command = [sys.executable, "-m", "benchmarks.engine.other"]
    with LineProcess("interpreted", command, NETSTACK_GRO_INTERPRETED="1") as other:
        figures, others = bench.run(
            [Case("nothing", [], 1, lambda: lambda count: sum(range(count)))], other, 2, 1e-4
        )
    assert list(figures) == ["nothing"]
    assert list(others) == [each.name for each in OTHER]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in others.values())


def test_another_engine_that_ends_is_an_error() -> None:
    with LineProcess("interpreted", [sys.executable, "-c", "input()"]) as other:
        with pytest.raises(RuntimeError, match="the interpreted engine has ended"):
            bench.run([], other, 1, 1e-4)


def test_the_plot_shows_the_engine_and_its_limits(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [figure_row(name, "compiled", "ns/packet", found) for name, found in MADE_UP.items()]
    draw(rows, tmp_path / "engine.svg")
    words = "".join(ET.parse(tmp_path / "engine.svg").getroot().itertext())
    for word in ("1 flow, trusted", "sum, fast", cases.SEGMENT, "verified less trusted"):
        assert word in words
