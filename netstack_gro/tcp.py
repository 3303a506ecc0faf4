"""May this TCP segment extend that head? And the arithmetic of their checksums.

Sources: RFC 9293 section 3.1 for the header; the fields that must agree are those of Linux
6.18's tcp_gro_receive and, in addition, the urgent pointer, which could not be restored.
"""

from netstack_gro import codes, headers, records, wire
from netstack_gro.wire import Base


def difference(head: records.Head, base: Base, offset: int, found: records.Parsed) -> int:
    """The first `CloseReason`, by header fields, why a segment of the flow cannot extend; or 0."""
    reason = headers.network_difference(head, base, offset, found)
    if reason:
        return reason
    h = head.offset + head.transport
    at = offset + found.transport
    if wire.u32(head.base, h + 8) != wire.u32(base, at + 8):
        return codes.CLOSED_ACK
    if wire.u16(head.base, h + 14) != wire.u16(base, at + 14):
        return codes.CLOSED_WINDOW
    if wire.u16(head.base, h + 18) != wire.u16(base, at + 18):
        return codes.CLOSED_URGENT_POINTER
    # The low nibble of byte 12 holds reserved bits and AE (RFC 9768), FIN and PSH are free.
    if (wire.u16(head.base, h + 12) ^ wire.u16(base, at + 12)) & 0x0FF6:
        return codes.CLOSED_TCP_FLAGS
    size = found.header_length - found.transport
    if size != head.header_length - head.transport:
        return codes.CLOSED_TCP_OPTIONS
    if not wire.equal(head.base, h + 20, base, at + 20, size - 20):
        return codes.CLOSED_TCP_OPTIONS
    return 0


def constant_sum(head: records.Head) -> int:
    """What all segments of a head have in common in their checksums, folded.

    Addresses, protocol, the length of the TCP header, and that header but for sequence number,
    the word of data offset and flags, and the checksum itself.
    """
    at = head.offset + head.transport
    count = head.header_length - head.transport
    total = headers.address_sum(head.base, head.offset + head.network, head.version)
    total += codes.TCP + count
    total += wire.u32(head.base, at)
    total += wire.u32(head.base, at + 8)
    total += wire.u16(head.base, at + 14)
    total += wire.u16(head.base, at + 18)
    total += wire.sum16(head.base, at + 20, count - 20)
    return wire.fold(total)
