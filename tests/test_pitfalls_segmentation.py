"""Faults of other engines' checksums, segmentation and vnet headers, each as a regression test.

=====================================================  =============================================
fault reported                                         test
=====================================================  =============================================
pseudo-header computed at the wrong offset             the_partial_sum_covers_the_addresses_...
data delivered whose checksum nobody verified          a_flipped_bit_is_never_merged_...
completion used the inner header's offset              a_flag_left_over_by_an_earlier_layer_...
the last equal segment keeps the train's length        every_datagram_has_its_own_length_...
fragmentation unit not a multiple of 8                 ufo_is_refused_and_never_taken_...
unknown protocol, and who owns the buffer              what_is_not_cut_stays_the_caller_s_...
TSO and USO with extension headers                     extension_headers_are_copied_and_counted
checksum offsets that are wrong, or judged too tight   wrong_checksum_offsets_are_refused_...
DATA_VALID produced on transmit                        data_valid_is_never_produced
NEEDS_CSUM taken for good                              a_partial_checksum_is_never_called_...
GSO type chosen from the IP version alone              the_type_follows_from_the_protocol_...
GSO limit forgot lower-layer headers                   the_largest_packet_counts_every_header
a kernel that refuses valid GSO writes                 a_refused_super_packet_can_be_cut_...
a reader that ignores partial checksums                a_small_partial_packet_is_completed
metadata of super-packets lost between dispatchers     a_round_trip_through_a_vnet_header_...
=====================================================  =============================================
"""

from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, IpIdMode
from netstack_gro.errors import GsoError
from netstack_gro.virtio import DATA_VALID, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, fix_checksums, ipv4, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import Recorder, assert_sound, merged
from tests.packet_kinds import HBH

BODY = bytes(range(256)) * 300
Build = Callable[..., bytes]
TCPV4, TCPV6, UDP_L4 = GsoType.TCPV4, GsoType.TCPV6, GsoType.UDP_L4


def segments(count: int, size: int = 100, **fields: Any) -> list[bytes]:
    return [
        tcp4(BODY[place : place + size], seq=1 + size * place, ident=place, **fields)
        for place in range(count)
    ]


@pytest.mark.parametrize("prefix", [0, 10, 12, 13])
def test_the_partial_sum_covers_the_addresses_wherever_the_packet_lies(
    engine: Engine, prefix: int
) -> None:
    """A vnet header may stand before each packet in the slab; it is no part of the packet."""
    packets = segments(2)
    slab = bytearray().join(b"\xaa" * prefix + packet for packet in packets)
    batch = engine.Batch(slab)
    batch.add(prefix, 140)
    batch.add(2 * prefix + 140, 140)
    hook = Recorder()
    engine.GroDispatcher(hook, engine.GroConfig(delivered_checksums="partial")).dispatch(batch)
    (given,) = hook.given
    field = int.from_bytes(given.data[36:38], "big")
    assert field == b.pseudo_sum(b.V4_SOURCE, b.V4_DESTINATION, 6, 220)
    assert given.virtio == VirtioHeader(NEEDS_CSUM, TCPV4, 40, 100, 20, 16)
    whole = engine.complete_checksum(given.data, VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 16))
    assert_sound([whole])


