"""The generator: repeatable, valid where it says so to scapy and dpkt, and complete in faults."""

from itertools import chain, islice

import dpkt.ip
import dpkt.ip6
import dpkt.loopback
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.compat import raw
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether

from netstack_gro.config import ChecksumState
from tests import builders as b
from tests.builders import ip_offset
from tests.traffic import (
    FAULTS,
    LINKS,
    FlowSpec,
    Traffic,
    TrafficPacket,
    applicable,
    batches,
    fix_checksums,
    generate,
    specs,
)

pytestmark = [pytest.mark.slow, pytest.mark.engineless]

TRANSPORTS = [(family, protocol) for family in (4, 6) for protocol in (b.TCP, b.UDP)]
SCAPY_LINKS = {
    "ethernet": Ether,
    "sll": CookedLinux,
    "sll2": CookedLinuxV2,
}


def flows_of(link: str) -> list[tuple[int, int]]:
    return [kind for kind in TRANSPORTS if f"ipv{kind[0]}" in ("ipv4", "ipv6", link)]


def link_for(name: str) -> str:
    """A link on which a fault makes sense."""
    needs = FAULTS[name][0]
    named = sorted(needs & set(LINKS))
    if named:
        return named[0]
    if "cooked" in needs:
        return "sll"
    return "ethernet" if needs & {"typed", "linked"} or name == "version" else "ip"


def spec_for(name: str) -> tuple[str, FlowSpec]:
    """A link and a flow that a fault makes sense for."""
    link = link_for(name)
    for family, protocol in TRANSPORTS:
        if name in applicable(family, protocol, link):
            return link, FlowSpec(family=family, protocol=protocol, size=100)
    raise AssertionError(f"no flow has use for {name}")


def valid_packets(link: str, count: int) -> list[TrafficPacket]:
    """Ordinary packets that carry a complete checksum."""
    ordinary = chain.from_iterable(generate(11, 4 * count, link=link, fault_rate=0))
    partial = ChecksumState.PARTIAL
    return list(islice((p for p in ordinary if not p.virtio and p.checksum is not partial), count))


def rebuilt_by_scapy(packet: bytes) -> bytes:
    """The IP packet with every length and checksum computed by scapy."""
    layers = IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)
    transport = layers[TCP] if TCP in layers else layers[UDP]
    for layer, fields in ((layers, ("len", "plen", "chksum")), (transport, ("len", "chksum"))):
        for field in fields:
            if field in layer.fields:
                delattr(layer, field)
    return bytes(raw(layers))


def rebuilt_by_dpkt(packet: bytes) -> bytes:
    """The IP packet with every checksum computed by dpkt."""
    layers = dpkt.ip.IP(packet) if packet[0] >> 4 == 4 else dpkt.ip6.IP6(packet)
    layers.data.sum = 0
    if packet[0] >> 4 == 4:
        layers.sum = 0
    return bytes(layers)


@pytest.mark.parametrize("link", LINKS)
def test_the_same_seed_gives_the_same_packets_and_another_seed_others(link: str) -> None:
    def run(seed: int) -> list[list[TrafficPacket]]:
        return list(generate(seed, 400, link=link))

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_batches_hold_as_many_packets_as_asked_for_with_timestamps_that_tell_them_apart() -> None:
    made = list(generate(3, 3001, max_batch=32))
    assert sum(map(len, made)) == 3001
    assert {len(batch) for batch in made} <= set(range(1, 33))
    assert any(len(batch) == 1 for batch in made)
    for batch in made:
        assert len({packet.timestamp_ns for packet in batch}) == len(batch)
    firsts = [min(packet.timestamp_ns for packet in batch) for batch in made]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("link", LINKS)
def test_ordinary_packets_are_what_scapy_builds(link: str) -> None:
    for packet in valid_packets(link, 150):
        inner = packet.data[ip_offset(packet.data, link) :]
        assert rebuilt_by_scapy(inner) == inner
        assert fix_checksums(packet.data, link) == packet.data


def test_ordinary_packets_are_what_dpkt_builds() -> None:
    plain = [
        p.data for p in valid_packets("ip", 500) if p.data[0] >> 4 == 4 or p.data[6] in (6, 17)
    ]
    assert len(plain) > 200
    for packet in plain:
        assert rebuilt_by_dpkt(packet) == packet


@pytest.mark.parametrize("link", SCAPY_LINKS)
def test_link_headers_lead_scapy_to_the_ip_header(link: str) -> None:
    for packet in valid_packets(link, 150):
        frame = SCAPY_LINKS[link](packet.data)
        layer = frame[IP] if IP in frame else frame[IPv6]
        assert raw(layer) == packet.data[ip_offset(packet.data, link) :]


def test_null_headers_lead_dpkt_to_the_ip_header() -> None:
    for packet in valid_packets("null", 150):
        inner = dpkt.loopback.Loopback(packet.data).data
        assert isinstance(inner, dpkt.ip.IP | dpkt.ip6.IP6)
        assert inner.v == packet.data[4] >> 4


