"""Faults of other engines' merge rules for TCP, UDP and IP headers, each as a regression test.

=====================================================  =============================================
fault reported                                         test
=====================================================  =============================================
wrong "more fragments" mask                            a_first_fragment_is_recognised_...
TTL, hop limit, traffic class not compared             a_different_ttl_or_traffic_class_...
a fragment taken for TCP or UDP                        a_later_fragment_is_never_read_...
IPv6 inside a tunnel read as IPv4                      nothing_inside_a_tunnel_is_looked_at
Ethernet padding counted as payload                    padding_never_enters_a_payload
IP ID rules depend on DF                               ids_merge_when_they_can_be_restored
IPv6 judged by a stale IPv4 ID                         ipv6_does_not_depend_on_any_id
fixed and incrementing IDs lost in a round trip        fixed_and_counting_ids_...
CWR and Accurate ECN                                   cwr_is_never_merged, the_ninth_flag_...
a longer datagram appended after a shorter             a_longer_datagram_begins_a_new_train
UDP skipped the network layer's checks                 datagrams_with_other_ip_fields_...
zero UDP checksums                                     datagrams_without_a_checksum_never_merge
plain UDP merging of tunnel datagrams                  tunnel_ports_are_left_alone, udp_can_be_...
more than one level of encapsulation                   nested_encapsulation_passes_through
input that is a super-packet already                   a_super_packet_is_neither_extended_...
a header view that is stale after reshaping            extension_headers_are_compared_...
only the first datagram of a list is translated        nat_in_the_hook_reaches_every_datagram
only the head is translated to the other family        a_change_of_family_reaches_every_segment
payload pulled into the head breaks the geometry       segments_are_cut_by_offset_...
=====================================================  =============================================

Where the project's merge rules are stricter than a report's remedy (zero UDP checksums, padded
frames, CWR, super-packets), the tests hold the rules.
"""

from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from netstack_gro.config import GroConfig, IpIdMode, Limits
from netstack_gro.virtio import GsoType, VirtioHeader
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, ipv4, ipv6, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import RecordingSink, assert_sound, merged

BODY = bytes(range(256)) * 20
Build = Callable[..., bytes]


def pair(build: Build, first: dict[str, Any], second: dict[str, Any]) -> list[bytes]:
    """Two packets of 100 bytes that would merge but for the fields given."""
    packets = []
    for place, fields in enumerate((first, second)):
        own: dict[str, Any] = {"ident": place} if build in (tcp4, udp4) else {}
        if build in (tcp4, tcp6):
            own["seq"] = 1 + 100 * place
        packets.append(build(BODY[:100], **own | fields))
    return packets


def apart(engine: Engine, packets: list[bytes], **how: Any) -> bool:
    """Whether they come out one by one, unchanged and in order."""
    return merged(engine, packets, udp=True, **how).data == packets


def together(engine: Engine, packets: list[bytes], **how: Any) -> bool:
    """Whether they come out as one, from which they can be restored."""
    given = merged(engine, packets, udp=True, **how).given
    return len(given) == 1 and given[0].segments == packets


@pytest.mark.parametrize("build", [tcp4, udp4])
def test_a_first_fragment_is_recognised_by_its_own_bit(engine: Engine, build: Build) -> None:
    for which in ({"mf": True}, {"mf": True, "df": False}, {"reserved_bit": True}):
        assert apart(engine, pair(build, which, {}))
        assert apart(engine, pair(build, {}, which))
    hook = merged(engine, pair(build, {"mf": True}, {}), udp=True)
    assert hook.verdicts == ["FRAGMENT", "OPENED"]


@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
def test_a_different_ttl_or_traffic_class_is_not_merged(engine: Engine, build: Build) -> None:
    assert together(engine, pair(build, {}, {}))
    assert apart(engine, pair(build, {"ttl": 64}, {"ttl": 63}))
    for bit in range(8):  # the class lies in both nibbles of an IPv6 header
        assert apart(engine, pair(build, {}, {"tos": 1 << bit}))