@pytest.mark.parametrize("bit", [0, 7, 8 * 50, 8 * 99 + 7])
def test_a_flipped_bit_is_never_merged_or_called_verified(engine: Engine, bit: int) -> None:
    packets = segments(3)
    damaged = bytearray(packets[1])
    damaged[40 + bit // 8] ^= 1 << bit % 8
    packets[1] = bytes(damaged)
    hook = merged(engine, packets)
    assert hook.data == packets
    assert hook.verdicts == ["OPENED", "BAD_CHECKSUM", "OPENED"]
    assert hook.given[1].checksum is ChecksumState.UNKNOWN
    assert hook.given[0].checksum is ChecksumState.VERIFIED


def test_a_flag_left_over_by_an_earlier_layer_is_not_believed(engine: Engine) -> None:
    inner = tcp4(BODY[:2000])
    outer = udp4(bytes((8, 0, 0, 0, 0, 0, 1, 0)) + ethernet(inner), dport=9999)
    at = 28 + 8 + 14
    for virtio in (
        VirtioHeader(NEEDS_CSUM, 0, 0, 0, at + 20, 16),  # where the inner checksum lies
        VirtioHeader(NEEDS_CSUM, TCPV4 | 0x20, at + 40, 1000, at + 20, 16),
        VirtioHeader(0, TCPV4, at + 40, 1000, at + 20, 16),
    ):
        packet = TrafficPacket(outer, virtio=virtio)
        hook = merged(engine, [packet, packet], udp=True)
        assert hook.data == [outer, outer]
        assert hook.verdicts == ["BAD_VNET_HEADER"] * 2
        assert [given.virtio for given in hook.given] == [VirtioHeader()] * 2
        assert [given.segments for given in hook.given] == [[outer], [outer]]


@pytest.mark.parametrize("length", [3000, 3001, 2999, 1000])
@pytest.mark.parametrize("build", [udp4, udp6])
def test_every_datagram_has_its_own_length_the_last_equal_one_too(
    engine: Engine, build: Build, length: int
) -> None:
    packet = build(BODY[:length])
    start = len(packet) - length
    cut = list(engine.segment(packet, VirtioHeader(0, UDP_L4, 0, 1000), link="ip"))
    lengths = [int.from_bytes(part[start - 4 : start - 2], "big") for part in cut]
    assert lengths == [8 + len(part) - start for part in cut]
    assert sum(lengths) == length + 8 * len(cut)
    assert_sound(cut)


def test_ufo_is_refused_and_never_taken_for_udp_segmentation(engine: Engine) -> None:
    packet = udp4(BODY[:4000])
    for unit in (1480, 1500):
        with pytest.raises(GsoError):
            engine.segment(packet, VirtioHeader(0, GsoType.UFO, 28, unit, 20, 6))
        hook = merged(
            engine,
            [TrafficPacket(packet, virtio=VirtioHeader(0, GsoType.UFO, 28, unit)), b"y"],
            udp=True,
        )
        assert hook.verdicts[0] == "BAD_VNET_HEADER"
        assert hook.given[0].segments == [packet]


def test_what_is_not_cut_stays_the_caller_s_and_unchanged(engine: Engine) -> None:
    icmp, short, long = (
        bytearray(packet)
        for packet in (ipv4(BODY[:3000], protocol=1), tcp4(BODY[:1000]), tcp4(BODY[:3000]))
    )
    before = [bytes(packet) for packet in (icmp, short, long)]
    virtio = VirtioHeader(0, TCPV4, 40, 1000, 20, 16)
    with pytest.raises(GsoError):
        engine.segment(icmp, virtio, link="ip")
    (only,) = engine.segment(short, virtio)
    assert only is short
    assert len(list(engine.segment(long, virtio))) == 3
    del only
    assert [bytes(packet) for packet in (icmp, short, long)] == before
    for packet in (icmp, short, long):
        packet.clear()


@pytest.mark.parametrize(("build", "kind"), [(udp6, UDP_L4), (tcp6, TCPV6)])
def test_extension_headers_are_copied_and_counted(
    engine: Engine, build: Build, kind: GsoType
) -> None:
    packets = [
        build(
            BODY[place : place + 1],
            extensions=[HBH],
            **({"seq": 1 + place} if kind == TCPV6 else {}),
        )
        for place in range(2)
    ]
    hook = merged(engine, packets, udp=True, delivered_checksums="partial")
    (given,) = hook.given
    assert given.virtio.csum_start == 48
    assert given.virtio.gso_type == kind
    cut = list(engine.segment(given.data, given.virtio))
    assert cut == given.segments == packets
    assert_sound(cut)
    assert {part[40:48] for part in cut} == {packets[0][40:48]}


def test_wrong_checksum_offsets_are_refused_and_missing_ones_are_not(engine: Engine) -> None:
    packet = tcp4(BODY[:3000])
    for start, offset in ((9999, 16), (3039, 16), (20, 6), (24, 16)):
        asked = VirtioHeader(NEEDS_CSUM, TCPV4, 40, 1000, start, offset)
        with pytest.raises(GsoError):
            engine.segment(packet, asked)
        hook = merged(engine, [TrafficPacket(packet, virtio=asked), b"y"])
        assert hook.verdicts[0] == "BAD_VNET_HEADER"
        assert hook.data[0] == packet
    hint = VirtioHeader(0, TCPV4, 0, 1000, 0, 0)
    cut = list(engine.segment(packet, hint))
    assert len(cut) == 3
    assert_sound(cut)
    hook = merged(engine, [TrafficPacket(packet, virtio=hint), b"y"])
    assert hook.verdicts[0] == "ALREADY_AGGREGATED"
    assert hook.given[0].segments == cut


@pytest.mark.parametrize("delivered", ["complete", "partial"])
def test_data_valid_is_never_produced(engine: Engine, delivered: str) -> None:
    packets = [TrafficPacket(packet, virtio=VirtioHeader(DATA_VALID)) for packet in segments(2)]
    aggregate = VirtioHeader(DATA_VALID, TCPV4, 40, 100, 20, 16)
    lone = TrafficPacket(tcp4(b"x", sport=2), virtio=VirtioHeader(DATA_VALID))
    big = TrafficPacket(tcp4(BODY[:300], sport=3), virtio=aggregate)
    hook = merged(engine, [*packets, lone, big], delivered_checksums=delivered)
    assert hook.counts == [2, 1, 1]
    assert {given.virtio.flags & ~NEEDS_CSUM for given in hook.given} == {0}
    assert hook.given[1].checksum is ChecksumState.VERIFIED


def test_a_partial_checksum_is_never_called_verified_before_it_is_completed(
    engine: Engine,
) -> None:
    data = udp4(BODY[:10], partial=True)
    virtio = VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 6)
    packet = TrafficPacket(data, virtio=virtio)
    kept, _ = merged(engine, [packet, b"y"], delivered_checksums="partial").given
    assert (kept.checksum, kept.virtio, kept.data) == (ChecksumState.PARTIAL, virtio, data)
    done, _ = merged(engine, [packet, b"y"]).given
    assert done.checksum is ChecksumState.VERIFIED
    assert done.virtio == VirtioHeader()
    assert_sound([done.data])


