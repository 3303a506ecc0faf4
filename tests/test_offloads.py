"""What is recognised in captured packets: checksums to be filled in, and several in one."""

from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.verdicts import Verdict
from tests.builders import (
    ACK,
    DESTINATION,
    FRAGMENT,
    ROUTING,
    SYN,
    ethernet,
    ipv4,
    ipv6,
    null,
    ones_sum,
    pseudo_sum,
    sll2,
    tcp4,
    tcp6,
    udp4,
    udp6,
)
from tests.captures import ETHERNET, RAW, Shot, capture, frames, payloads, run, segments
from tests.engines import Engine

# --- checksums that were still to be filled in ---------------------------------------------------


def found_in(engine: Engine, packet: bytes, link: str = "ip", **options: Any) -> str:
    """What the recogniser says of one packet, as the names of its bits."""
    module = engine.module("dispatchers.offloads")
    recogniser = module.Recogniser(link, 0, module.MssTable(), options.pop("mtu", None))
    found = module.Offload(recogniser.examine(packet, options.pop("wire_length", len(packet))))
    return "|".join(bit.name for bit in module.Offload if bit in found)


WRAP: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("ip", bytes),
    ("ethernet", ethernet),
    ("ethernet", lambda packet: ethernet(packet, tags=[(0x88A8, 100), (0x8100, 5)])),
    ("sll2", sll2),
    ("null", lambda packet: null(packet, big=True)),
    ("null", null),
]


@pytest.mark.parametrize(("link", "wrap"), WRAP)
@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
@pytest.mark.parametrize("size", [1, 100, 101, 1448])
def test_a_checksum_that_is_the_pseudo_header_sum_is_partial_and_a_right_or_wrong_one_is_not(
    engine: Engine, link: str, wrap: Callable[[bytes], bytes], build: Any, size: int
) -> None:
    payload = bytes(range(1, 256)) * 6
    assert found_in(engine, wrap(build(payload[:size], partial=True)), link) == "PARTIAL"
    assert found_in(engine, wrap(build(payload[:size])), link) == ""
    assert found_in(engine, wrap(build(payload[:size], checksum=0x1234)), link) == ""


@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
@pytest.mark.parametrize("payload", [b"\0\0even", b"\0\0odd"])
def test_a_checksum_that_is_right_both_ways_is_complete(
    engine: Engine, build: Any, payload: bytes
) -> None:
    packet = bytearray(build(payload, partial=True))
    start = 20 if build in (tcp4, udp4) else 40
    protocol = 6 if build in (tcp4, tcp6) else 17
    addresses = bytes(packet[12:20] if start == 20 else packet[8:40])
    half = len(addresses) // 2
    pseudo = pseudo_sum(addresses[:half], addresses[half:], protocol, len(packet) - start)
    # The first word of the payload is what makes all of it add up to nothing.
    word = -(pseudo + ones_sum(packet[start:])) % 0xFFFF
    at = len(packet) - len(payload)
    packet[at : at + 2] = word.to_bytes(2, "big")
    assert found_in(engine, bytes(packet)) == ""
    packet[-1] ^= 1
    assert found_in(engine, bytes(packet)) == "PARTIAL"


def test_fragments_other_protocols_and_cut_packets_are_not_judged(engine: Engine) -> None:
    segment = tcp4(b"data", partial=True)[20:]
    assert found_in(engine, ipv4(segment, protocol=6, mf=True)) == ""
    assert found_in(engine, ipv4(segment, protocol=6, fragment_offset=8)) == ""
    assert found_in(engine, ipv4(segment, protocol=47)) == ""
    whole = tcp4(b"data", partial=True)
    assert found_in(engine, whole, wire_length=len(whole) + 1) == ""
    assert found_in(engine, whole[:-1], wire_length=len(whole)) == ""
    extension = (FRAGMENT, bytes(8))
    assert found_in(engine, tcp6(b"data", partial=True, extensions=[extension])) == ""


