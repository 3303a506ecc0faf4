"""Partial checksums: written by `segment` when asked, filled in by `complete_checksum`."""

from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.errors import GsoError
from netstack_gro.virtio import DATA_VALID, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders as b
from tests.builders import ipv4, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import assert_sound
from tests.packet_kinds import HBH

BODY = bytes(range(256)) * 13
TCPV4, TCPV6, UDP_L4 = GsoType.TCPV4, GsoType.TCPV6, GsoType.UDP_L4
Build = Callable[..., bytes]
KINDS: list[tuple[Build, int]] = [(tcp4, TCPV4), (tcp6, TCPV6), (udp4, UDP_L4), (udp6, UDP_L4)]


def place_of(build: Build, kind: int, before: int = 0) -> VirtioHeader:
    """Where the checksum of a packet is, behind so many bytes of extension headers."""
    start = (20 if build in (tcp4, udp4) else 40) + before
    return VirtioHeader(NEEDS_CSUM, 0, 0, 0, start, 6 if kind == UDP_L4 else 16)


@pytest.mark.parametrize(("build", "kind"), KINDS)
@pytest.mark.parametrize("extensions", [False, True])
def test_partial_segments_are_completed_by_what_their_vnet_header_says(
    engine: Engine, build: Build, kind: int, extensions: bool
) -> None:
    if extensions and build in (tcp4, udp4):
        return
    more: dict[str, Any] = {"extensions": [HBH]} if extensions else {}
    packet = build(BODY[:250], **more)
    place = place_of(build, kind, 8 * extensions)
    start = place.csum_start
    asked = VirtioHeader(gso_type=kind, gso_size=100)
    partial = list(engine.segment(packet, asked, checksums="partial"))
    complete = list(engine.segment(packet, asked))
    assert partial != complete
    assert [engine.complete_checksum(part, place) for part in partial] == complete
    for part in partial:
        at = start + place.csum_offset
        addresses = (part[12:16], part[16:20]) if start == 20 else (part[8:24], part[24:40])
        expected = b.pseudo_sum(*addresses, 17 if kind == UDP_L4 else 6, len(part) - start)
        assert int.from_bytes(part[at : at + 2], "big") == expected


def test_a_checksum_is_completed_as_scapy_computes_it(engine: Engine) -> None:
    for build, kind in KINDS:
        for size in (0, 1, 2, 99, 1448):
            packet = build(BODY[:size], partial=True)
            done = engine.complete_checksum(packet, place_of(build, kind))
            assert type(done) is bytes
            assert_sound([done])


@pytest.mark.parametrize("flags", [0, DATA_VALID])
def test_a_packet_without_a_partial_checksum_is_copied_unchanged(
    engine: Engine, flags: int
) -> None:
    for packet in (b"", b"noise", tcp4(b"x", checksum=1)):
        data = bytearray(packet)
        done = engine.complete_checksum(data, VirtioHeader(flags, 0, 0, 0, 999, 999))
        assert done == packet
        assert type(done) is bytes


@pytest.mark.parametrize(
    ("start", "offset"), [(41, 6), (40, 7), (0, 46), (65535, 65535), (46, 0), (47, 0)]
)
def test_a_checksum_field_outside_the_packet_is_an_error(
    engine: Engine, start: int, offset: int
) -> None:
    data = bytearray(47)
    with pytest.raises(GsoError, match=f"csum_start {start} and csum_offset {offset}"):
        engine.complete_checksum(data, VirtioHeader(NEEDS_CSUM, 0, 0, 0, start, offset))
    assert data == bytes(47)
    data.append(0)


def test_a_checksum_of_any_protocol_is_completed_where_the_header_says(engine: Engine) -> None:
    data = ipv4(bytes(range(40)) + bytes(2) + bytes(18), protocol=132)
    done = engine.complete_checksum(data, VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 40))
    assert b.ones_sum(done[20:]) == 0
    assert done[:60] + done[62:] == data[:60] + data[62:]


def test_a_completed_udp_checksum_of_zero_is_written_as_all_ones(engine: Engine) -> None:
    for value in range(65536):
        packet = udp4(value.to_bytes(2, "big") + b"ab")
        if packet[26:28] == b"\xff\xff":
            break
    partial = udp4(value.to_bytes(2, "big") + b"ab", partial=True)
    done = engine.complete_checksum(partial, VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 6))
    assert done == packet
