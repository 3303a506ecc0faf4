"""Segmentation of super-packets that somebody else built, against scapy and the model.

What the engine builds itself is cut in the other tests; here are packets as a kernel, a peer or a
capture hands them over.
"""

import copy
import itertools
import mmap
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN
from scapy.packet import Raw

from netstack_gro.config import IpIdMode
from netstack_gro.errors import GroError, GsoError
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders as b
from tests.builders import LINKS, ethernet, fix_checksums, ip_offset, ipv4, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import assert_sound
from tests.model import cut
from tests.packet_kinds import HBH

BODY = bytes(range(256)) * 13
TCPV4, TCPV6, UDP_L4 = GsoType.TCPV4, GsoType.TCPV6, GsoType.UDP_L4
Build = Callable[..., bytes]
KINDS: list[tuple[Build, int]] = [(tcp4, TCPV4), (tcp6, TCPV6), (udp4, UDP_L4), (udp6, UDP_L4)]
DST = (b.DESTINATION, bytes((0, 1, 1, 12, *bytes(12))))
ROUTED = (b.ROUTING, bytes((0, 2, 0, 0, *bytes(20))))


def header(kind: int, size: int, **fields: int) -> VirtioHeader:
    return VirtioHeader(gso_type=kind, gso_size=size, **fields)


def described(packet: bytes, kind: int, size: int, link: str = "ip") -> VirtioHeader:
    """The header that a kernel writes for a packet without extension headers or options."""
    at = ip_offset(packet, link)
    start = at + (20 if packet[at] >> 4 == 4 else 40)
    tcp = kind != UDP_L4
    length = start + (20 if tcp else 8)
    return VirtioHeader(NEEDS_CSUM, kind, length, size, start, 16 if tcp else 6)


# --- the inverse of what others merged -----------------------------------------------------------


@pytest.mark.parametrize(("build", "kind"), KINDS)
@pytest.mark.parametrize(
    ("length", "size"),
    [(3000, 1000), (3001, 1000), (2999, 1000), (1001, 1000), (7, 1), (9, 2), (3328, 1447)],
)
def test_segments_are_those_of_the_model_and_sound_to_scapy(
    engine: Engine, build: Build, kind: int, length: int, size: int
) -> None:
    packet = build(BODY[:length], partial=True)
    segments = list(engine.segment(packet, described(packet, kind, size)))
    assert segments == cut(packet, size)
    assert_sound(segments)
    start = len(packet) - length
    assert b"".join(segment[start:] for segment in segments) == BODY[:length]
    assert {len(segment) - start for segment in segments[:-1]} == {size}


@pytest.mark.parametrize(("build", "kind"), KINDS)
def test_a_packet_built_by_scapy_is_cut_into_packets_built_by_scapy(
    engine: Engine, build: Build, kind: int
) -> None:
    outer = IP(id=65534, tos=0x2E, ttl=9) if build in (tcp4, udp4) else IPv6(tc=0x2E, hlim=9, fl=77)
    inner = TCP(seq=2**32 - 700, ack=5, flags="PA") if kind != UDP_L4 else UDP(dport=5000)
    packet = bytes(outer / inner / Raw(BODY[:1500]))
    expected = []
    for number, at in enumerate(range(0, 1500, 600)):
        over, under = outer.copy(), inner.copy()
        if "id" in over.fields:
            over.id = (65534 + number) % 65536
        if kind != UDP_L4:
            under.seq = (2**32 - 700 + at) % 2**32
            under.flags = "PA" if at == 1200 else "A"
        expected.append(bytes(over / under / Raw(BODY[at : min(at + 600, 1500)])))
    assert list(engine.segment(packet, header(kind, 600), link="ip")) == expected


@pytest.mark.parametrize("mode", IpIdMode)
@pytest.mark.parametrize("first", [0, 7, 65535])
def test_ids_go_on_as_the_mode_says(engine: Engine, mode: IpIdMode, first: int) -> None:
    packet = tcp4(BODY[:300], ident=first)
    segments = list(engine.segment(packet, header(TCPV4, 100), mode))
    step = 0 if mode is IpIdMode.FIXED else 1
    assert [IP(segment).id for segment in segments] == [
        (first + step * number) % 65536 for number in range(3)
    ]
    assert segments == cut(packet, 100, mode)