def test_a_later_fragment_is_never_read_as_a_transport_header(engine: Engine) -> None:
    disguised = udp4(BODY[:100])[20:]
    fragment = ipv4(disguised, protocol=17, fragment_offset=185)
    six = ipv6(disguised, protocol=17, extensions=[(b.FRAGMENT, bytes((0, 0, 5, 200, 0, 0, 0, 1)))])
    for packet in (fragment, six):
        hook = merged(engine, [packet, packet], udp=True)
        assert hook.data == [packet, packet]
        assert hook.verdicts == ["FRAGMENT"] * 2


def test_nothing_inside_a_tunnel_is_looked_at(engine: Engine) -> None:
    inner = [ethernet(tcp6(BODY[:100], seq=1 + 100 * place)) for place in range(2)]
    vxlan = [
        udp4(bytes((8, 0, 0, 0, 0, 0, 1, 0)) + frame, dport=4789, ident=place)
        for place, frame in enumerate(inner)
    ]
    hook = merged(engine, vxlan, udp=True)
    assert hook.data == vxlan
    assert hook.verdicts == ["UDP_PORT"] * 2
    outer = merged(engine, vxlan, udp=True, udp_tunnel_ports=())
    assert outer.given[0].gso_type is GsoType.UDP_L4
    assert outer.given[0].segments == vxlan


def test_padding_never_enters_a_payload(engine: Engine) -> None:
    first = ethernet(tcp4(b"1")) + bytes(5)
    assert len(first) == 60
    second = ethernet(tcp4(b"2", seq=2, ident=1)) + bytes(5)
    whole = [ethernet(packet) for packet in pair(tcp4, {}, {})]
    assert apart(engine, [first, second], link="ethernet")
    assert apart(engine, [whole[0], whole[1] + b"\0"], link="ethernet")
    assert apart(engine, [whole[0] + b"\0", whole[1]], link="ethernet")
    assert together(engine, whole, link="ethernet")


@pytest.mark.parametrize("build", [tcp4, udp4])
@pytest.mark.parametrize("df", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "merges"),
    [(7, 7, True), (7, 8, True), (65535, 0, True), (7, 900, False), (7, 9, False), (8, 7, False)],
)
def test_ids_merge_when_they_can_be_restored(
    engine: Engine, build: Build, df: bool, first: int, second: int, merges: bool
) -> None:
    packets = pair(build, {"ident": first, "df": df}, {"ident": second, "df": df})
    assert (together if merges else apart)(engine, packets)


def test_ipv6_does_not_depend_on_any_id(engine: Engine) -> None:
    six = [tcp6(BODY[:100], seq=1 + 100 * place) for place in range(4)]
    four = [tcp4(BODY[:100], seq=1 + 100 * place, ident=57 * place) for place in range(4)]
    mixed = [packet for both in zip(four, six, strict=True) for packet in both]
    hook = merged(engine, mixed)
    assert hook.counts == [1, 4, 1, 1, 1]
    assert hook.given[1].segments == six
    assert hook.given[1].ip_id_mode is IpIdMode.NONE


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((0, 0, 0), [3]),
        ((5, 6, 7), [3]),
        ((0, 0, 1), [2, 1]),
        ((5, 6, 6), [2, 1]),
        ((65534, 65535, 0, 1), [4]),
        ((0, 0, 1, 1), [2, 2]),
    ],
)
@pytest.mark.parametrize("df", [True, False])
def test_fixed_and_counting_ids_survive_a_round_trip(
    engine: Engine, ids: tuple[int, ...], expected: list[int], df: bool
) -> None:
    packets = [
        tcp4(BODY[:100], seq=1 + 100 * place, ident=ident, df=df) for place, ident in enumerate(ids)
    ]
    hook = merged(engine, packets)
    assert hook.counts == expected
    assert [part for packet in hook.given for part in packet.segments] == packets
    fixed = ids[0] == ids[1]
    assert hook.given[0].ip_id_mode is (IpIdMode.FIXED if fixed else IpIdMode.INCREMENT)


