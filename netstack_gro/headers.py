"""One bounds-checked pass over a packet's headers, and what follows from it.

`parse` says whether a packet is a candidate for merging and, if not, why; after it, offsets are
facts and nothing below checks them again. Sources: RFC 791 and RFC 6864 (IPv4), RFC 8200
(IPv6), RFC 9293 (TCP), RFC 768 (UDP), IEEE 802.1Q (VLAN tags), tcpdump.org/linktypes.html.

Layouts of link headers are numbers here: `codes.LINKS` maps the names of `config.Link` to them.
"""

from netstack_gro import codes, records, wire
from netstack_gro.wire import Base


def parse(
    link: int, base: Base, offset: int, length: int, wire_length: int, found: records.Parsed
) -> int:
    """Parse the packet of ``length`` bytes at ``offset`` of ``base`` into ``found``.

    Returns 0 for a candidate, else the `Verdict` with which the packet is passed through.
    ``found`` then says how far the pass came: network, transport and header_length are offsets
    from the packet's start, 0 where not reached; ``readable`` that addresses, protocol and ports
    are those of a TCP or UDP flow; ``barrier`` that the packet may belong to any flow;
    ``refused`` that its extension headers cannot be repeated in every segment.
    """
    found.network = 0
    found.transport = 0
    found.header_length = 0
    found.payload = 0
    found.length = 0
    found.version = 0
    found.protocol = 0
    found.flags = 0
    found.readable = False
    found.barrier = False
    found.refused = False
    expected = 0
    if link == codes.LINK_IPV4:
        expected = 4
    elif link == codes.LINK_IPV6:
        expected = 6
    elif link != codes.LINK_IP:
        reason = find_network(link, base, offset, length, found)
        if reason:
            return reason
        expected = found.version
    if length <= found.network:
        found.barrier = True
        return codes.IP_TRUNCATED
    version = wire.u8(base, offset + found.network) >> 4
    if (expected and version != expected) or (version != 4 and version != 6):
        found.version = 0
        found.barrier = True
        return codes.IP_VERSION
    found.version = version
    if version == 4:
        reason = _parse_ipv4(base, offset, length, wire_length, found)
    else:
        reason = parse_ipv6(base, offset, length, wire_length, found)
    if found.barrier:
        return reason
    if found.protocol == codes.TCP:
        return parse_tcp(base, offset, reason, found)
    if found.protocol == codes.UDP:
        return parse_udp(base, offset, reason, found)
    return reason if reason else codes.OTHER_PROTOCOL


def find_network(link: int, base: Base, offset: int, length: int, found: records.Parsed) -> int:
    """Find the IP header behind a link header, and the version that the link announces."""
    if link == codes.LINK_ETHERNET:
        at = 12
        tags = 0
        while True:
            if length < at + 2:
                found.barrier = True
                return codes.LINK_TRUNCATED
            kind = wire.u16(base, offset + at)
            at += 2
            if kind != 0x8100 and kind != 0x88A8:  # IEEE 802.1Q and 802.1ad tag protocol IDs
                break
            tags += 1
            if tags > 2:
                found.barrier = True
                return codes.VLAN_DEPTH
            at += 2
    elif link == codes.LINK_SLL or link == codes.LINK_SLL2:
        at = 16 if link == codes.LINK_SLL else 20
        if length < at:
            found.barrier = True
            return codes.LINK_TRUNCATED
        kind = wire.u16(base, offset + (14 if link == codes.LINK_SLL else 0))
    else:
        at = 4
        if length < at:
            found.barrier = True
            return codes.LINK_TRUNCATED
        kind = wire.u16(base, offset + 2)
        if wire.u16(base, offset):
            # Captured on a host of the other byte order, which only LINKTYPE_NULL allows.
            kind = 0
            if link == codes.LINK_NULL and not wire.u16(base, offset + 2):
                kind = wire.swap16(wire.u16(base, offset))
        if kind == 2:  # AF_INET
            kind = 0x0800
        elif kind == 24 or kind == 28 or kind == 30:
            kind = 0x86DD  # AF_INET6 of NetBSD and OpenBSD, FreeBSD, Darwin
        else:
            kind = 0
    if kind == 0x0800:
        found.version = 4
    elif kind == 0x86DD:
        found.version = 6
    else:
        return codes.NOT_IP
    found.network = at
    return 0