def test_flags_stand_where_the_sender_of_single_segments_put_them(engine: Engine) -> None:
    for build, kind in KINDS[:2]:
        packet = build(BODY[:400], flags=0xFFF & ~(b.SYN | b.RST | b.URG))
        segments = list(engine.segment(packet, header(kind, 100)))
        at = len(packet) - 400 - 20
        flags = [(part[at + 12] & 15) << 8 | part[at + 13] for part in segments]
        middle = 0xFFF & ~(b.SYN | b.RST | b.URG | b.FIN | b.PSH | b.CWR)
        assert flags == [middle | b.CWR, middle, middle, middle | b.FIN | b.PSH]
        assert segments == cut(packet, 100)
        assert_sound(segments)


def test_two_segments_divide_the_flags_between_them(engine: Engine) -> None:
    packet = tcp4(BODY[:101], flags=b.ACK | b.CWR | b.ECE | b.PSH | b.FIN)
    first, second = engine.segment(packet, header(TCPV4 | GSO_ECN, 100))
    assert first[33] == b.ACK | b.ECE | b.CWR
    assert second[33] == b.ACK | b.ECE | b.PSH | b.FIN


def test_ipv4_options_are_copied_to_every_segment(engine: Engine) -> None:
    for transport, kind in ((TCP(seq=1), TCPV4), (UDP(), UDP_L4)):
        packet = bytes(
            IP(options=[IPOption_Router_Alert(), IPOption_NOP()]) / transport / Raw(BODY[:250])
        )
        segments = list(engine.segment(packet, header(kind, 100)))
        assert len(segments) == 3
        assert {part[20:28] for part in segments} == {packet[20:28]}
        assert_sound(segments)
        assert segments == cut(packet, 100)


@pytest.mark.parametrize("extensions", [[HBH], [DST], [HBH, DST], [ROUTED], [DST] * 8])
@pytest.mark.parametrize(("build", "kind"), [KINDS[1], KINDS[3]])
def test_extension_headers_are_copied_to_every_segment(
    engine: Engine, extensions: list[tuple[int, bytes]], build: Build, kind: int
) -> None:
    packet = build(BODY[:250], extensions=extensions, partial=True)
    size = sum(len(data) for _, data in extensions)
    virtio = VirtioHeader(NEEDS_CSUM, kind, 0, 100, 40 + size, 16 if kind == TCPV6 else 6)
    segments = list(engine.segment(packet, virtio))
    assert segments == cut(packet, 100)
    assert {part[40 : 40 + size] for part in segments} == {packet[40 : 40 + size]}
    for part in segments:
        assert IPv6(part).plen == len(part) - 40
        assert fix_checksums(part) == part


def test_extension_headers_built_by_scapy_are_followed(engine: Engine) -> None:
    extensions = IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(4))]) / IPv6ExtHdrDestOpt(
        options=[PadN(optdata=bytes(12))]
    )
    packet = bytes(IPv6() / extensions / UDP(sport=1, dport=2) / Raw(b"ab"))
    first, second = engine.segment(packet, header(UDP_L4, 1))
    assert_sound([first, second])
    assert (first[-1:], second[-1:]) == (b"a", b"b")


def test_a_sequence_number_wraps(engine: Engine) -> None:
    packet = tcp6(BODY[:300], seq=2**32 - 150)
    assert [IPv6(part)[TCP].seq for part in engine.segment(packet, header(TCPV6, 100))] == [
        2**32 - 150,
        2**32 - 50,
        50,
    ]


def test_a_udp_packet_over_ipv4_without_checksum_stays_without(engine: Engine) -> None:
    packet = udp4(BODY[:250], checksum=0)
    segments = list(engine.segment(packet, header(UDP_L4, 100)))
    assert [UDP(part[20:]).chksum for part in segments] == [0, 0, 0]
    assert [IP(part).len for part in segments] == [128, 128, 78]
    partial = VirtioHeader(NEEDS_CSUM, UDP_L4, 28, 100, 20, 6)
    assert_sound(list(engine.segment(packet, partial)))


def test_a_udp_packet_over_ipv6_always_gets_a_checksum(engine: Engine) -> None:
    segments = list(engine.segment(udp6(BODY[:250], checksum=0), header(UDP_L4, 100)))
    assert_sound(segments)
    assert all(UDP(part[40:]).chksum for part in segments)


def test_a_udp_sum_of_zero_is_written_as_all_ones(engine: Engine) -> None:
    for tail in range(65536):
        body = tail.to_bytes(2, "big") + b"ab"
        if udp4(body)[26:28] == b"\xff\xff":
            break
    packet = udp4(body + b"tail")
    first = next(engine.segment(packet, header(UDP_L4, 4), IpIdMode.FIXED))
    assert first[26:28] == b"\xff\xff"
    assert first == udp4(body)


