"""The arithmetic of UDP checksums (RFC 768).

Whether a datagram extends a head follows from link, IP header and size: see `merge.difference`.
"""

from netstack_gro import codes, headers, records, wire


def constant_sum(head: records.Head) -> int:
    """What all datagrams of a head have in common in their checksums, folded.

    Addresses, protocol, ports, and twice the length of the UDP header: the length field stands in
    the pseudo-header too.
    """
    total = headers.address_sum(head.base, head.offset + head.network, head.version)
    total += codes.UDP + 2 * 8
    total += wire.u32(head.base, head.offset + head.transport)
    return wire.fold(total)
