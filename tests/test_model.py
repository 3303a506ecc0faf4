"""The model says what the merge rules say, row by row, and agrees with itself on bytes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netstack_gro.config import ChecksumState, GroConfig, IpIdMode, Limits
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, VirtioHeader
from tests import builders as b
from tests.builders import TrafficPacket, tcp4, tcp6, udp4, udp6
from tests.model import (
    Group,
    Observed,
    coalesce,
    cut,
    deliver,
    difference,
    flow_key,
    parse,
)
from tests.test_traffic import spec_for
from tests.traffic import FAULTS, LINKS, Traffic, batches, configs, generate
from tests.vectors import VECTORS, Vector, payload_size

pytestmark = [pytest.mark.slow, pytest.mark.engineless]

UNKNOWN, VERIFIED, PARTIAL = ChecksumState.UNKNOWN, ChecksumState.VERIFIED, ChecksumState.PARTIAL

VERDICTS = {
    "link_truncated": Verdict.LINK_TRUNCATED,
    "arp": Verdict.NOT_IP,
    "ether_type": Verdict.NOT_IP,
    "null_unknown": Verdict.NOT_IP,
    "loop_unknown": Verdict.NOT_IP,
    "vlan_three": Verdict.VLAN_DEPTH,
    "version": Verdict.IP_VERSION,
    "ether_type_other_ip": Verdict.IP_VERSION,
    "empty": Verdict.IP_TRUNCATED,
    "extension_beyond": Verdict.IP_TRUNCATED,
    "ihl_short": Verdict.IP_HEADER_LENGTH,
    "total_below_header": Verdict.IP_HEADER_LENGTH,
    "total_zero": Verdict.IP_LENGTH_ZERO,
    "payload_zero": Verdict.IP_LENGTH_ZERO,
    "jumbo": Verdict.IP_LENGTH_ZERO,
    "length_long": Verdict.TRUNCATED,
    "wire_length": Verdict.TRUNCATED,
    "length_short": Verdict.TRAILING_BYTES,
    "padding": Verdict.TRAILING_BYTES,
    "fcs": Verdict.TRAILING_BYTES,
    "ip_options": Verdict.IP_OPTIONS,
    "ihl_long": Verdict.IP_OPTIONS,
    "fragment_first": Verdict.FRAGMENT,
    "fragment_middle": Verdict.FRAGMENT,
    "fragment_last": Verdict.FRAGMENT,
    "fragment_header": Verdict.FRAGMENT,
    "reserved_bit": Verdict.IP_RESERVED_BIT,
    "header_checksum_bad": Verdict.IP_CHECKSUM,
    "header_checksum_zero": Verdict.IP_CHECKSUM,
    "header_checksum_ffff": Verdict.IP_CHECKSUM,
    "hop_by_hop_late": Verdict.EXTENSION_HEADER,
    "routing_left": Verdict.EXTENSION_HEADER,
    "esp_header": Verdict.EXTENSION_HEADER,
    "ah_header": Verdict.EXTENSION_HEADER,
    "other_extension": Verdict.EXTENSION_HEADER,
    "many_extensions": Verdict.EXTENSION_HEADER,
    "icmp": Verdict.OTHER_PROTOCOL,
    "other_protocol": Verdict.OTHER_PROTOCOL,
    "transport_truncated": Verdict.TRANSPORT_TRUNCATED,
    "data_offset_short": Verdict.TCP_DATA_OFFSET,
    "data_offset_long": Verdict.TCP_DATA_OFFSET,
    "syn": Verdict.TCP_SYN,
    "rst": Verdict.TCP_RST,
    "urg": Verdict.TCP_URG,
    "cwr": Verdict.TCP_CWR,
    "pure_ack": Verdict.TCP_NO_PAYLOAD,
    "udp_length_long": Verdict.UDP_LENGTH,
    "udp_length_short": Verdict.UDP_LENGTH,
    "udp_empty": Verdict.UDP_EMPTY,
    "tunnel_port": Verdict.UDP_PORT,
    "port_4500": Verdict.UDP_PORT,
    "aggregated": Verdict.ALREADY_AGGREGATED,
    "vnet_super": Verdict.ALREADY_AGGREGATED,
    "vnet_super_ecn": Verdict.ALREADY_AGGREGATED,
    "vnet_super_complete": Verdict.ALREADY_AGGREGATED,
    "vnet_wrong_type": Verdict.BAD_VNET_HEADER,
    "vnet_ufo": Verdict.BAD_VNET_HEADER,
    "vnet_tunnel": Verdict.BAD_VNET_HEADER,
    "vnet_no_size": Verdict.BAD_VNET_HEADER,
    "vnet_start": Verdict.BAD_VNET_HEADER,
    "vnet_offset": Verdict.BAD_VNET_HEADER,
    "vnet_partial_start": Verdict.BAD_VNET_HEADER,
    "vnet_partial_offset": Verdict.BAD_VNET_HEADER,
    "checksum_bad": Verdict.BAD_CHECKSUM,
    "payload_flip": Verdict.BAD_CHECKSUM,
}
"""What a fault makes of a packet between two ordinary ones, whatever its variant."""

BARRIERS = {
    Verdict.LINK_TRUNCATED,
    Verdict.VLAN_DEPTH,
    Verdict.IP_VERSION,
    Verdict.IP_TRUNCATED,
    Verdict.IP_HEADER_LENGTH,
    Verdict.FRAGMENT,
    Verdict.IP_CHECKSUM,
}
BARRIER_FAULTS = {"esp_header", "ah_header", "other_extension", "many_extensions"}
WITHOUT_FLOW = {Verdict.NOT_IP, Verdict.OTHER_PROTOCOL}
OTHER_FLOW = {"tunnel_port", "port_4500"}  # the port is part of the key
SOMETIMES = {"transport_truncated", "length_short", "ihl_long"}  # the ports may be out of reach

REASONS = {
    "vlan_priority": CloseReason.LINK_HEADER,
    "vlan_dei": CloseReason.LINK_HEADER,
    "null_order": CloseReason.LINK_HEADER,
    "sll_reserved": CloseReason.LINK_HEADER,
    "meta_vlan_priority": CloseReason.LINK_HEADER,
    "tos": CloseReason.TOS,
    "ecn": CloseReason.TOS,
    "ttl": CloseReason.TTL,
    "df": CloseReason.DF,
    "flow_label": CloseReason.FLOW_LABEL,
    "extension_bytes": CloseReason.EXTENSION_HEADERS,
    "hop_by_hop": CloseReason.EXTENSION_HEADERS,
    "eight_extensions": CloseReason.EXTENSION_HEADERS,
    "ack": CloseReason.ACK,
    "window": CloseReason.WINDOW,
    "urgent": CloseReason.URGENT_POINTER,
    "ece": CloseReason.TCP_FLAGS,
    "ae": CloseReason.TCP_FLAGS,
    "reserved_bits": CloseReason.TCP_FLAGS,
    "no_ack": CloseReason.TCP_FLAGS,
    "option_bytes": CloseReason.TCP_OPTIONS,
    "option_length": CloseReason.TCP_OPTIONS,
    "gap": CloseReason.SEQUENCE,
    "duplicate": CloseReason.SEQUENCE,
    "overlap": CloseReason.SEQUENCE,
    "swap": CloseReason.SEQUENCE,
    "wrap": CloseReason.SEQUENCE,
    "id_jump": CloseReason.IP_ID,
    "id_repeat": CloseReason.IP_ID,
    "header_checksum_is_zero": CloseReason.IP_ID,
    "verified": CloseReason.CHECKSUM_STATE,
    "partial": CloseReason.CHECKSUM_STATE,
    "partial_bad": CloseReason.CHECKSUM_STATE,
    "data_valid": CloseReason.CHECKSUM_STATE,
    "vnet_partial": CloseReason.CHECKSUM_STATE,
    "larger": CloseReason.LARGER,
}
"""Which field of a fault's packet closes the flow's head of two segments."""


def given_packets(packets: Sequence[bytes | TrafficPacket]) -> list[TrafficPacket]:
    return [p if isinstance(p, TrafficPacket) else TrafficPacket(p) for p in packets]


def grouped(*packets: bytes | TrafficPacket, **config: Any) -> list[list[int]]:
    """The inputs in each delivered packet."""
    return [g.inputs for g in deliver(given_packets(packets), GroConfig(udp=True, **config))]


def groups(*packets: bytes | TrafficPacket, **config: Any) -> list[Group]:
    return deliver(given_packets(packets), GroConfig(udp=True, **config))


def stream(count: int, build: Callable[..., bytes] = tcp4, **fields: Any) -> list[bytes]:
    """Segments of 100 bytes in order; of UDP only the contents go on."""
    packets = []
    for number in range(count):
        if build in (tcp4, tcp6):
            fields["seq"] = 100 * number
        if build in (tcp4, udp4):
            fields["ident"] = number
        packets.append(build(bytes((number,)) * 100, **fields))
    return packets


# --- the published table, and every fault --------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_of_the_table_is_delivered_as_the_table_says(vector: Vector) -> None:
    packets = [TrafficPacket(packet) for packet in vector.packets]
    sizes = []
    for group in deliver(packets, GroConfig(link=vector.link, udp=True)):  # type: ignore[arg-type]
        members = [payload_size(vector.packets[index]) for index in group.inputs]
        sizes.append(sum(members))
    assert sizes == vector.expect


def surrounded(name: str, a: int) -> tuple[list[Group], int]:
    """Two segments each of a bystander's flow and of a flow, a faulty one, and one more of each.

    Gives the groups and the index of the faulty packet.
    """
    link, spec = spec_for(name)
    spec = replace(
        spec, tags=int(link == "ethernet" and "vlan" in name), vlan=5 if "meta" in name else None
    )
    bystander = replace(spec, port=9)
    traffic = Traffic(link, [spec, bystander])
    packets = [packet for flow in (1, 1, 0, 0) for packet in traffic.step(flow)]
    packets += traffic.step(0, name, a)
    packets += traffic.step(0) + traffic.step(1)
    return deliver(packets, GroConfig(link=link, udp=True)), 4  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VERDICTS)
def test_a_fault_has_its_verdict_and_closes_what_it_must(name: str) -> None:
    for a in range(60):
        found, faulty = surrounded(name, a)
        bystander, head = found[0], found[1]
        own = next(group for group in found if faulty in group.inputs)
        assert own.verdicts == {VERDICTS[name]}, a
        assert own.inputs == [faulty]
        barrier = VERDICTS[name] in BARRIERS or name in BARRIER_FAULTS
        if name in SOMETIMES:
            assert bystander.reasons <= {CloseReason.BARRIER, CloseReason.BATCH_END}
        elif barrier:
            assert bystander.reasons == head.reasons == {CloseReason.BARRIER}
        else:
            assert bystander.reasons == {CloseReason.BATCH_END}
            if VERDICTS[name] is Verdict.BAD_CHECKSUM:
                assert head.reasons == {CloseReason.BAD_CHECKSUM}
            elif VERDICTS[name] in WITHOUT_FLOW or name in OTHER_FLOW:
                assert head.reasons <= {
                    CloseReason.SEQUENCE,
                    CloseReason.IP_ID,
                    CloseReason.BATCH_END,
                }
            else:
                assert head.reasons == {CloseReason.PASSED}


@pytest.mark.parametrize("name", REASONS)
def test_a_change_closes_the_head_for_its_reason_and_opens_its_own(name: str) -> None:
    for a in (number for number in range(40) if not number & 2):  # flags keep their payload
        found, faulty = surrounded(name, a)
        assert found[1].reasons == {REASONS[name]}, a
        assert [group.inputs[0] for group in found[:3]] == [0, 2, faulty]
        assert found[0].reasons == {CloseReason.BATCH_END}


def test_every_fault_is_in_a_table_or_leaves_the_packet_as_good_as_any() -> None:
    rest = set(FAULTS) - set(VERDICTS) - set(REASONS)
    assert rest == {
        "bsd_family", "checksum_ffff", "checksum_is_zero", "checksum_none", "extension_headers",
        "fill", "fin", "flag_bits", "flip", "flip_fixed", "huge", "interface", "long_headers",
        "loop_family", "mac_destination", "mac_source", "meta_vlan", "meta_vlan_none",
        "meta_vlan_tpid", "one_byte", "psh", "random_body", "random_bytes", "shorter",
        "sll_address", "sll_hardware", "sll_interface", "sll_packet_type", "snapped", "truncated",
        "tunnel_source", "unknown", "verified_bad", "vlan_add", "vlan_id", "vlan_tpid",
        "vnet_none", "vnet_overridden",
    }  # fmt: skip


def test_a_seeded_run_meets_every_verdict_and_every_reason() -> None:
    verdicts: set[Verdict] = set()
    reasons: set[CloseReason] = set()
    for link in LINKS:
        config = GroConfig(link=link, udp=True, max_tcp_segments=10)  # type: ignore[arg-type]
        for batch in generate(8, 8000, link=link, fault_rate=0.3):
            for group in deliver(batch, config):
                verdicts |= group.verdicts
                reasons |= group.reasons
    told = {Verdict.DISABLED, Verdict.PROTOCOL_OFF, Verdict.NEVER_MERGE}
    assert verdicts == set(Verdict) - told
    assert reasons == set(CloseReason)


# --- what holds for any batch --------------------------------------------------------------------


def check_batch(batch: list[TrafficPacket], config: GroConfig) -> None:
    found = deliver(batch, config)
    assert sorted(index for group in found for index in group.inputs) == list(range(len(batch)))
    firsts = [group.inputs[0] for group in found]
    assert firsts == sorted(firsts)
    latest: dict[object, int] = {}
    for group in found:
        assert group.inputs == sorted(group.inputs)
        for index in group.inputs:
            packet = parse(batch[index].data, config.link)
            if packet.addressed:
                key = flow_key(packet, batch[index].interface, batch[index].vlan)
                assert latest.get(key, -1) < index
                latest[key] = index
        if group.kind == "merged":
            check_merged(group, [batch[index].data for index in group.inputs], config.link)


def check_merged(group: Group, originals: list[bytes], link: str) -> None:
    whole = coalesce(originals, link)
    again = cut(whole, group.gso_size, group.ip_id_mode, link)
    if group.checksum is UNKNOWN:
        assert again == originals
    else:
        assert again == [b.fix_checksums(original, link) for original in originals]
    assert b.fix_checksums(whole, link) == whole


@pytest.mark.parametrize("link", LINKS)
def test_inputs_are_conserved_in_order_and_restored_from_what_is_merged(link: str) -> None:
    config = GroConfig(link=link, udp=True)  # type: ignore[arg-type]
    for batch in generate(9, 6000, link=link):
        check_batch(batch, config)


@settings(max_examples=200)
@given(st.data())
def test_drawn_batches_are_conserved_in_order_under_any_configuration(data: st.DataObject) -> None:
    link = data.draw(st.sampled_from(LINKS))
    check_batch(data.draw(batches(link)), data.draw(configs(link)))


def test_merging_is_what_mostly_happens_in_seeded_traffic() -> None:
    made = list(generate(10, 5000))
    found = list(chain.from_iterable(deliver(batch, GroConfig(udp=True)) for batch in made))
    assert sum(len(group.inputs) for group in found if group.kind == "merged") > 2500


# --- single rules --------------------------------------------------------------------------------


def test_a_batch_of_one_is_alone_when_it_is_dispatched_and_looked_at_when_not() -> None:
    one = [TrafficPacket(tcp4(b"x"))]
    assert deliver(one, GroConfig())[0].verdicts == {Verdict.ALONE}
    assert deliver(one, GroConfig(), dispatched=False)[0].verdicts == {Verdict.OPENED}
    assert deliver(one * 2, GroConfig(), enabled=False)[0].verdicts == {Verdict.DISABLED}
    assert deliver([], GroConfig()) == []


def test_a_bad_checksum_is_certain_only_where_a_merge_was_at_stake() -> None:
    first, second, third = stream(3)
    bad = tcp4(b"y" * 100, seq=100, ident=1, checksum=1)
    assert groups(first, bad)[1].verdicts == {Verdict.BAD_CHECKSUM}
    late = groups(bad, first, third)[0]
    assert late.verdicts == {Verdict.BAD_CHECKSUM, Verdict.OPENED}
    assert late.kind == "passed"
    assert grouped(first, bad, third) == [[0], [1], [2]]
    assert grouped(first, second, third, received_checksums="trust") == [[0, 1, 2]]
    assert grouped(first, bad, received_checksums="trust") == [[0, 1]]


def test_a_transport_checksum_of_ffff_is_not_the_one_that_tcp_sends() -> None:
    first = tcp4(bytes(100), seq=0, ident=0)
    zero = bytes(98)
    word = parse(tcp4(bytes(2) + zero, seq=100, ident=1)).checksum.to_bytes(2, "big")
    assert grouped(first, tcp4(word + zero, seq=100, ident=1, checksum=0)) == [[0, 1]]
    assert grouped(first, tcp4(word + zero, seq=100, ident=1, checksum=0xFFFF)) == [[0], [1]]


def test_a_udp_checksum_of_ffff_is_the_one_that_udp_sends_for_zero() -> None:
    word = parse(udp4(bytes(100), ident=1)).checksum.to_bytes(2, "big")
    second = udp4(word + bytes(98), ident=1)
    assert parse(second).checksum == 0xFFFF
    assert grouped(udp4(bytes(100)), second) == [[0, 1]]


def test_a_head_and_what_extends_it_were_received_in_the_same_state() -> None:
    first, second = stream(2)
    half = [tcp4(bytes(100), seq=100 * n, ident=n, partial=True) for n in range(2)]
    needs = VirtioHeader(NEEDS_CSUM, csum_start=20, csum_offset=16)

    def state(packet: bytes, checksum: ChecksumState | None, **more: Any) -> TrafficPacket:
        return TrafficPacket(packet, checksum=checksum, **more)

    assert grouped(state(first, VERIFIED), state(second, None)) == [[0], [1]]
    assert grouped(state(first, UNKNOWN), state(second, None)) == [[0, 1]]
    assert grouped(state(half[0], PARTIAL), state(half[1], None, virtio=needs)) == [[0, 1]]
    assert grouped(state(half[0], PARTIAL), state(second, PARTIAL)) == [[0], [1]]
    assert grouped(state(half[0], VERIFIED), state(half[1], VERIFIED, virtio=needs)) == [[0, 1]]


def test_a_vnet_header_is_judged_behind_everything_that_is_wrong_with_the_packet() -> None:
    fits = VirtioHeader(NEEDS_CSUM, 1 | GSO_ECN, 40, 1000, 20, 16)
    other = VirtioHeader(NEEDS_CSUM, 4, 40, 1000, 20, 16)
    packet = tcp4(bytes(2500), partial=True)
    for header, verdict in ((fits, Verdict.ALREADY_AGGREGATED), (other, Verdict.BAD_VNET_HEADER)):
        found = groups(TrafficPacket(packet, virtio=header), packet)
        assert found[0].verdicts == {verdict}
    syn = TrafficPacket(tcp4(bytes(2500), flags=b.SYN), virtio=fits)
    assert groups(syn, syn)[0].verdicts == {Verdict.TCP_SYN}


def test_psh_and_fin_end_a_head_and_what_does_not_extend_one_stands_alone() -> None:
    segments = [tcp4(bytes(100), seq=100 * n, ident=n) for n in range(4)]
    pushed = tcp4(bytes(100), seq=100, ident=1, flags=b.ACK | b.PSH)
    assert grouped(segments[0], pushed, *segments[2:]) == [[0, 1], [2, 3]]
    assert grouped(pushed, *segments[2:]) == [[0], [1, 2]]
    last = tcp4(bytes(40), seq=100, ident=1, flags=b.ACK | b.PSH | b.FIN)
    found = groups(segments[0], last)
    assert found[0].reasons == {CloseReason.SHORT}
    assert parse(coalesce([segments[0], last])).flags == b.ACK | b.PSH | b.FIN


def test_segment_limits_close_a_head_at_the_packet_that_would_exceed_them() -> None:
    assert grouped(*stream(5), max_tcp_segments=2) == [[0, 1], [2, 3], [4]]
    assert grouped(*stream(5, udp4), max_udp_segments=3) == [[0, 1, 2], [3, 4]]
    assert groups(*stream(3), max_tcp_segments=2)[0].reasons == {CloseReason.COUNT}
    end = {CloseReason.COUNT, CloseReason.BATCH_END}
    assert groups(*stream(2), max_tcp_segments=2)[0].reasons == end


def test_size_limits_count_the_ip_header_and_where_asked_the_link_header() -> None:
    assert grouped(*stream(4), max_size=40 + 300) == [[0, 1, 2], [3]]
    assert grouped(*stream(4), max_size=40 + 299) == [[0, 1], [2, 3]]
    assert groups(*stream(2), max_size=139)[0].verdicts == {Verdict.TOO_LARGE}
    assert grouped(*stream(4, tcp6), max_size=60 + 299) == [[0, 1], [2, 3]]
    frames = [b.ethernet(packet, tags=[(b.DOT1Q, 1)]) for packet in stream(4)]
    assert grouped(*frames, link="ethernet", max_frame=18 + 340) == [[0, 1, 2], [3]]
    assert grouped(*frames, link="ethernet", max_frame=18 + 339) == [[0, 1], [2, 3]]


def test_headers_of_more_than_256_bytes_are_not_merged() -> None:
    for words, verdict in ((46, Verdict.MERGED), (47, Verdict.HEADERS_TOO_LONG)):
        header = bytes((0, words // 2 - 1, 1, 8 * (words // 2) - 4)) + bytes(8 * (words // 2) - 4)
        fields = {"extensions": [(b.DESTINATION, header)], "tcp_options": bytes(words % 2 * 4 + 12)}
        packets = [tcp6(b"x", seq=n, **fields) for n in range(2)]
        assert len(packets[0]) - 1 == 256 + 4 * (words - 46)
        assert groups(*packets)[0].verdicts == {verdict}
    frames = [b.ethernet(packet) for packet in packets]
    assert groups(*frames, link="ethernet")[0].verdicts == {Verdict.HEADERS_TOO_LONG}


def test_equal_ip_ids_merge_as_the_consumer_allows() -> None:
    for df in (True, False):
        equal = [tcp4(bytes(100), seq=100 * n, ident=7, df=df) for n in range(2)]
        assert grouped(*equal) == [[0, 1]]
        assert groups(*equal)[0].ip_id_mode is IpIdMode.FIXED
        assert (grouped(*equal, fixed_ip_ids="df") == [[0, 1]]) is df
        assert grouped(*equal, fixed_ip_ids="refuse") == [[0], [1]]


def test_the_stricter_of_configuration_and_limits_wins() -> None:
    packets = given_packets(stream(4))
    limits = Limits(max_size=240, max_tcp_segments=3, udp=False)
    config = GroConfig(udp=True, max_tcp_segments=4)
    assert [g.inputs for g in deliver(packets, config, limits=limits)] == [[0, 1], [2, 3]]
    datagrams = given_packets(stream(2, udp4))
    assert deliver(datagrams, config, limits=limits)[0].verdicts == {Verdict.PROTOCOL_OFF}


def test_flows_are_told_apart_by_interface_addresses_tags_and_ports() -> None:
    first, second = stream(2)
    for fields in ({"sport": 1}, {"dport": 1}, {"source": "10.9.9.9"}, {"destination": "10.9.9.9"}):
        other = tcp4(bytes(100), seq=50, **fields)
        assert grouped(first, other, second) == [[0, 2], [1]]
    assert grouped(first, TrafficPacket(second, interface=1)) == [[0], [1]]
    tagged = [TrafficPacket(packet, vlan=tci) for packet, tci in ((first, 5), (second, 0x2005))]
    found = groups(*tagged)
    assert found[0].reasons == {CloseReason.LINK_HEADER}
    assert groups(tagged[0], TrafficPacket(second, vlan=6))[0].reasons == {CloseReason.BATCH_END}


# --- bytes ------------------------------------------------------------------------------------


def test_cutting_leaves_a_packet_that_needs_none_and_keeps_cwr_on_the_first() -> None:
    packet = tcp4(bytes(range(250)), flags=b.ACK | b.CWR | b.PSH, seq=2**32 - 100, ident=65535)
    assert cut(packet, 250) == [packet]
    pieces = [parse(piece) for piece in cut(packet, 100)]
    assert [piece.flags & (b.CWR | b.PSH) for piece in pieces] == [b.CWR, 0, b.PSH]
    assert [piece.seq for piece in pieces] == [2**32 - 100, 0, 100]
    assert [piece.ident for piece in pieces] == [65535, 0, 1]
    datagrams = [parse(piece) for piece in cut(udp6(bytes(200)), 100)]
    assert [len(piece.payload) for piece in datagrams] == [100, 100]
    assert all(piece.verdict is None for piece in datagrams)


def test_a_difference_is_found_whatever_it_is() -> None:
    expected = groups(*stream(2), tcp4(b"", seq=200))
    merged = Observed((0, 1), Verdict.MERGED, CloseReason.PASSED)
    passed = Observed((2,), Verdict.TCP_NO_PAYLOAD, CloseReason.NOT_HELD)
    assert difference(expected, [merged, passed]) is None
    for wrong in (
        [merged],
        [merged, passed, passed],
        [Observed((0,), Verdict.MERGED, CloseReason.PASSED), passed],
        [Observed((0, 1), Verdict.OPENED, CloseReason.PASSED), passed],
        [Observed((0, 1), Verdict.MERGED, CloseReason.BATCH_END), passed],
    ):
        assert difference(expected, wrong)
    bad = groups(tcp4(b"x", checksum=1), tcp4(b"x", sport=1))
    other = Observed((1,), Verdict.OPENED, CloseReason.BATCH_END)
    assert not difference(bad, [Observed((0,), Verdict.OPENED, CloseReason.BATCH_END), other])
    assert not difference(bad, [Observed((0,), Verdict.BAD_CHECKSUM, CloseReason.NOT_HELD), other])
    assert difference(bad, [Observed((0,), Verdict.OPENED, CloseReason.NOT_HELD), other])