def test_ipv6_extension_headers_are_stepped_over(engine: Engine) -> None:
    options = (DESTINATION, bytes((0, 0, 1, 4, 0, 0, 0, 0)))
    assert found_in(engine, tcp6(b"data", partial=True, extensions=[options])) == "PARTIAL"
    routing = (ROUTING, bytes((0, 0, 4, 1, 0, 0, 0, 0)))  # another destination's checksum
    assert found_in(engine, tcp6(b"data", partial=True, extensions=[routing])) == ""
    many = [options] * 9
    assert found_in(engine, tcp6(b"data", partial=True, extensions=many)) == ""


def test_every_prefix_of_a_packet_is_taken_without_an_error(engine: Engine) -> None:
    options = (DESTINATION, bytes((0, 0, 1, 4, 0, 0, 0, 0)))
    for packet in (
        tcp4(b"data", flags=SYN, tcp_options=b"\x02\x04\x05\xb4"),
        tcp4(b"", options=bytes(40)),
        tcp6(b"data", extensions=[options] * 8),
        udp6(b"data"),
    ):
        for link, wrap in WRAP:
            frame = wrap(packet)
            for length in range(len(frame)):
                found_in(engine, frame[:length], link, wire_length=len(frame))
                found_in(engine, frame[:length], link)


def test_an_empty_ip_checksum_is_recognised_unless_zero_is_right(engine: Engine) -> None:
    assert found_in(engine, tcp4(b"data", header_checksum=0)) == "IP_CHECKSUM"
    assert found_in(engine, tcp4(b"data", header_checksum=0, partial=True)) == "PARTIAL|IP_CHECKSUM"
    assert found_in(engine, tcp4(b"data", header_checksum=0, mf=True)) == "IP_CHECKSUM"
    # An ID for which the right checksum is 0.
    header = ipv4(b"", protocol=6, ident=0, header_checksum=0)
    ident = 0xFFFF - ones_sum(header)
    right = tcp4(b"", ident=(ident - 20) % 0xFFFF, header_checksum=0)
    assert not ones_sum(right[:20])
    assert found_in(engine, right) == ""


def test_a_partial_checksum_behind_a_damaged_ip_header_is_left_alone(engine: Engine) -> None:
    assert found_in(engine, tcp4(b"data", header_checksum=0x1234, partial=True)) == ""


def test_partial_segments_are_merged_and_delivered_with_complete_checksums(engine: Engine) -> None:
    sent = segments(3, partial=True, header_checksum=0)
    collector, stats = run(engine, capture(frames(sent), [ETHERNET]))
    (packet,) = collector.packets
    assert packet.packets == 3
    assert stats.partial_checksums == 3
    assert stats.empty_ip_checksums == 3
    assert list(packet.segments()) == frames(segments(3))


def test_partial_segments_and_complete_ones_do_not_merge(engine: Engine) -> None:
    packets = segments(4)
    packets[2:] = segments(4, partial=True)[2:]
    collector, stats = run(engine, capture(packets))
    assert payloads(collector.packets) == [2, 2]
    assert stats.partial_checksums == 2


def test_a_lone_packet_is_completed_too(engine: Engine) -> None:
    collector, _ = run(engine, capture([udp4(b"ping", partial=True, header_checksum=0)]))
    assert bytes(collector.packets[0]) == udp4(b"ping")
    assert collector.packets[0].checksum == ChecksumState.VERIFIED


def test_a_bad_checksum_still_blocks(engine: Engine) -> None:
    packets = segments(3)
    packets[1] = packets[1][:-1] + b"!"
    collector, stats = run(engine, capture(packets))
    assert payloads(collector.packets) == [1, 1, 1]
    assert stats.engine.verdicts[Verdict.BAD_CHECKSUM] == 1


# --- packets that are several --------------------------------------------------------------------


def mss(value: int) -> bytes:
    """TCP options: padding, then the MSS, then others."""
    return b"\x01\x01\x04\x02" + b"\x02\x04" + value.to_bytes(2, "big") + b"\x03\x03\x07\x00"


CLIENT, SERVER = "192.0.2.1", "192.0.2.2"


def exchange(build: Any, client_mss: int | None, server_mss: int | None) -> list[bytes]:
    """SYN and SYN/ACK of a connection from port 5000 to port 80."""
    ends = (CLIENT, SERVER) if build is tcp4 else ("2001:db8::1", "2001:db8::2")
    up = {"source": ends[0], "destination": ends[1], "sport": 5000, "dport": 80}
    down = {"source": ends[1], "destination": ends[0], "sport": 80, "dport": 5000}
    packets = []
    if client_mss is not None:
        packets.append(build(b"", flags=SYN, tcp_options=mss(client_mss), **up))
    if server_mss is not None:
        packets.append(build(b"", flags=SYN | ACK, tcp_options=mss(server_mss), **down))
    return packets