def test_every_field_of_a_builder_is_where_scapy_finds_it() -> None:
    fields = {"sport": 1, "dport": 2, "seq": 3, "ack": 4, "window": 6, "urgent": 7, "flags": 0x3FF}
    network = {"tos": 5, "ttl": 9}
    four = IP(
        b.tcp4(
            b"x",
            ident=77,
            df=False,
            options=b"\1\1\1\0",
            tcp_options=b"\1\1\1\1",
            **network,
            **fields,
        )
    )
    assert (four.ihl, four.tos, four.id, four.ttl, int(four.flags)) == (6, 5, 77, 9, 0)
    segment = four[TCP]
    assert (segment.sport, segment.dport, segment.seq, segment.ack) == (1, 2, 3, 4)
    assert (segment.dataofs, segment.window, segment.urgptr, int(segment.flags)) == (6, 6, 7, 0x1FF)
    assert (segment.reserved, bytes(segment.payload)) == (1, b"x")
    fragment = IP(b.udp4(b"x", mf=True, df=True, reserved_bit=True, fragment_offset=5))
    assert (int(fragment.flags), fragment.frag) == (7, 5)
    extensions = [(b.DESTINATION, bytes((0, 0, 1, 4, 0, 0, 0, 0)))]
    six = IPv6(
        b.udp6(b"xyz", flow_label=0x12345, sport=1, dport=2, extensions=extensions, **network)
    )
    assert (six.tc, six.fl, six.hlim, six.plen, six.nh) == (5, 0x12345, 9, 19, b.DESTINATION)
    assert (six[UDP].sport, six[UDP].dport, six[UDP].len) == (1, 2, 11)


def test_vlan_tags_are_where_scapy_finds_them() -> None:
    frame = Ether(b.ethernet(b.tcp4(), tags=[(b.DOT1AD, 0x3007), (b.DOT1Q, 0x4009)]))
    assert (frame[Dot1AD].vlan, frame[Dot1AD].prio, frame[Dot1AD].dei) == (7, 1, 1)
    assert (frame[Dot1Q].vlan, frame[Dot1Q].prio) == (9, 2)


def test_fix_checksums_mends_a_packet_whose_bytes_were_changed() -> None:
    for link, (family, protocol) in ((x, kind) for x in LINKS for kind in flows_of(x)):
        right = b.FRAMES[link](b.BUILDERS[family, protocol](b"some payload"))
        start = ip_offset(right, link)
        broken = bytearray(right)
        transport = start + (20 if family == 4 else 40)
        field = transport + (16 if protocol == b.TCP else 6)
        broken[field : field + 2] = b"\x12\x34"
        if family == 4:
            broken[start + 10 : start + 12] = b"\x56\x78"
        assert bytes(broken) != right
        assert fix_checksums(bytes(broken), link) == right


@pytest.mark.parametrize("link", LINKS)
def test_every_fault_is_produced_in_a_seeded_run(link: str) -> None:
    families = {"ipv4": (4,), "ipv6": (6,)}.get(link, (4, 6))
    wanted = {
        name
        for family, protocol in TRANSPORTS
        if family in families
        for name in applicable(family, protocol, link)
    }
    made = chain.from_iterable(generate(2, 12_000, link=link, fault_rate=0.5, sizes=(100, 50)))
    labels = {name for packet in made for name in packet.label.split("+")}
    assert labels - {""} == wanted


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_the_packet(name: str) -> None:
    link, spec = spec_for(name)

    def stepped(action: str, a: int) -> list[TrafficPacket]:
        traffic = Traffic(link, [spec])
        for _ in range(2):
            traffic.step(0)
        packets = traffic.step(0, action, a) + traffic.step(0)
        return [TrafficPacket(p.data, **{**p.keywords(), "timestamp_ns": 0}) for p in packets]

    assert any(stepped(name, a) != stepped("next", a) for a in range(8))


@pytest.mark.parametrize("link", LINKS)
def test_any_two_faults_can_meet_in_one_packet(link: str) -> None:
    seeds = generate(4, 6000, link=link, fault_rate=1)
    assert sum("+" in packet.label for packet in chain.from_iterable(seeds)) > 300


def test_every_link_and_transport_has_faults_of_its_own() -> None:
    assert set(FAULTS) == {
        name for link in LINKS for kind in TRANSPORTS for name in applicable(*kind, link)
    }


@settings(max_examples=150)
@given(st.sampled_from(LINKS).flatmap(batches))
def test_drawn_batches_are_of_packets_with_the_metadata_that_append_takes(
    batch: list[TrafficPacket],
) -> None:
    assert batch
    keywords = set(batch[0].keywords())
    assert keywords == {
        "aggregated",
        "checksum",
        "interface",
        "timestamp_ns",
        "virtio",
        "vlan",
        "vlan_tpid",
        "wire_length",
    }
    assert all(isinstance(packet.data, bytes) for packet in batch)


@given(specs("ethernet"))
def test_a_drawn_flow_without_faults_is_valid(spec: FlowSpec) -> None:
    traffic = Traffic("ethernet", [spec])
    for packet in [traffic.step(0)[0] for _ in range(3)]:
        mended = fix_checksums(packet.data, "ethernet")
        assert (mended == packet.data) == (spec.state not in ("partial", "vnet"))