def test_cwr_is_never_merged(engine: Engine) -> None:
    packets = [
        tcp4(BODY[:100], seq=1 + 100 * place, ident=place, flags=b.ACK | (b.CWR if cwr else 0))
        for place, cwr in enumerate((0, 0, 1, 1, 0, 0))
    ]
    hook = merged(engine, packets)
    assert hook.counts == [2, 1, 1, 2]
    assert [part for packet in hook.given for part in packet.segments] == packets


@pytest.mark.parametrize("bit", range(12))
def test_the_ninth_flag_and_reserved_bits_are_compared_too(engine: Engine, bit: int) -> None:
    flag = 1 << bit
    packets = pair(tcp4, {}, {"flags": b.ACK ^ flag})
    merges = flag in (b.FIN, b.PSH)
    assert (together if merges else apart)(engine, packets)
    both = pair(tcp4, {"flags": b.ACK ^ flag}, {"flags": b.ACK ^ flag})
    if flag in (b.ACK, b.ECE) or bit > 7:
        assert together(engine, both)
    else:
        assert apart(engine, both)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((100, 200), [100, 200]),
        ((100, 100, 50, 100), [250, 100]),
        ((100, 100, 120), [200, 120]),
        ((100, 50, 50), [150, 50]),
    ],
)
@pytest.mark.parametrize("build", [udp4, udp6])
def test_a_longer_datagram_begins_a_new_train(
    engine: Engine, build: Build, sizes: tuple[int, ...], expected: list[int]
) -> None:
    packets = [
        build(BODY[:size], **({"ident": place} if build is udp4 else {}))
        for place, size in enumerate(sizes)
    ]
    hook = merged(engine, packets, udp=True)
    header = len(packets[0]) - sizes[0]
    assert [len(data) - header for data in hook.data] == expected
    assert [part for packet in hook.given for part in packet.segments] == packets


@pytest.mark.parametrize(
    "second", [{"ttl": 63}, {"tos": 3}, {"df": False}, {"ident": 5}, {"options": bytes(4)}]
)
def test_datagrams_with_other_ip_fields_stay_apart(engine: Engine, second: dict[str, Any]) -> None:
    assert apart(engine, pair(udp4, {}, second))


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("build", [udp4, udp6])
def test_datagrams_without_a_checksum_never_merge(
    engine: Engine, build: Build, first: int | None, second: int | None
) -> None:
    packets = pair(build, {"checksum": first}, {"checksum": second})
    assert apart(engine, packets)
    assert apart(engine, packets, received_checksums="trust")


@pytest.mark.parametrize("port", [4789, 6081])
def test_tunnel_ports_are_left_alone_by_list_or_by_predicate(engine: Engine, port: int) -> None:
    packets = pair(udp4, {"dport": port}, {"dport": port})
    assert apart(engine, packets)
    gro = engine.GroDispatcher(
        lambda given: seen.extend(map(bytes, given)),
        GroConfig(udp=True, udp_tunnel_ports=frozenset()),
    )
    seen: list[bytes] = []
    gro.never_merge = lambda flow: flow.destination_port == port
    gro.dispatch(packets)
    assert seen == packets


def test_udp_can_be_switched_off_for_a_consumer_apart_from_tcp(engine: Engine) -> None:
    sink = RecordingSink(Limits(tcp=True, udp=False))
    merged(engine, [*pair(udp4, {}, {}), *pair(tcp4, {}, {})], sink, udp=True)
    assert sink.counts == [1, 1, 2]


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_nested_encapsulation_passes_through(engine: Engine, depth: int) -> None:
    packets = []
    for innermost in pair(tcp4, {}, {}):
        packet = innermost
        for _ in range(depth):
            packet = ipv4(packet, protocol=4)
        packets.append(packet)
    hook = merged(engine, packets)
    assert hook.data == packets
    assert hook.verdicts == ["OTHER_PROTOCOL"] * 2
    wrapped = [ipv6(packet, protocol=41) for packet in pair(tcp6, {}, {})]
    assert merged(engine, wrapped).data == wrapped


