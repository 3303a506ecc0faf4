"""Two-piece delivery: for a stack that counts packets to know when to acknowledge.

A receiver acknowledges every second segment, and one that stays alone after a delay (RFC 9293
section 3.8.6.3, RFC 1122 section 4.2.3.2). A stack that takes a super-packet for one segment
delays, and a sender whose window is used up waits for that. Given the first segment by itself and
then the rest, still merged, it counts two and acknowledges at once.
"""

from netstack_gro.config import IpIdMode
from netstack_gro.gso import complete_checksum
from netstack_gro.hooks.tun_frames import ip_start, pseudo_sum
from netstack_gro.packet import Packet
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader

__all__ = ["head_and_rest"]

_CWR = 0x80  # RFC 3168: of the first segment only
_TCP = frozenset({int(GsoType.TCPV4), int(GsoType.TCPV6)})
_INCREMENT = IpIdMode.INCREMENT
_TCP_CHECKSUM = 16  # where it is in a TCP header, RFC 9293 section 3.1


def head_and_rest(packet: Packet) -> list[bytes]:
    """A packet as one or two, from its link header on, with complete checksums.

    A TCP super-packet of at least two segments gives its first segment, as it was on the wire, and
    a packet of all the others: with the sequence number, IPv4 ID, lengths and checksums that these
    merged by themselves would have. Cut by the same ``gso_size`` the two give the packet's
    `Packet.segments`. Anything else gives its own bytes.

    Raises ValueError where the packet was released, and GsoError for a super-packet that its own
    metadata does not describe.
    """
    data = bytes(packet)
    header = packet.virtio_header()
    size = header.gso_size
    if header.gso_type & ~GSO_ECN not in _TCP or len(data) <= header.hdr_len + size:
        return [data]
    first = next(packet.segments())
    rest = bytearray(data[: header.hdr_len] + data[header.hdr_len + size :])
    network, transport = ip_start(data, packet.link), header.csum_start
    if data[network] >> 4 == 4:
        step = packet.ip_id_mode is _INCREMENT
        _add(rest, network + 4, 2, step)
        rest[network + 2 : network + 4] = (len(rest) - network).to_bytes(2, "big")
        rest[network + 10 : network + 12] = bytes(2)
        total = int.from_bytes(rest[network:transport], "big")
        check = 0xFFFF - (total % 0xFFFF or 0xFFFF)
        rest[network + 10 : network + 12] = check.to_bytes(2, "big")
    else:
        rest[network + 4 : network + 6] = (len(rest) - network - 40).to_bytes(2, "big")
    _add(rest, transport + 4, 4, size)
    rest[transport + 13] &= ~_CWR & 0xFF
    partial = VirtioHeader(NEEDS_CSUM, csum_start=transport, csum_offset=_TCP_CHECKSUM)
    field = transport + _TCP_CHECKSUM
    rest[field : field + 2] = pseudo_sum(rest, network, partial).to_bytes(2, "big")
    return [first, complete_checksum(rest, partial)]


def _add(data: bytearray, at: int, width: int, number: int) -> None:
    """Add to an unsigned number of ``width`` bytes, which wraps."""
    value = int.from_bytes(data[at : at + width], "big") + number
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