def upload(build: Any, size: int, **fields: Any) -> bytes:
    ends = (CLIENT, SERVER) if build is tcp4 else ("2001:db8::1", "2001:db8::2")
    return bytes(
        build(bytes(size), source=ends[0], destination=ends[1], sport=5000, dport=80, **fields)
    )


def aggregated(engine: Engine, packets: list[bytes], **options: Any) -> int:
    _, stats = run(engine, capture(frames(packets), [ETHERNET]), **options)
    return int(stats.already_aggregated)


@pytest.mark.parametrize("build", [tcp4, tcp6])
def test_the_mss_that_the_receiver_announced_is_the_limit(engine: Engine, build: Any) -> None:
    opening = exchange(build, 1000, 1460)
    assert aggregated(engine, [*opening, upload(build, 1460)]) == 0
    assert aggregated(engine, [*opening, upload(build, 1461)]) == 1


@pytest.mark.parametrize("build", [tcp4, tcp6])
def test_else_the_senders_own_mss_is(engine: Engine, build: Any) -> None:
    opening = exchange(build, 1000, None)
    assert aggregated(engine, [*opening, upload(build, 1000)]) == 0
    assert aggregated(engine, [*opening, upload(build, 1001)]) == 1


def test_a_large_mss_lets_large_packets_be_single_ones(engine: Engine) -> None:
    opening = exchange(tcp4, 65_495, 65_495)  # the loopback device's
    packets = [*opening, upload(tcp4, 30_000, ident=1), upload(tcp4, 30_000, ident=2, seq=30_001)]
    collector, stats = run(engine, capture(frames(packets), [ETHERNET]))
    assert stats.already_aggregated == 0
    assert payloads(collector.packets) == [1, 1, 2]


def test_with_nothing_known_9216_bytes_are_the_limit(engine: Engine) -> None:
    assert aggregated(engine, [upload(tcp4, 9216 - 40)]) == 0
    assert aggregated(engine, [upload(tcp4, 9216 - 39)]) == 1
    assert aggregated(engine, [udp6(bytes(9216 - 48))]) == 0
    assert aggregated(engine, [udp6(bytes(9216 - 47))]) == 1


def test_the_mtu_is_a_limit_beside_the_mss(engine: Engine) -> None:
    assert aggregated(engine, [udp4(bytes(1472)), upload(tcp4, 1460)], mtu=1500) == 0
    assert aggregated(engine, [udp4(bytes(1473)), upload(tcp4, 1461)], mtu=1500) == 2
    opening = exchange(tcp4, 1000, 1000)
    assert aggregated(engine, [*opening, upload(tcp4, 1001)], mtu=1500) == 1
    assert aggregated(engine, [udp4(bytes(20_000))], mtu=65_535) == 0


def test_a_new_connection_on_the_same_ports_has_its_own_mss(engine: Engine) -> None:
    packets = [*exchange(tcp4, 500, 500), *exchange(tcp4, 1460, 1460), upload(tcp4, 1460)]
    assert aggregated(engine, packets) == 0
    silent = tcp4(b"", flags=SYN, source=CLIENT, destination=SERVER, sport=5000, dport=80)
    assert aggregated(engine, [*exchange(tcp4, 500, None), silent, upload(tcp4, 1460)]) == 0


def test_a_tiny_mss_is_raised_to_what_senders_use_at_least(engine: Engine) -> None:
    opening = exchange(tcp4, 1, 1)
    assert aggregated(engine, [*opening, upload(tcp4, 48)]) == 0
    assert aggregated(engine, [*opening, upload(tcp4, 49)]) == 1


def test_the_mss_of_another_interface_does_not_count(engine: Engine) -> None:
    shots = [Shot(packet, 0, 0) for packet in exchange(tcp4, 500, 500)]
    shots.append(Shot(upload(tcp4, 1460), 0, 1))
    _, stats = run(engine, capture(shots, [RAW, RAW]))
    assert stats.already_aggregated == 0