@pytest.mark.parametrize(("build", "kind"), KINDS)
def test_a_packet_of_more_than_64_kilobytes_has_length_0_and_is_cut(
    engine: Engine, build: Build, kind: int
) -> None:
    body = BODY * 40
    assert len(body) > 100_000
    length: dict[str, Any] = {"total_length": 0} if build in (tcp4, udp4) else {"payload_length": 0}
    if kind == UDP_L4:
        length["udp_length"] = 0
    packet = build(body, checksum=1, **length)
    segments = list(engine.segment(packet, header(kind, 1448)))
    start = len(packet) - len(body)
    assert len(segments) == -(-len(body) // 1448)
    assert b"".join(part[start:] for part in segments) == body
    assert_sound(segments[:2] + segments[-2:])
    assert segments[:3] == cut(build(body[:4344], partial=True), 1448)[:3]


# --- what needs no cutting -----------------------------------------------------------------------


@pytest.mark.parametrize(("build", "kind"), KINDS)
@pytest.mark.parametrize("length", [0, 1, 999, 1000])
def test_a_packet_of_at_most_one_segment_is_returned_as_it_is(
    engine: Engine, build: Build, kind: int, length: int
) -> None:
    packet = build(BODY[:length], checksum=0x1234)
    for data in (packet, bytearray(packet), memoryview(packet)):
        (only,) = engine.segment(data, header(kind, 1000))
        assert only is data


@pytest.mark.parametrize("gso_type", [0, GSO_ECN])
@pytest.mark.parametrize("packet", [b"", b"noise", tcp4(BODY), ipv4(BODY, protocol=1)])
def test_a_packet_that_no_header_asks_to_cut_is_returned_as_it_is(
    engine: Engine, gso_type: int, packet: bytes
) -> None:
    for virtio in (VirtioHeader(gso_type=gso_type), VirtioHeader(NEEDS_CSUM, gso_type, 0, 9, 9, 9)):
        (only,) = engine.segment(packet, virtio, max_segments=1)
        assert only is packet


# --- errors --------------------------------------------------------------------------------------

GOOD = tcp4(BODY[:300])
ERRORS: dict[str, tuple[bytes, VirtioHeader, str]] = {
    "neither TCP nor UDP": (ipv4(BODY, protocol=1), header(TCPV4, 100), "neither TCP nor UDP"),
    "UFO": (udp4(BODY), header(GsoType.UFO, 100), "not TCPV4"),
    "an unknown type": (GOOD, header(2, 100), "not TCPV4"),
    "a type of bit 3": (GOOD, header(8 | TCPV4, 100), "not TCPV4"),
    "a tunnel over IPv4": (GOOD, header(0x20 | TCPV4, 100), "tunnel"),
    "a tunnel over IPv6": (GOOD, header(0x40 | TCPV4, 100), "tunnel"),
    "both tunnel bits": (GOOD, header(0x60 | TCPV4 | GSO_ECN, 100), "tunnel"),
    "gso_size 0": (GOOD, header(TCPV4, 0), "gso_size 0"),
    "gso_size 65535": (GOOD, header(TCPV4, 65535), "gso_size 65535"),
    "TCPv6 on IPv4": (GOOD, header(TCPV6, 100), "IPv4"),
    "TCPv4 on IPv6": (tcp6(BODY), header(TCPV4, 100), "IPv6"),
    "UDP on TCP": (GOOD, header(UDP_L4, 100), "protocol 6"),
    "TCP on UDP": (udp4(BODY), header(TCPV4, 100), "protocol 17"),
    "a fragment": (tcp4(BODY, mf=True), header(TCPV4, 100), "fragment"),
    "a later fragment": (tcp4(BODY, fragment_offset=9), header(TCPV4, 100), "fragment"),
    "an IPv6 fragment": (
        tcp6(BODY, extensions=[(b.FRAGMENT, bytes(8))]),
        header(TCPV6, 100),
        "fragment",
    ),
    "segments left": (
        tcp6(BODY, extensions=[(b.ROUTING, bytes((0, 2, 0, 1, *bytes(20))))]),
        header(TCPV6, 100),
        "extension",
    ),
    "ESP": (b.ipv6(BODY, protocol=50), header(TCPV6, 100), "extension"),
    "nothing": (b"", header(TCPV4, 100), "IP header"),
    "noise": (b"\xff" * 90, header(TCPV4, 100), "IP header"),
    "half a header": (GOOD[:19], header(TCPV4, 100), "IP header"),
    "a header beyond the packet": (tcp4(b"", ihl=15), header(TCPV4, 100), "IP header"),
    "half a TCP header": (ipv4(GOOD[20:39], protocol=6), header(TCPV4, 100), "transport header"),
    "half a UDP header": (ipv4(bytes(7), protocol=17), header(UDP_L4, 100), "transport header"),
    "a data offset of 4": (tcp4(BODY, data_offset=4), header(TCPV4, 100), "transport header"),
    "bytes behind the packet": (GOOD + b"\0", header(TCPV4, 100), "length"),
    "bytes missing": (GOOD[:-1], header(TCPV4, 100), "length"),
    "bytes behind IPv6": (tcp6(BODY) + b"\0", header(TCPV6, 100), "length"),
    "csum_start of another packet": (
        GOOD,
        VirtioHeader(NEEDS_CSUM, TCPV4, 40, 100, 34, 16),
        "csum_start 34",
    ),
    "csum_start past the packet": (
        GOOD,
        VirtioHeader(NEEDS_CSUM, TCPV4, 40, 100, 9999, 16),
        "csum_start 9999",
    ),
    "csum_offset of UDP on TCP": (
        GOOD,
        VirtioHeader(NEEDS_CSUM, TCPV4, 40, 100, 20, 6),
        "csum_offset 6",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_cut_is_a_typed_error_at_the_call(engine: Engine, name: str) -> None:
    packet, virtio, message = ERRORS[name]
    data = bytearray(packet)
    with pytest.raises(GsoError, match=message):
        engine.segment(data, virtio, link="ip")
    with pytest.raises(GsoError):
        engine.segment(data, virtio)
    assert data == packet
    data.append(0)  # nobody holds it


def test_an_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(GsoError, ValueError)
    assert issubclass(GsoError, GroError)


@pytest.mark.parametrize("wrong", [None, b"\0" * 10, (0,) * 6])
def test_a_header_of_another_type_is_refused(engine: Engine, wrong: Any) -> None:
    for call in (engine.segment, engine.complete_checksum):
        with pytest.raises(TypeError, match="header: "):
            call(GOOD, wrong)


@pytest.mark.parametrize("wrong", [None, 5, "text", [1]])
def test_a_packet_that_is_no_buffer_is_refused(engine: Engine, wrong: Any) -> None:
    for virtio in (VirtioHeader(), header(TCPV4, 100)):
        for call in (engine.segment, engine.complete_checksum):
            with pytest.raises(TypeError, match="bytes-like"):
                call(wrong, virtio)


def test_words_are_checked_even_where_there_is_nothing_to_cut(engine: Engine) -> None:
    for virtio in (VirtioHeader(), header(TCPV4, 100)):
        with pytest.raises(ValueError, match="checksums"):
            engine.segment(GOOD, virtio, checksums="none")
        with pytest.raises(ValueError, match="link"):
            engine.segment(GOOD, virtio, link="wifi")
        with pytest.raises(ValueError, match="IpIdMode"):
            engine.segment(GOOD, virtio, 7)
        with pytest.raises(TypeError):
            engine.segment(GOOD, virtio, IpIdMode.FIXED, "ip")


# --- lazily and within bounds --------------------------------------------------------------------


def test_segments_are_made_as_they_are_asked_for(engine: Engine) -> None:
    packet = tcp4(bytes(65000))
    segments = engine.segment(packet, header(TCPV4, 1))
    assert iter(segments) is segments
    assert segments.__length_hint__() == 65000
    first = list(itertools.islice(segments, 3))
    assert [len(part) for part in first] == [41, 41, 41]
    assert segments.__length_hint__() == 64997


def test_an_iterator_stays_exhausted(engine: Engine) -> None:
    segments = engine.segment(GOOD, header(TCPV4, 100))
    assert len(list(segments)) == 3
    assert list(segments) == []
    assert segments.__length_hint__() == 0
    with pytest.raises(StopIteration):
        next(segments)


@pytest.mark.parametrize(("limit", "allowed"), [(3, True), (2, False), (0, False), (-1, False)])
def test_more_segments_than_allowed_are_refused_at_the_call(
    engine: Engine, limit: int, allowed: bool
) -> None:
    if allowed:
        assert len(list(engine.segment(GOOD, header(TCPV4, 100), max_segments=limit))) == 3
        return
    with pytest.raises(GsoError, match="3 segments"):
        engine.segment(GOOD, header(TCPV4, 100), max_segments=limit)


def test_the_default_bound_is_that_of_16_bits(engine: Engine) -> None:
    body = bytes(65536)
    packet = tcp4(body, total_length=0, checksum=0)
    with pytest.raises(GsoError, match="65536 segments"):
        engine.segment(packet, header(TCPV4, 1))
    assert len(next(engine.segment(packet, header(TCPV4, 1), max_segments=10**12))) == 41
    assert len(list(engine.segment(packet, header(TCPV4, 2)))) == 32768


def test_the_input_is_borrowed_for_as_long_as_segments_are_to_come(engine: Engine) -> None:
    data = bytearray(GOOD)
    segments = engine.segment(data, header(TCPV4, 100))
    next(segments)
    with pytest.raises(BufferError):
        data.clear()
    del segments
    data.clear()


def test_the_input_is_any_memory_and_never_changed(engine: Engine) -> None:
    expected = cut(GOOD, 100)
    mapped = mmap.mmap(-1, len(GOOD))
    mapped[:] = GOOD
    for data in (bytearray(GOOD), memoryview(b"?" + GOOD)[1:], mapped):
        assert list(engine.segment(data, header(TCPV4, 100))) == expected
        assert bytes(data) == GOOD


def test_a_segment_that_somebody_holds_in_any_way_never_changes(engine: Engine) -> None:
    packet = tcp4(BODY)
    expected = list(engine.segment(packet, header(TCPV4, 100)))
    held: list[tuple[int, Any]] = []
    seen = {}
    for number, part in enumerate(engine.segment(packet, header(TCPV4, 100))):
        assert part == expected[number]
        assert seen.setdefault(hash(part), number) == number  # asked for, and the bytes let go of
        match number % 4:
            case 1:
                held.append((number, memoryview(part)))
            case 2:
                held.append((number, (part,)))
            case 3:
                held.append((number, iter(part)))
    del part
    for number, keeper in held:
        whole = keeper[0] if isinstance(keeper, tuple) else bytes(keeper)
        assert whole == expected[number]
        assert hash(whole) == hash(expected[number])


def test_iterators_are_not_made_by_hand_or_pickled(engine: Engine) -> None:
    segments = engine.segment(GOOD, header(TCPV4, 100))
    with pytest.raises(TypeError, match="segment"):
        type(segments)()
    for make in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="pickle"):
            make(segments)


# --- links ---------------------------------------------------------------------------------------


def frames() -> Iterator[Any]:
    for link in LINKS:
        for build, kind in KINDS:
            version = 6 if build in (tcp6, udp6) else 4
            if link in ("ipv4", "ipv6") and link != f"ipv{version}":
                continue
            packet = build(BODY[:250], partial=True)
            yield pytest.param(link, b.FRAMES[link](packet), kind, id=f"{link} {build.__name__}")
    for tags in ([(b.DOT1Q, 5)], [(b.DOT1AD, 5), (b.DOT1Q, 6)]):
        yield pytest.param(
            "ethernet", ethernet(tcp6(BODY[:250], partial=True), tags=tags), TCPV6, id="tagged"
        )


@pytest.mark.parametrize(("link", "frame", "kind"), list(frames()))
def test_the_link_is_found_by_where_the_checksum_starts(
    engine: Engine, link: str, frame: bytes, kind: int
) -> None:
    virtio = described(frame, kind, 100, link)
    segments = list(engine.segment(frame, virtio))
    assert segments == cut(frame, 100, link=link)
    assert list(engine.segment(frame, virtio, link=link)) == segments
    # Without NEEDS_CSUM the offsets are a hint.
    hint = VirtioHeader(0, kind, virtio.hdr_len, 100, virtio.csum_start, virtio.csum_offset)
    assert list(engine.segment(frame, hint)) == segments
    assert list(engine.segment(frame, header(kind, 100), link=link)) == segments
    bare = {"ip", "ipv4", "ipv6"}
    alike = {"null", "loop"}
    for other in LINKS:
        if other != link and not {link, other} <= bare and not {link, other} <= alike:
            with pytest.raises(GsoError):
                engine.segment(frame, virtio, link=other)


def test_without_a_hint_a_packet_is_taken_to_begin_with_its_ip_header(engine: Engine) -> None:
    packet = tcp6(BODY[:250])
    assert list(engine.segment(packet, header(TCPV6, 100))) == cut(packet, 100)
    with pytest.raises(GsoError):
        engine.segment(ethernet(packet), header(TCPV6, 100))


def test_a_wrong_header_length_is_put_right_in_silence(engine: Engine) -> None:
    for length in (0, 1, 66, 65535):
        virtio = VirtioHeader(NEEDS_CSUM, TCPV4, length, 100, 20, 16)
        assert list(engine.segment(GOOD, virtio)) == cut(GOOD, 100)