def test_a_super_packet_is_neither_extended_nor_appended(engine: Engine) -> None:
    big = tcp4(BODY[:3000], seq=1001, ident=1)
    for gso_size in (1000, 1400):
        virtio = VirtioHeader(0, GsoType.TCPV4, 40, gso_size, 20, 16)
        packets: list[bytes | TrafficPacket] = [
            tcp4(BODY[:1000]),
            TrafficPacket(big, virtio=virtio),
            tcp4(BODY[:1000], seq=4001, ident=4),
            tcp4(BODY[:1000], seq=5001, ident=5),
        ]
        hook = merged(engine, packets)
        assert hook.verdicts == ["OPENED", "ALREADY_AGGREGATED", "MERGED"]
        assert hook.reasons[0] == "PASSED"
        assert hook.given[1].data == big
        assert hook.given[1].gso_segs == -(-3000 // gso_size)
    unknown: list[bytes | TrafficPacket] = [
        tcp4(BODY[:1000]),
        TrafficPacket(big, aggregated=True),
    ]
    assert merged(engine, unknown).verdicts == ["OPENED", "ALREADY_AGGREGATED"]


def test_extension_headers_are_compared_in_the_packet_that_is_delivered(engine: Engine) -> None:
    def options(last: int) -> dict[str, Any]:
        return {"extensions": [(b.HOP_BY_HOP, bytes((0, 0, 1, 4, 0, 0, 0, last)))]}

    assert together(engine, pair(tcp6, options(1), options(1)))
    assert apart(engine, pair(tcp6, options(1), options(2)))
    assert apart(engine, pair(tcp6, options(1), {}))
    assert apart(engine, pair(tcp6, {}, options(1)))


def test_nat_in_the_hook_reaches_every_datagram(engine: Engine) -> None:
    queries = pair(udp4, {"dport": 53}, {"dport": 53})
    cut: list[bytes] = []

    def hook(given: list[Any]) -> None:
        (packet,) = given
        packet.header[16:20] = bytes((9, 9, 9, 9))
        cut.extend(packet.segments())

    engine.GroDispatcher(hook, GroConfig(udp=True)).dispatch(queries)
    assert [IP(part).dst for part in cut] == ["9.9.9.9", "9.9.9.9"]
    assert [bytes(IP(part)[UDP].payload) for part in cut] == [BODY[:100]] * 2
    assert_sound(cut)


def test_a_change_of_family_reaches_every_segment(engine: Engine) -> None:
    packets = [tcp4(BODY[:100], seq=1 + 100 * place, ident=place) for place in range(3)]
    cut: list[bytes] = []

    def hook(given: list[Any]) -> None:
        (packet,) = given
        translated = ipv6(bytes(packet)[20:], protocol=6)
        virtio = VirtioHeader(0, GsoType.TCPV6, 60, packet.gso_size, 40, 16)
        cut.extend(engine.segment(translated, virtio))

    engine.GroDispatcher(hook).dispatch(packets)
    assert [IPv6(part).version for part in cut] == [6, 6, 6]
    assert [part[60:] for part in cut] == [packet[40:] for packet in packets]
    assert_sound(cut)


def test_segments_are_cut_by_offset_and_not_by_buffer(engine: Engine) -> None:
    sizes = (11, 11, 10)
    packets = [udp4(BODY[:size], ident=place) for place, size in enumerate(sizes)]
    cut: list[bytes] = []

    def hook(given: list[Any]) -> None:
        (packet,) = given
        data = b"".join(packet.buffers())
        pulled = [data[:40], data[40:50], data[50:]]  # 12, 10 and 10 bytes of payload
        cut.extend(engine.segment(b"".join(pulled), packet.virtio_header(), packet.ip_id_mode))

    engine.GroDispatcher(hook, GroConfig(udp=True)).dispatch(packets)
    assert cut == packets
