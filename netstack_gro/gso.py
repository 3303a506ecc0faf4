"""Segmentation: the exact inverse of merging, for any packet that a virtio_net_hdr describes.

`segment` cuts what the engine built, and what a TUN, a peer or a capture delivered. It works
from the packet's bytes and its header alone, by offset, so a header that was rewritten (NAT, TTL)
is what every segment is derived from. Sources: include/linux/virtio_net.h and net/ipv4/
{tcp,udp}_offload.c for what a kernel accepts; RFC 9293 and RFC 3168 for the TCP flags.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from netstack_gro import codes, headers, records, wire
from netstack_gro.buffers import contiguous
from netstack_gro.config import MAX_PACKET, Delivered, IpIdMode, Link
from netstack_gro.errors import GsoError
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, VirtioHeader
from netstack_gro.wire import Base

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["complete_checksum", "segment"]


_FIXED = IpIdMode.FIXED  # to look up a member takes longer than to cut a segment
_TUNNEL_BITS = 0x60  # VIRTIO_NET_HDR_GSO_UDP_TUNNEL_IPV4 and _IPV6, include/uapi/linux/virtio_net.h


class Segments:
    """The segments of one super-packet, made one by one as they are asked for."""

    __slots__ = (
        "_at",
        "_base",
        "_gso_size",
        "_header_length",
        "_id_step",
        "_identification",
        "_length",
        "_network",
        "_network_sum",
        "_no_checksum",
        "_number",
        "_older",
        "_owner",
        "_partial",
        "_previous",
        "_protocol",
        "_pseudo_sum",
        "_sequence",
        "_transport",
        "_transport_sum",
        "_version",
    )

    _at: int
    _base: Base
    _gso_size: int
    _header_length: int
    _id_step: int
    _identification: int
    _length: int
    _network: int
    _network_sum: int
    _no_checksum: bool
    _number: int
    _older: Any
    _owner: memoryview
    _partial: bool
    _previous: Any
    _protocol: int
    _pseudo_sum: int
    _sequence: int
    _transport: int
    _transport_sum: int
    _version: int

    def __init__(self) -> None:
        raise TypeError("cannot create 'Segments' instances; call segment()")

    def __iter__(self) -> "Segments":
        return self

    def __next__(self) -> bytes:
        if self._at >= self._length:
            raise StopIteration
        return self._cut()

    def __length_hint__(self) -> int:
        left = self._length - self._at
        return (left + self._gso_size - 1) // self._gso_size if left > 0 else 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Segments' object")

    def _prepare(self, view: memoryview, data: Any, found: records.Parsed) -> int:
        base = records.view_base(data, view)
        self._owner = view
        self._base = base
        self._length = len(view)
        self._network = found.network
        self._transport = found.transport
        self._header_length = found.header_length
        self._version = found.version
        self._protocol = found.protocol
        self._at = found.header_length
        self._number = 0
        # What the checksums of all segments cover: the rest is added to each.
        at = found.network
        if found.version == 4:
            self._identification = wire.u16(base, at + 4)
            self._network_sum = wire.sum16(base, at, 2) + wire.sum16(base, at + 6, 4)
            self._network_sum += wire.sum16(base, at + 12, found.transport - at - 12)
        covered = headers.address_sum(base, at, found.version) + found.protocol
        at = found.transport
        self._pseudo_sum = covered
        covered += wire.sum16(base, at, 4)
        if found.protocol == codes.TCP:
            self._sequence = wire.u32(base, at + 4)
            covered += wire.sum16(base, at + 8, 4) + wire.sum16(base, at + 14, 2)
            covered += wire.sum16(base, at + 18, found.header_length - at - 18)
        self._transport_sum = covered
        return 0

    def _cut(self) -> bytes:
        size = min(self._gso_size, self._length - self._at)
        total = self._header_length + size
        last = self._at + size == self._length
        # To allocate takes as long as to copy. A loop that cuts and sends has let go of the last
        # segment but one by now (not of the last, which its variable still holds).
        data = self._older
        self._older = self._previous
        if not records.reusable(data, total):
            data = records.blank(total)
        self._previous = data
        target = records.blank_base(data)
        wire.copy(target, 0, self._base, 0, self._header_length)
        covered = 0
        if self._partial or self._no_checksum:
            wire.copy(target, self._header_length, self._base, self._at, size)
        else:
            covered = wire.copy_sum16(target, self._header_length, self._base, self._at, size)
        self._write_network(target, total)
        if self._protocol == codes.TCP:
            covered += self._write_tcp(target, last)
        else:
            covered += 8 + size
            wire.put_u16(target, self._transport + 4, 8 + size)
        if not self._no_checksum:
            self._write_checksum(target, total - self._transport, covered)
        self._at += size
        self._number += 1
        return records.finished(data)

    def _write_network(self, target: Any, total: int) -> int:
        """IP lengths, and for IPv4 the ID and the header checksum."""
        at = self._network
        length = total - at
        if self._version == 6:
            wire.put_u16(target, at + 4, length - 40)
            return 0
        number = self._identification + self._number * self._id_step & 0xFFFF
        wire.put_u16(target, at + 2, length)
        wire.put_u16(target, at + 4, number)
        wire.put_u16(target, at + 10, 0xFFFF - wire.fold(self._network_sum + length + number))
        return 0

    def _write_tcp(self, target: Any, last: bool) -> int:
        """Sequence number and flags: FIN and PSH end the last segment, CWR stands on the first.

        Returns the sum of what was written.
        """
        at = self._transport
        word = wire.u16(self._base, at + 12)
        if not last:
            word &= 0xFFF6
        if self._number:
            word &= 0xFF7F
        sequence = (self._sequence + self._at - self._header_length) & wire.MASK32
        wire.put_u16(target, at + 12, word)
        wire.put_u32(target, at + 4, sequence)
        return word + (sequence >> 16) + (sequence & 0xFFFF)

    def _write_checksum(self, target: Any, count: int, covered: int) -> int:
        """The transport checksum of ``count`` bytes; covered: the sum of what differs in them."""
        field = self._transport + (16 if self._protocol == codes.TCP else 6)
        if self._partial:
            wire.put_u16(target, field, wire.fold(self._pseudo_sum + count))
            return 0
        check = 0xFFFF - wire.fold(self._transport_sum + count + covered)
        if not check and self._protocol == codes.UDP:
            check = 0xFFFF  # RFC 768: 0 would say that there is none
        wire.put_u16(target, field, check)
        return 0


records.seal(Segments, ("_at", "_length"), ("_older", "_previous"))


def segment(
    packet: "Buffer",
    header: VirtioHeader,
    ip_id_mode: IpIdMode = IpIdMode.INCREMENT,
    *,
    link: Link | None = None,
    checksums: Delivered = "complete",
    max_segments: int = 65535,
) -> Iterator[bytes]:
    """The wire packets that ``packet`` stands for, lazily.

    packet: bytes-like, from its link header on. It is not changed.
    header: what describes it. A packet that it does not ask to cut (gso_type NONE, or no more
        payload than one gso_size) is returned as it is: the iterator's only item is ``packet``.
    ip_id_mode: how IPv4 IDs go on: FIXED repeats the first, anything else counts up by one, as
        every kernel does.
    link: the link layer; None takes it from ``header.link``, which a packet's own header has, or
        else finds it by ``header.csum_start``, and refuses where several fit.
    checksums: ``complete`` computes each transport checksum, ``partial`` writes pseudo-header
        sums. A UDP packet over IPv4 whose checksum is 0, without NEEDS_CSUM, keeps 0.
    max_segments: a packet that would be cut into more is refused.

    Of TCP, FIN and PSH appear on the last segment only and CWR on the first only. Raises
    GsoError, at the call, for what cannot be cut: neither TCP nor UDP, UFO, tunnel bits,
    gso_size 0 or 65,535, a header that does not fit the packet, too many segments.
    """
    if not isinstance(header, VirtioHeader):
        raise TypeError(f"header: a VirtioHeader is required, not {type(header).__name__!r}")
    mode = ip_id_mode if type(ip_id_mode) is IpIdMode else IpIdMode(ip_id_mode)
    if checksums != "complete" and checksums != "partial":
        raise ValueError(f"checksums: {checksums!r} is neither 'complete' nor 'partial'")
    if link is None:
        link = header.link
    if link is not None and link not in codes.LINKS:
        raise ValueError(f"link: {link!r} is not one of {', '.join(codes.LINKS)}")
    view = contiguous(packet)
    if not header.gso_type & ~GSO_ECN:
        whole: Any = packet
        return iter((whole,))
    found = records.parsed()
    try:
        return _segments(packet, view, header, mode, link, checksums, max_segments, found)
    finally:
        records.release(found)


def _segments(
    packet: Any,
    view: memoryview,
    header: VirtioHeader,
    mode: IpIdMode,
    link: Link | None,
    checksums: str,
    max_segments: int,
    found: records.Parsed,
) -> Iterator[bytes]:
    kind = header.gso_type & ~GSO_ECN
    if kind & _TUNNEL_BITS:
        raise GsoError(f"gso_type {header.gso_type:#x}: segmentation inside a tunnel")
    if kind != codes.GSO_TCPV4 and kind != codes.GSO_TCPV6 and kind != codes.GSO_UDP_L4:
        raise GsoError(f"gso_type {header.gso_type:#x} is not TCPV4, TCPV6 or UDP_L4")
    gso_size = header.gso_size
    if gso_size == 0 or gso_size == codes.NO_GSO_SIZE:
        raise GsoError(f"gso_size {gso_size} cuts nothing")
    if len(view) > MAX_PACKET:
        raise GsoError(f"a packet of {len(view)} bytes")
    _find(packet, view, header, link, found)
    if kind != kind_of(found.version, found.protocol):
        raise GsoError(
            f"gso_type {header.gso_type:#x} on IPv{found.version} protocol {found.protocol}"
        )
    partial = header.flags & NEEDS_CSUM
    if partial:
        offset = 16 if found.protocol == codes.TCP else 6
        if header.csum_start != found.transport or header.csum_offset != offset:
            raise GsoError(
                f"csum_start {header.csum_start} and csum_offset {header.csum_offset} are not "
                f"{found.transport} and {offset}, where the packet has its checksum"
            )
    payload = len(view) - found.header_length
    count = (payload + gso_size - 1) // gso_size
    if count <= 1:
        return iter((packet,))
    if count > max_segments:
        raise GsoError(f"{count} segments, more than max_segments ({max_segments})")
    result = Segments.__new__(Segments)
    result._prepare(view, packet, found)
    result._gso_size = gso_size
    result._id_step = 0 if mode is _FIXED else 1
    result._partial = checksums == "partial"
    result._no_checksum = (
        found.protocol == codes.UDP
        and found.version == 4
        and not partial
        and view[found.transport + 6] == 0
        and view[found.transport + 7] == 0
    )
    return result


def kind_of(version: int, protocol: int) -> int:
    """The gso_type of a TCP or UDP packet."""
    if protocol == codes.UDP:
        return codes.GSO_UDP_L4
    return codes.GSO_TCPV4 if version == 4 else codes.GSO_TCPV6


def fits(slot: records.Slot, found: records.Parsed, reason: int) -> bool:
    """Whether what a packet's virtio_net_hdr says is true of the packet as parsed.

    reason: what `headers.parse` returned. Where it is true, `segment` cuts the packet.
    A header that asks only for a checksum of a protocol that is not parsed is believed within
    the packet's bounds.
    """
    offset = 16 if found.protocol == codes.TCP else 6
    if slot.flags & records.NEEDS_CSUM:
        if slot.csum_start + slot.csum_offset + 2 > slot.length:
            return False
        if found.header_length and (
            slot.csum_start != found.transport or slot.csum_offset != offset
        ):
            return False
    if not slot.flags & records.VNET:
        return True
    if not found.header_length or not found.payload or found.refused:
        return False
    if reason == codes.TRUNCATED or reason == codes.TRAILING_BYTES:
        return False
    if slot.gso_size == 0 or slot.gso_size == codes.NO_GSO_SIZE:
        return False
    return slot.gso_type & 0x7F == kind_of(found.version, found.protocol)


def _find(
    packet: Any, view: memoryview, header: VirtioHeader, link: Link | None, found: records.Parsed
) -> int:
    """Locate the headers of ``packet``; with no link named, by where the transport header is."""
    base = records.view_base(packet, view)
    if link is not None:
        problem = locate(codes.LINKS[link], base, len(view), found)
        if problem:
            raise GsoError(f"{_PROBLEMS[problem]} (link {link})")
        return 0
    places: dict[int, Link] = {}
    for name, layout in codes.LINKS.items():
        if not locate(layout, base, len(view), found) and found.transport == header.csum_start:
            places[found.network] = name
    if not places and not header.needs_csum:
        places[0] = "ip"
    if len(places) != 1:
        raise GsoError(
            f"csum_start {header.csum_start} fits "
            + (f"several link layers ({', '.join(places.values())})" if places else "no link layer")
            + ": name the link"
        )
    return _find(packet, view, header, next(iter(places.values())), found)


_PROBLEMS = (
    "",
    "the packet does not hold a whole IP header",
    "the IP length is not the packet's",
    "a fragment, or extension headers that cannot be copied",
    "neither TCP nor UDP",
    "the packet does not hold a whole transport header",
)


def locate(link: int, base: Base, length: int, found: records.Parsed) -> int:
    """Find network and transport headers without judging them; a number of _PROBLEMS, or 0.

    Unlike `headers.parse` this does not mind checksums, flags or a length field of 0: all are
    written anew in every segment.
    """
    found.network = 0
    found.transport = 0
    found.header_length = 0
    found.version = 0
    found.barrier = False
    found.refused = False
    expected = 0
    if link == codes.LINK_IPV4:
        expected = 4
    elif link == codes.LINK_IPV6:
        expected = 6
    elif link != codes.LINK_IP:
        if headers.find_network(link, base, 0, length, found):
            return 1
        expected = found.version
    if length - found.network < 20:
        return 1
    found.version = wire.u8(base, found.network) >> 4
    if expected and found.version != expected:
        return 1
    if found.version == 4:
        header = (wire.u8(base, found.network) & 15) * 4
        found.length = wire.u16(base, found.network + 2)
        if header < 20 or header > length - found.network:
            return 1
        if found.length and found.length != length - found.network:
            return 2
        if wire.u16(base, found.network + 6) & 0x3FFF:
            return 3
        found.length = length - found.network
        found.protocol = wire.u8(base, found.network + 9)
        found.transport = found.network + header
    elif found.version == 6:
        reason = headers.parse_ipv6(base, 0, length, length, found)
        if reason == codes.TRUNCATED or reason == codes.TRAILING_BYTES:
            return 2
        if found.barrier or found.refused:
            return 3 if reason != codes.IP_TRUNCATED else 1
    else:
        return 1
    if found.protocol == codes.TCP:
        headers.parse_tcp(base, 0, codes.OTHER_PROTOCOL, found)
    elif found.protocol == codes.UDP:
        headers.parse_udp(base, 0, codes.OTHER_PROTOCOL, found)
    else:
        return 4
    return 0 if found.header_length else 5


def complete_checksum(packet: "Buffer", header: VirtioHeader) -> bytes:
    """A copy of ``packet`` with the checksum filled in that ``header`` says is partial.

    The field at csum_start + csum_offset holds the pseudo-header sum; the result covers the
    bytes from csum_start to the end (virtio specification 5.1.6.2). A UDP result of 0 is
    written as 0xFFFF. Without NEEDS_CSUM the copy is unchanged. Raises GsoError where the field
    lies outside the packet.
    """
    if not isinstance(header, VirtioHeader):
        raise TypeError(f"header: a VirtioHeader is required, not {type(header).__name__!r}")
    result = bytearray(contiguous(packet))
    if not header.needs_csum:
        return bytes(result)
    field = header.csum_start + header.csum_offset
    if field + 2 > len(result):
        raise GsoError(
            f"csum_start {header.csum_start} and csum_offset {header.csum_offset} point past the "
            f"packet's {len(result)} bytes"
        )
    base = records.space_base(result)
    check = 0xFFFF - wire.sum16(base, header.csum_start, len(result) - header.csum_start)
    if not check and header.csum_offset == 6:
        check = 0xFFFF
    wire.put_u16(base, field, check)
    return bytes(result)