@pytest.mark.parametrize(
    ("build", "kind"), [(tcp4, TCPV4), (tcp6, TCPV6), (udp4, UDP_L4), (udp6, UDP_L4)]
)
def test_the_type_follows_from_the_protocol_and_not_from_the_version_alone(
    engine: Engine, build: Build, kind: GsoType
) -> None:
    packet = build(BODY[:3000])
    for claimed in (TCPV4, TCPV6, UDP_L4):
        virtio = VirtioHeader(0, claimed, 0, 1000)
        hook = merged(engine, [TrafficPacket(packet, virtio=virtio), b"y"], udp=True)
        right = claimed is kind
        assert hook.verdicts[0] == ("ALREADY_AGGREGATED" if right else "BAD_VNET_HEADER")
        assert hook.given[0].gso_type == (kind if right else GsoType.NONE)
        if not right:
            with pytest.raises(GsoError):
                engine.segment(packet, virtio)


@pytest.mark.parametrize(
    ("link", "tags", "header"),
    [("ip", (), 0), ("ethernet", (), 14), ("ethernet", ((b.DOT1Q, 5),), 18)],
)
def test_the_largest_packet_counts_every_header(
    engine: Engine, link: str, tags: tuple[Any, ...], header: int
) -> None:
    def frames(last: int) -> list[bytes]:
        sizes = [4056] * 16 + [last]
        starts = [sum(sizes[:place]) for place in range(17)]
        packets = [
            tcp4(BODY[:size], seq=1 + start, ident=place)
            for place, (size, start) in enumerate(zip(sizes, starts, strict=True))
        ]
        return [ethernet(p, tags=tags) if header else p for p in packets]

    last = 65535 - 40 - 16 * 4056
    exactly = merged(engine, frames(last), link=link)
    assert [len(data) for data in exactly.data] == [header + 65535]
    over = merged(engine, frames(last + 1), link=link)
    assert over.counts == [16, 1]
    assert over.reasons[0] == "SIZE"
    capped = merged(engine, frames(last), link=link, max_frame=65535)
    assert max(len(data) for data in capped.data) <= 65535
    assert capped.counts == ([17] if not header else [16, 1])


def test_a_refused_super_packet_can_be_cut_and_written_piece_by_piece(engine: Engine) -> None:
    packets = [
        tcp4(BODY[1000 * place : 1000 * place + size], seq=1 + 1000 * place, ident=place)
        for place, size in enumerate((1000, 1000, 500))
    ]
    written: list[bytes] = []

    def hook(given: list[Any]) -> None:
        for packet in given:
            wire = packet.virtio_header().encode(10) + bytes(packet)
            assert len(wire) == 10 + 40 + 2500
            written.extend(packet.segments())  # the write was refused with EINVAL

    config = engine.GroConfig(delivered_checksums="partial")
    engine.GroDispatcher(hook, config).dispatch(packets)
    assert written == packets


def test_a_small_partial_packet_is_completed(engine: Engine) -> None:
    read = VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 6).encode() + udp4(BODY[:10], partial=True)
    virtio = VirtioHeader.decode(read)
    done = engine.complete_checksum(memoryview(read)[10:], virtio)
    assert done == fix_checksums(read[10:])
    assert_sound([done])


@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
def test_a_round_trip_through_a_vnet_header_gives_the_same_bytes_on_both_sides(
    engine: Engine, build: Build
) -> None:
    """Read a super-packet, cut it, merge the segments, write: nothing has changed."""
    more: dict[str, Any] = {"ident": 7} if build in (tcp4, udp4) else {}
    read = build(BODY[:2500], partial=True, **more)
    tcp = build in (tcp4, tcp6)
    start = 20 if build in (tcp4, udp4) else 40
    kind = (TCPV4 if start == 20 else TCPV6) if tcp else UDP_L4
    virtio = VirtioHeader(
        NEEDS_CSUM, kind, start + (20 if tcp else 8), 1000, start, 16 if tcp else 6
    )
    cut = list(engine.segment(read, virtio))
    assert_sound(cut)
    hook = merged(engine, cut, udp=True, delivered_checksums="partial")
    (written,) = hook.given
    assert (written.data, written.virtio) == (read, virtio)
    assert written.ip_id_mode is (IpIdMode.INCREMENT if start == 20 else IpIdMode.NONE)
    batch: list[bytes | TrafficPacket] = [TrafficPacket(read, virtio=virtio), b"y"]
    through, _ = merged(engine, batch, udp=True, delivered_checksums="partial").given
    assert (through.data, through.virtio, through.segments) == (read, virtio, cut)