def _parse_ipv4(
    base: Base, offset: int, length: int, wire_length: int, found: records.Parsed
) -> int:
    size = length - found.network
    offset += found.network
    if size < 20:
        found.barrier = True
        return codes.IP_TRUNCATED
    header = (wire.u8(base, offset) & 15) * 4
    if header > size:
        found.barrier = True
        return codes.IP_TRUNCATED
    total = wire.u16(base, offset + 2)
    if header < 20 or (total and total < header):
        found.barrier = True
        return codes.IP_HEADER_LENGTH
    found.length = total
    found.protocol = wire.u8(base, offset + 9)
    found.transport = found.network + header
    reason = 0
    if not total:
        reason = codes.IP_LENGTH_ZERO
        found.length = size
    elif total > size or wire_length != length:
        reason = codes.TRUNCATED
        if total > size:
            found.length = size
    elif total < size:
        reason = codes.TRAILING_BYTES
    elif header > 20:
        reason = codes.IP_OPTIONS
    fragment = wire.u16(base, offset + 6)
    if fragment & 0x3FFF:
        found.barrier = True
        if not reason:
            reason = codes.FRAGMENT
    if fragment & 0x8000 and not reason:
        reason = codes.IP_RESERVED_BIT
    check = wire.u16(base, offset + 10)
    total = wire.sum20(base, offset) if header == 20 else wire.sum16(base, offset, header)
    if check == 0xFFFF or total != 0xFFFF:
        found.barrier = True
        if not reason:
            reason = codes.IP_CHECKSUM
    return reason


def parse_ipv6(
    base: Base, offset: int, length: int, wire_length: int, found: records.Parsed
) -> int:
    """Walk an IPv6 header and its extension headers to the transport header (RFC 8200)."""
    size = length - found.network
    if size < 40:
        found.barrier = True
        return codes.IP_TRUNCATED
    total = wire.u16(base, offset + found.network + 4) + 40
    found.length = total
    reason = 0
    if total == 40:
        reason = codes.IP_LENGTH_ZERO
        found.length = size
    elif total > size or wire_length != length:
        reason = codes.TRUNCATED
        if total > size:
            found.length = size
    elif total < size:
        reason = codes.TRAILING_BYTES
    following = wire.u8(base, offset + found.network + 6)
    at = found.network + 40
    end = found.network + found.length
    count = 0
    found.refused = False
    while (
        following == codes.HOP_BY_HOP
        or following == codes.DESTINATION
        or following == codes.ROUTING
    ):
        count += 1
        if count > codes.EXTENSION_LIMIT:
            found.barrier = True
            return reason if reason else codes.EXTENSION_HEADER
        if at + 8 > end:
            found.barrier = True
            return codes.IP_TRUNCATED
        span = (wire.u8(base, offset + at + 1) + 1) * 8
        if at + span > end:
            found.barrier = True
            return codes.IP_TRUNCATED
        if following == codes.HOP_BY_HOP and count > 1:
            found.refused = True
        elif following == codes.ROUTING and wire.u8(base, offset + at + 3):
            found.refused = True
        following = wire.u8(base, offset + at)
        at += span
    if following == codes.FRAGMENT_HEADER:
        found.barrier = True
        if at + 8 > end:
            return codes.IP_TRUNCATED
        return reason if reason else codes.FRAGMENT
    # ESP, AH, mobility, HIP, shim6 and the experimental numbers may hide TCP or UDP.
    if (
        following == 50
        or following == 51
        or following == 135
        or following == 139
        or following == 140
        or following == 253
        or following == 254
    ):
        found.barrier = True
        return reason if reason else codes.EXTENSION_HEADER
    found.protocol = following
    found.transport = at
    if found.refused and not reason:
        reason = codes.EXTENSION_HEADER
    return reason


