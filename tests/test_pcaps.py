"""The captures of `pcaps/` hold what their manifest says, counted again by dpkt and scapy."""

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import dpkt  # type: ignore[import-untyped]
import pytest
from scapy.utils import RawPcapNgReader

from pcaps import page
from tests.engines import Engine

FOLDER = Path(__file__).resolve().parent.parent / "pcaps"
MANIFEST: dict[str, dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())

SYN, ACK, CWR, ECE = dpkt.tcp.TH_SYN, dpkt.tcp.TH_ACK, dpkt.tcp.TH_CWR, dpkt.tcp.TH_ECE
FIN, RST, PSH, URG = dpkt.tcp.TH_FIN, dpkt.tcp.TH_RST, dpkt.tcp.TH_PUSH, dpkt.tcp.TH_URG

every_file = pytest.mark.parametrize("name", MANIFEST)


class Stored(NamedTuple):
    link_type: int
    timestamp_ns: int
    frame: bytes


def scapy_blocks(content: bytes) -> list[tuple[bytes, Any]]:
    """Frame and scapy's metadata of each packet of a pcapng file."""
    reader: Any = RawPcapNgReader(io.BytesIO(content))  # type: ignore[arg-type]
    return list(reader)


def stored(name: str) -> list[Stored]:
    content = (FOLDER / name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    if ".pcapng" in name:
        return [
            Stored(about.linktype, (about.tshigh << 32) + about.tslow, frame)
            for frame, about in scapy_blocks(content)
        ]
    reader = dpkt.pcap.Reader(io.BytesIO(content))
    return [Stored(reader.datalink(), int(timestamp * 10**9), frame) for timestamp, frame in reader]


def network_layer(packet: Stored) -> tuple[int, Any]:
    """The number of VLAN tags, and dpkt's IP or IP6, or None."""
    if packet.link_type == 101:
        version = packet.frame[0] >> 4
        return 0, dpkt.ip.IP(packet.frame) if version == 4 else dpkt.ip6.IP6(packet.frame)
    if packet.link_type == 276:
        layer = dpkt.sll2.SLL2(packet.frame).data
        return 0, layer if isinstance(layer, dpkt.ip.IP | dpkt.ip6.IP6) else None
    frame = dpkt.ethernet.Ethernet(packet.frame)
    layer = frame.data if isinstance(frame.data, dpkt.ip.IP | dpkt.ip6.IP6) else None
    return len(getattr(frame, "vlan_tags", ())), layer


def ip_layers(name: str) -> Iterator[Any]:
    for packet in stored(name):
        layer = network_layer(packet)[1]
        if layer is not None:
            yield layer


def ip_length(layer: Any) -> int:
    return int(layer.len if isinstance(layer, dpkt.ip.IP) else 40 + layer.plen)


def ecn(layer: Any) -> int:
    return int((layer.tos if isinstance(layer, dpkt.ip.IP) else layer.fc) & 3)


def is_fragment(layer: Any) -> bool:
    if isinstance(layer, dpkt.ip.IP):
        return bool(layer.mf or layer.offset)
    return dpkt.ip.IP_PROTO_FRAGMENT in layer.extension_hdrs


def sum_over_pseudo_header(layer: Any) -> tuple[int, int]:
    """dpkt's checksum of the pseudo-header alone, and of it and the whole segment."""
    segment = bytes(layer.data)
    pseudo = layer.src + layer.dst + len(segment).to_bytes(4, "big")
    pseudo += (layer.p).to_bytes(4, "big")
    return dpkt.in_cksum(pseudo), dpkt.in_cksum(pseudo + segment)


def counted(name: str) -> dict[str, int]:
    """The facts of the manifest that dpkt can tell, by the same names."""
    facts: Counter[str] = Counter()
    for packet in stored(name):
        tags, layer = network_layer(packet)
        facts["packets"] += 1
        facts["bytes"] += len(packet.frame)
        facts["tagged"] += tags == 1
        facts["double_tagged"] += tags == 2
        if layer is None:
            facts["arp"] += 1
            continue
        facts["ipv4" if isinstance(layer, dpkt.ip.IP) else "ipv6"] += 1
        facts["largest_ip"] = max(facts["largest_ip"], ip_length(layer))
        facts["ect"] += ecn(layer) in {1, 2}
        facts["ce"] += ecn(layer) == 3
        facts["ip_options"] += isinstance(layer, dpkt.ip.IP) and layer.hl > 5
        above = layer.data
        if is_fragment(layer):
            facts["fragment"] += 1
        elif isinstance(above, dpkt.tcp.TCP):
            facts["tcp"] += 1
            count_tcp(facts, above)
        elif isinstance(above, dpkt.udp.UDP):
            facts["udp"] += 1
            facts["udp_without_checksum"] += above.sum == 0
            facts["udp_empty"] += not above.data
        elif isinstance(above, dpkt.icmp.ICMP):
            facts["icmp"] += 1
        elif isinstance(above, dpkt.icmp6.ICMP6):
            facts["icmpv6"] += 1
    return {fact: number for fact, number in facts.items() if number}


def count_tcp(facts: Counter[str], segment: Any) -> None:
    flags = segment.flags
    for fact, bit in (("syn", SYN), ("fin", FIN), ("rst", RST), ("psh", PSH), ("urg", URG)):
        facts[fact] += bool(flags & bit)
    facts["syn_ack"] += flags & (SYN | ACK) == SYN | ACK
    facts["ece"] += bool(flags & ECE) and not flags & SYN
    facts["cwr"] += bool(flags & CWR) and not flags & SYN
    options = dict(dpkt.tcp.parse_opts(segment.opts))
    facts["tcp_timestamps"] += dpkt.tcp.TCP_OPT_TIMESTAMP in options
    facts["data"] += bool(segment.data)
    facts["pure_ack"] += not segment.data and not flags & (SYN | FIN | RST)


NOT_COUNTED_AGAIN = {
    # Each has a test of its own, below.
    "checksum_complete",
    "checksum_partial",
    "late",
    "longest_run",
    "repeated",
    "streams",
}


def test_the_manifest_lists_every_capture_and_no_other() -> None:
    captures = {path.name for path in FOLDER.iterdir() if ".pcap" in path.name}
    assert captures == set(MANIFEST)


def test_the_page_is_written_from_the_manifest() -> None:
    assert (FOLDER / "README.md").read_text() == page.render(MANIFEST)


def test_all_captures_together_stay_below_8_megabytes_and_the_demo_below_500_kilobytes() -> None:
    assert sum((FOLDER / name).stat().st_size for name in MANIFEST) <= 8_000_000
    assert (FOLDER / "demo.pcapng").stat().st_size <= 500_000


@every_file
def test_dpkt_counts_what_the_manifest_says(name: str) -> None:
    facts = MANIFEST[name]["facts"]
    assert counted(name) == {
        fact: number for fact, number in facts.items() if fact not in NOT_COUNTED_AGAIN
    }


@every_file
def test_the_link_types_are_those_of_the_manifest(name: str) -> None:
    promised = {interface["link_type"] for interface in MANIFEST[name]["interfaces"]}
    assert {packet.link_type for packet in stored(name)} == promised


@every_file
def test_no_packet_is_larger_than_the_mtu_and_bulk_fills_it(name: str) -> None:
    mtu = MANIFEST[name]["mtu"]
    largest = max(map(ip_length, ip_layers(name)))
    assert largest <= mtu
    if name != "tcp-request-response.pcap":
        assert largest >= mtu - 100


@every_file
def test_time_stamps_go_forward_but_for_what_two_processors_differ_by(name: str) -> None:
    times = [packet.timestamp_ns for packet in stored(name)]
    assert all(later > earlier - 1_000_000 for earlier, later in pairwise(times))
    assert 0 < times[-1] - times[0] < 60 * 10**9


@every_file
def test_every_checksum_is_right_except_where_the_sender_left_it_to_its_device(name: str) -> None:
    seen: Counter[str] = Counter()
    for layer in ip_layers(name):
        if isinstance(layer, dpkt.ip.IP):
            assert dpkt.in_cksum(bytes(layer)[: layer.hl * 4]) == 0
        above = layer.data
        if is_fragment(layer) or not isinstance(above, dpkt.tcp.TCP | dpkt.udp.UDP):
            continue
        if not above.sum:
            continue
        pseudo, whole = sum_over_pseudo_header(layer)
        if whole == 0:
            seen["complete"] += 1
        else:
            # The sum of the pseudo-header, which dpkt gives complemented.
            assert above.sum == pseudo ^ 0xFFFF, f"a damaged checksum in {name}"
            seen["partial"] += 1
    facts = MANIFEST[name]["facts"]
    assert bool(seen["partial"]) == MANIFEST[name]["partial_checksums"]
    assert seen["partial"] == facts.get("checksum_partial", 0)


@every_file
def test_the_counts_of_streams_and_runs_follow_from_sequence_numbers(name: str) -> None:
    facts = MANIFEST[name]["facts"]
    streams: dict[tuple[Any, ...], list[Any]] = {}
    for layer in ip_layers(name):
        if not is_fragment(layer) and isinstance(layer.data, dpkt.tcp.TCP | dpkt.udp.UDP):
            key = (layer.src, layer.dst, layer.p, layer.data.sport, layer.data.dport)
            streams.setdefault(key, []).append(layer.data)
    assert len(streams) == facts["streams"]
    if len(MANIFEST[name]["interfaces"]) > 1:
        return  # each packet is seen twice
    late = repeated = 0
    for segments in streams.values():
        data = [each for each in segments if isinstance(each, dpkt.tcp.TCP) and each.data]
        for at, segment in enumerate(data):
            earlier = data[:at]
            if any(each.seq == segment.seq for each in earlier):
                repeated += 1
            elif any(1 << 31 > (each.seq - segment.seq) % (1 << 32) > 0 for each in earlier):
                late += 1
    assert late == facts.get("late", 0)
    assert repeated == facts.get("repeated", 0)


@every_file
def test_replay_reports_what_the_page_says(name: str, engine: Engine) -> None:
    module = engine.module("replay")
    report = module.replay(FOLDER / name, module.ReplayOptions(batch=64, verify=True))
    assert report.error is None
    assert report.verified is True
    promised = MANIFEST[name]["replay"]
    found = json.loads(report.to_json())
    assert {key: found[key] for key in page.REPORTED} == promised


WITNESSED = {
    "tcp_syn": "syn",
    "tcp_rst": "rst",
    "tcp_urg": "urg",
    "ip_options": "ip_options",
    "fragment": "fragment",
    "not_ip": "arp",
    "udp_empty": "udp_empty",
    "udp_no_checksum": "udp_without_checksum",
}
"""Verdicts, and what dpkt counts that must be equal to them."""


@every_file
def test_what_the_page_says_of_replay_agrees_with_dpkt(name: str) -> None:
    report, facts = MANIFEST[name]["replay"], counted(name)
    verdicts = Counter(report["verdicts"])
    assert report["packets_in"] == sum(verdicts.values()) == facts["packets"]
    for verdict, fact in WITNESSED.items():
        assert verdicts[verdict] == facts.get(fact, 0), verdict
    assert report["checksum_offload"]["transport"] == MANIFEST[name]["facts"].get(
        "checksum_partial", 0
    )
    # Candidates have data and no flag that bars them; each is merged or stays alone.
    candidates = verdicts["merged"] + verdicts["opened"] + verdicts["tcp_cwr"]
    barred = sum(verdicts[verdict] for verdict in ("tcp_urg", "udp_port"))
    assert facts.get("data", 0) <= candidates + barred
    assert candidates <= facts.get("data", 0) + facts.get("udp", 0)
    assert report["packets_out"] == facts["packets"] - verdicts["merged"] + report["super_packets"]
    assert report["already_aggregated"] == report["truncated"] == 0


# --- what each file is there for -----------------------------------------------------------------


def facts_of(name: str) -> Counter[str]:
    return Counter(counted(name))


def test_the_bulk_captures_are_of_one_family_and_have_long_runs() -> None:
    for name, family in (("tcp-bulk-ipv4.pcap", "ipv4"), ("tcp-bulk-ipv6.pcap", "ipv6")):
        facts = facts_of(name)
        assert facts[family] >= facts["tcp"] >= 180 + 4
        assert facts["tcp_timestamps"] == facts["tcp"]
        assert facts["syn"] == 2
        assert MANIFEST[name]["facts"]["longest_run"] >= 20


def test_one_capture_is_without_tcp_timestamps() -> None:
    facts = facts_of("tcp-no-timestamps.pcap")
    assert facts["tcp_timestamps"] == 0
    assert facts["data"] >= 130


def test_32_flows_are_open_at_once() -> None:
    opened: set[frozenset[int]] = set()
    closed: set[frozenset[int]] = set()
    for layer in ip_layers("tcp-32-flows.pcap.gz"):
        segment = layer.data
        if isinstance(segment, dpkt.tcp.TCP):
            if segment.flags & SYN:
                assert not closed
                opened.add(frozenset((segment.sport, segment.dport)))
            elif segment.flags & FIN:
                closed.add(frozenset((segment.sport, segment.dport)))
    assert len(opened) == 32
    assert closed == opened


def test_requests_and_responses_all_have_psh() -> None:
    for layer in ip_layers("tcp-request-response.pcap"):
        segment = layer.data
        if isinstance(segment, dpkt.tcp.TCP) and segment.data:
            assert segment.flags & PSH
            assert len(segment.data) < 1000


def test_the_lossy_capture_shows_each_fault_that_its_cable_counted() -> None:
    about = MANIFEST["tcp-loss-reordering.pcap"]
    assert min(about["cable"][fault] for fault in ("dropped", "swapped", "duplicated")) >= 3
    # What was dropped comes late, again; what was swapped comes late; the rest are duplicates.
    assert about["facts"]["late"] >= about["cable"]["swapped"]
    assert about["facts"]["repeated"] >= about["cable"]["duplicated"]


def test_the_ecn_capture_holds_marks_their_echo_and_the_answer_to_it() -> None:
    facts = facts_of("tcp-ecn.pcap")
    assert facts["ce"] == MANIFEST["tcp-ecn.pcap"]["cable"]["marked"]
    assert facts["ce"] >= 4
    assert facts["ece"] >= 4
    assert facts["cwr"] >= 2
    assert facts["ect"] >= 100


@pytest.mark.parametrize("mtu", [1280, 1499, 1500, 9000])
def test_a_capture_of_each_mtu_fills_it_exactly_in_both_families(mtu: int) -> None:
    largest = {4: 0, 6: 0}
    for layer in ip_layers(f"tcp-mtu-{mtu}.pcap"):
        largest[layer.v] = max(largest[layer.v], ip_length(layer))
    assert largest == {4: mtu, 6: mtu}


def test_the_tags_stand_in_the_frame() -> None:
    for packet in stored("tcp-vlan.pcap"):
        assert packet.frame[12:16] == b"\x81\x00\x60\x05"  # priority 3, VLAN 5
    for packet in stored("tcp-qinq.pcap"):
        assert packet.frame[12:20] == b"\x88\xa8\x00\x64\x81\x00\x00\x05"  # 100 around 5


@pytest.mark.parametrize(("family", "headers"), [(4, 28), (6, 48)])
def test_udp_trains_have_equal_datagrams_and_shorter_last_ones(family: int, headers: int) -> None:
    sizes = [
        len(layer.data.data)
        for layer in ip_layers(f"udp-trains-ipv{family}.pcap")
        if isinstance(layer.data, dpkt.udp.UDP)
    ]
    largest = 1500 - headers
    trains = [1200] * 8 + [1200] * 10 + [300]
    assert sizes == [
        *trains,
        *[largest] * 16,
        *[largest] * 44,
        1,
        *[100] * 64,
        *[64] * 128,
        *[700] * 2,
        *trains,
    ]


def test_ip_ids_count_up_within_each_train() -> None:
    ids: dict[int, list[int]] = {}
    for layer in ip_layers("udp-trains-ipv4.pcap"):
        if isinstance(layer.data, dpkt.udp.UDP):
            ids.setdefault(layer.data.sport, []).append(layer.id)
    for port, lengths in ((43001, (8, 11, 16, 45, 64, 128, 2)), (43002, (8, 11))):
        at = 0
        for length in lengths:
            train = ids[port][at : at + length]
            assert train == [(train[0] + step) % 65536 for step in range(length)]
            at += length
        assert at == len(ids[port])


def test_two_interfaces_hold_the_same_packets() -> None:
    content = (FOLDER / "both-ends.pcapng").read_bytes()
    seen: list[list[bytes]] = [[], []]
    for frame, about in scapy_blocks(content):
        seen[[b"left", b"right"].index(about.ifname)].append(frame)
    assert sorted(seen[0]) == sorted(seen[1])
    assert seen[0]


def test_the_cooked_capture_has_two_devices_and_both_directions() -> None:
    headers = [dpkt.sll2.SLL2(packet.frame) for packet in stored("any-cooked.pcap")]
    assert len({header.intindex for header in headers}) == 2
    assert {header.type for header in headers} >= {0, 4}  # to us, from us


def test_the_demo_has_a_bit_of_everything() -> None:
    facts = facts_of("demo.pcapng")
    for fact, least in {
        "tcp": 200,
        "udp": 100,
        "ipv4": 200,
        "ipv6": 100,
        "syn": 8,
        "fin": 6,
        "rst": 1,
        "urg": 1,
        "pure_ack": 20,
        "fragment": 3,
        "ip_options": 1,
        "udp_empty": 1,
        "udp_without_checksum": 1,
        "icmp": 1,
        "arp": 2,
    }.items():
        assert facts[fact] >= least, fact