def test_the_table_of_mss_values_is_bounded_and_forgets_the_oldest(engine: Engine) -> None:
    table = engine.module("dispatchers.offloads").MssTable(size=3)
    for key in (b"a", b"b", b"c", b"a", b"d"):
        table.put(key, 1000)
    assert len(table) == 3
    assert [table.get(key) for key in (b"a", b"b", b"c", b"d")] == [1000, None, 1000, 1000]


@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
def test_a_packet_without_an_ip_length_is_as_long_as_the_record(engine: Engine, build: Any) -> None:
    fields = {"total_length": 0} if build in (tcp4, udp4) else {"payload_length": 0}
    packet = build(bytes(1500), partial=True, **fields)
    assert found_in(engine, packet) == "PARTIAL|AGGREGATED"
    collector, stats = run(engine, capture([packet, packet]))
    assert stats.already_aggregated == 2
    assert [each.verdict for each in collector.packets] == [Verdict.IP_LENGTH_ZERO] * 2
    assert [each.gso_segs for each in collector.packets] == [0, 0]


def test_no_length_and_nothing_behind_the_headers_is_no_super_packet(engine: Engine) -> None:
    assert found_in(engine, tcp4(b"", total_length=0)) == ""
    nothing = ipv6(b"", protocol=59)
    assert found_in(engine, ethernet(nothing) + bytes(6), "ethernet") == ""


def test_a_super_packet_is_passed_on_as_it_is_and_keeps_its_place(engine: Engine) -> None:
    small, large = segments(4), segments(1, size=20_000)[0]
    packets = [small[0], small[1], large, small[2], small[3]]
    collector, stats = run(engine, capture(packets))
    assert [len(packet) for packet in collector.packets] == [240, 20_040, 240]
    assert stats.engine.verdicts[Verdict.ALREADY_AGGREGATED] == 1


def test_a_length_that_is_damaged_makes_no_super_packet(engine: Engine) -> None:
    assert found_in(engine, tcp4(b"data", total_length=20_000)) == ""
    assert found_in(engine, tcp4(b"data", total_length=20_000), wire_length=20_000) == "AGGREGATED"


@pytest.mark.parametrize("build", [tcp4, udp4])
def test_a_packet_whose_header_checksum_is_0xffff_in_place_of_0_is_not_taken_as_partial(
    engine: Engine, build: Any
) -> None:
    packets = (build(b"x" * 10, ident=ident, partial=True) for ident in range(65536))
    right = next(packet for packet in packets if packet[10:12] == b"\0\0")
    wrong = right[:10] + b"\xff\xff" + right[12:]
    assert found_in(engine, right) == "PARTIAL"
    assert found_in(engine, wrong) == ""
    collector, _ = run(engine, capture([wrong, segments(1)[0]]))
    assert collector.packets[0].verdict == Verdict.IP_CHECKSUM
    assert bytes(collector.packets[0]) == wrong


@pytest.mark.parametrize("link", ["null", "loop"])
@pytest.mark.parametrize("big", [True, False])
@pytest.mark.parametrize("family", [0, 2, 10, 24, 28, 30, 0x0200, 0x0202, 0x0002_0002])
def test_address_families_are_read_alike_by_engine_recogniser_and_identity(
    engine: Engine, link: Any, big: bool, family: int
) -> None:
    of_4 = family == 2 and (big or link == "null")
    of_6 = family in {24, 28, 30} and (big or link == "null")
    identify = engine.module("identity").identify
    for build, known in ((tcp4, of_4), (tcp6, of_6)):
        packet = null(build(b"x", partial=True), family=family, big=big)
        assert found_in(engine, packet, link) == ("PARTIAL" if known else "")
        assert bool(identify(packet, link).hosts) == known
        verdicts = []
        with engine.GroDispatcher(
            lambda packets, verdicts=verdicts: verdicts.extend(each.verdict for each in packets),
            GroConfig(link=link),
        ) as gro:
            gro.dispatch([packet, packet[:1]])
        if not (of_4 or of_6):
            assert verdicts[0] == Verdict.NOT_IP
        elif known:
            assert verdicts[0] not in {Verdict.NOT_IP, Verdict.IP_VERSION}