def parse_tcp(base: Base, offset: int, reason: int, found: records.Parsed) -> int:
    """Find where a TCP header ends; ``reason`` is a `Verdict` that stands already, or 0."""
    room = found.network + found.length - found.transport
    offset += found.transport
    if room < 4:
        found.barrier = True
        return reason if reason else codes.TRANSPORT_TRUNCATED
    found.readable = True
    if room < 20:
        return reason if reason else codes.TRANSPORT_TRUNCATED
    header = (wire.u8(base, offset + 12) >> 4) * 4
    flags = wire.u8(base, offset + 13)
    found.flags = flags
    if header >= 20 and header <= room:
        found.header_length = found.transport + header
        found.payload = room - header
    if reason:
        return reason
    if found.transport + max(20, header) > codes.HEADERS_LIMIT:
        return codes.HEADERS_TOO_LONG
    if header < 20 or header > room:
        return codes.TCP_DATA_OFFSET
    if flags & 0x02:
        return codes.TCP_SYN
    if flags & 0x04:
        return codes.TCP_RST
    if flags & 0x20:
        return codes.TCP_URG
    if flags & 0x80:
        return codes.TCP_CWR
    if not found.payload:
        return codes.TCP_NO_PAYLOAD
    return 0


def parse_udp(base: Base, offset: int, reason: int, found: records.Parsed) -> int:
    """Find where a UDP header ends; ``reason`` is a `Verdict` that stands already, or 0."""
    room = found.network + found.length - found.transport
    offset += found.transport
    if room < 4:
        found.barrier = True
        return reason if reason else codes.TRANSPORT_TRUNCATED
    found.readable = True
    if room < 8:
        return reason if reason else codes.TRANSPORT_TRUNCATED
    found.header_length = found.transport + 8
    found.payload = room - 8
    if reason:
        return reason
    if found.header_length > codes.HEADERS_LIMIT:
        return codes.HEADERS_TOO_LONG
    if wire.u16(base, offset + 4) != room:
        return codes.UDP_LENGTH
    if not found.payload:
        return codes.UDP_EMPTY
    if not wire.u16(base, offset + 6):
        return codes.UDP_NO_CHECKSUM
    return 0


def same_flow(
    link: int, head: records.Head, base: Base, offset: int, found: records.Parsed
) -> bool:
    """Whether a packet with readable ports belongs to the flow of ``head``.

    The interface and the VLAN of the packet's metadata are the caller's to compare.
    """
    if head.version != found.version or head.protocol != found.protocol:
        return False
    if head.network != found.network:
        return False
    if not wire.equal(head.base, head.offset + head.transport, base, offset + found.transport, 4):
        return False
    if found.version == 4:
        if not wire.equal(
            head.base, head.offset + head.network + 12, base, offset + found.network + 12, 8
        ):
            return False
    elif not wire.equal(
        head.base, head.offset + head.network + 8, base, offset + found.network + 8, 32
    ):
        return False
    if not found.network:
        return True
    return _same_link_flow(link, head.base, head.offset, base, offset, found.network)


def _same_link_flow(link: int, a: Base, a_at: int, b: Base, b_at: int, network: int) -> bool:
    """MAC addresses and VLAN IDs, or a cooked header but for its protocol."""
    if link == codes.LINK_ETHERNET:
        if not wire.equal(a, a_at, b, b_at, 12):
            return False
        at = 12
        while at < network - 2:
            if wire.u16(a, a_at + at) != wire.u16(b, b_at + at):
                return False
            if (wire.u16(a, a_at + at + 2) ^ wire.u16(b, b_at + at + 2)) & 0x0FFF:
                return False
            at += 4
        return True
    if link == codes.LINK_SLL:
        return wire.equal(a, a_at, b, b_at, 14)
    if link == codes.LINK_SLL2:
        return wire.equal(a, a_at + 4, b, b_at + 4, 16)
    return True


