"""May this UDP datagram extend that head? And the arithmetic of their checksums.

Sources: RFC 768 for the header; Linux 6.18's udp_gro_receive for the rules.
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