def flow_digest(
    link: int, base: Base, offset: int, found: records.Parsed, digest: int, seed: int
) -> int:
    """A 64-bit keyed hash of the flow; ``digest`` starts it and ``seed`` stirs it.

    Both are secret and random per engine, so that nobody can choose packets that collide.
    """
    if link == codes.LINK_ETHERNET:
        digest = wire.mix(digest ^ wire.u64(base, offset), seed ^ wire.u32(base, offset + 8))
        at = 12
        while at < found.network - 2:
            digest = wire.mix(digest ^ (wire.u16(base, offset + at + 2) & 0x0FFF), seed)
            at += 4
    elif link == codes.LINK_SLL:
        digest = wire.mix(digest ^ wire.u64(base, offset), seed ^ wire.u64(base, offset + 6))
    elif link == codes.LINK_SLL2:
        digest = wire.mix(digest ^ wire.u64(base, offset + 4), seed ^ wire.u64(base, offset + 12))
    at = found.network
    ports = found.protocol
    ports = ports << 32 | wire.u32(base, offset + found.transport)
    if found.version == 4:
        return wire.mix(digest ^ wire.u64(base, offset + at + 12), seed ^ ports)
    digest = wire.mix(
        digest ^ wire.u64(base, offset + at + 8), seed ^ wire.u64(base, offset + at + 16)
    )
    digest = wire.mix(
        digest ^ wire.u64(base, offset + at + 24), seed ^ wire.u64(base, offset + at + 32)
    )
    return wire.mix(digest, seed ^ ports)


def network_difference(head: records.Head, base: Base, offset: int, found: records.Parsed) -> int:
    """The first `CloseReason` by which link and IP header differ from the head's, or 0."""
    if not wire.equal(head.base, head.offset, base, offset, found.network):
        return codes.CLOSED_LINK_HEADER
    h = head.offset + head.network
    at = offset + found.network
    if found.version == 4:
        if wire.u8(head.base, h + 1) != wire.u8(base, at + 1):
            return codes.CLOSED_TOS
        if wire.u8(head.base, h + 8) != wire.u8(base, at + 8):
            return codes.CLOSED_TTL
        if wire.u16(head.base, h + 6) != wire.u16(base, at + 6):
            return codes.CLOSED_DF
        return 0
    word = wire.u32(head.base, h) ^ wire.u32(base, at)
    if word & 0x0FF00000:
        return codes.CLOSED_TOS
    if wire.u8(head.base, h + 7) != wire.u8(base, at + 7):
        return codes.CLOSED_TTL
    if word:
        return codes.CLOSED_FLOW_LABEL
    if head.transport != found.transport:
        return codes.CLOSED_EXTENSION_HEADERS
    if not wire.equal(head.base, h + 40, base, at + 40, found.transport - found.network - 40):
        return codes.CLOSED_EXTENSION_HEADERS
    if wire.u8(head.base, h + 6) != wire.u8(base, at + 6):
        return codes.CLOSED_EXTENSION_HEADERS
    return 0


def address_sum(base: Base, offset: int, version: int) -> int:
    """Sum of source and destination address of the IP header at ``offset``, not folded."""
    if version == 4:
        total = wire.u32(base, offset + 12)
        total += wire.u32(base, offset + 16)
        return total
    total = 0
    for word in range(8):
        total += wire.u32(base, offset + 8 + 4 * word)
    return total


def checksum_right(
    base: Base,
    offset: int,
    length: int,
    network: int,
    transport: int,
    version: int,
    protocol: int,
    partial: bool,
) -> bool:
    """Whether a TCP or UDP checksum is canonical: the very bytes that segmentation would write.

    ``length`` is that of the packet, which ends with its IP packet; ``partial`` asks for the
    folded pseudo-header sum (not inverted) in place of the complete checksum.
    """
    count = length - transport
    at = offset + transport
    field = wire.u16(base, at + (16 if protocol == codes.TCP else 6))
    total = address_sum(base, offset + network, version)
    total += protocol + count
    if partial:
        return field == wire.fold(total)
    if protocol == codes.TCP and field == 0xFFFF:
        return False
    total += wire.sum16(base, at, count)
    return wire.fold(total) == 0xFFFF
