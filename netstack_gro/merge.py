"""What continues a head, and how a head grows.

`follow` is the way of nearly every packet that merges: its headers repeat the head's but for
lengths, sequence number, ID and checksums, so it need not be parsed. `difference` and `extend`
are the same rules for a packet that was. ``fixed_ids`` is a number of `codes.FIXED_IDS`;
``sums`` says whether the checksums of super-packets will be complete, and so what to gather.
"""

from netstack_gro import codes, headers, records, tcp, udp, wire
from netstack_gro.wire import Base


def follow(
    slots: list[records.Slot],
    head: records.Head,
    slot: records.Slot,
    index: int,
    fixed_ids: int,
    sums: bool,
) -> int:
    """Append a packet that plainly continues an open head: no need to parse it.

    Interface, VLAN and checksum state are the head's, and the packet is longer than the head's
    headers. 0 where it was appended, CLOSED_BAD_CHECKSUM where it would have been but for its
    checksum; anything else: parse it.
    """
    if not _repeats(head, slot, sums):
        return codes.DIFFERENT
    payload = slot.length - head.header_length
    why = _continues(head, slot, payload, fixed_ids)
    if why:
        return codes.DIFFERENT
    return extend(slots, head, slot, index, payload, sums)


def difference(
    head: records.Head, slot: records.Slot, parsed: records.Parsed, state: int, fixed_ids: int
) -> int:
    """The first `CloseReason` why a candidate of the flow cannot extend its head, or 0."""
    if slot.vlan != head.vlan:
        return codes.CLOSED_LINK_HEADER
    if head.protocol == codes.TCP:
        why = tcp.difference(head, slot.base, slot.offset, parsed)
    else:
        why = headers.network_difference(head, slot.base, slot.offset, parsed)
    if not why:
        why = _continues(head, slot, parsed.payload, fixed_ids)
        if state != head.checksum and (not why or why > codes.CLOSED_CHECKSUM_STATE):
            why = codes.CLOSED_CHECKSUM_STATE
    return why


def extend(
    slots: list[records.Slot],
    head: records.Head,
    slot: records.Slot,
    index: int,
    payload: int,
    sums: bool,
) -> int:
    """Append a packet that continues the head, once the checksums at stake are right.

    0 where it was appended, CLOSED_BAD_CHECKSUM where its own checksum is wrong, HEAD_BAD where
    the head's is.
    """
    if head.checksum != codes.VERIFIED:
        why = _challenge(slots, head, slot)
        if why:
            return why
    return _append(slots, head, slot, index, payload, sums)


def close(head: records.Head, reason: int) -> int:
    """Append nothing more to a head."""
    head.open = False
    head.closed = reason
    return 0


def _repeats(head: records.Head, slot: records.Slot, sums: bool) -> bool:
    """Whether a packet is a candidate whose headers repeat the head's: no need to parse it.

    All must be equal but IP length, IPv4 ID and header checksum, UDP length, TCP sequence
    number, FIN, PSH, and the transport checksum. The packet is longer than the headers.
    """
    base = slot.base
    at = slot.offset + head.transport
    if head.protocol == codes.TCP:
        if not wire.same_tcp(
            base,
            at,
            head.base,
            head.offset + head.transport,
            head.header_length - head.transport,
        ):
            return False
    elif (
        wire.u32(base, at) != wire.u32(head.base, head.offset + head.transport)
        or wire.u16(base, at + 4) != slot.length - head.transport
        or not wire.u16(base, at + 6)
    ):
        return False
    at = slot.offset + head.network
    size = slot.length - head.network
    if head.version == 4:
        if not wire.same_ipv4(base, at, head.base, head.offset + head.network):
            return False
        if not head.ready:
            _prepare(head, sums)
        total = wire.u16(base, at + 2)
        check = wire.fold16(head.ip_sum + total + wire.u16(base, at + 4))
        if total != size or check + wire.u16(base, at + 10) != 0xFFFF:
            return False
    else:
        if not wire.same_ipv6(base, at, head.base, head.offset + head.network):
            return False
        if wire.u16(base, at + 4) + 40 != size:
            return False
        extensions = head.transport - head.network - 40
        if extensions and not wire.equal(
            base, at + 40, head.base, head.offset + head.network + 40, extensions
        ):
            return False
    return not head.network or wire.equal(base, slot.offset, head.base, head.offset, head.network)


def _continues(head: records.Head, slot: records.Slot, payload: int, fixed_ids: int) -> int:
    """0 where a candidate with the head's headers goes on from it, else the `CloseReason`."""
    if head.protocol == codes.TCP and head.sequence != wire.u32(
        slot.base, slot.offset + head.transport + 4
    ):
        return codes.CLOSED_SEQUENCE
    if head.version == 4:
        ip_id = wire.u16(slot.base, slot.offset + head.network + 4)
        if ip_id == head.ip_id:
            if head.count > 1:
                if head.id_mode != codes.FIXED_ID:
                    return codes.CLOSED_IP_ID
            elif fixed_ids and (
                fixed_ids == codes.FIXED_IDS_REFUSED
                or not wire.u8(head.base, head.offset + head.network + 6) & 0x40
            ):
                return codes.CLOSED_IP_ID
        elif ip_id != (head.ip_id + 1 & 0xFFFF) or (
            head.count > 1 and head.id_mode != codes.INCREMENT_ID
        ):
            return codes.CLOSED_IP_ID
    if payload > head.gso_size:
        return codes.CLOSED_LARGER
    if payload > head.limit - head.payload:
        return codes.CLOSED_SIZE
    return 0


def _challenge(slots: list[records.Slot], head: records.Head, slot: records.Slot) -> int:
    """Verify the checksums that a merge is at stake for, the head's own first.

    0 where both are right, CLOSED_BAD_CHECKSUM where the packet's is not, HEAD_BAD where the
    head's is not: then it was never a head, and is passed through.
    """
    partial = head.checksum == codes.PARTIAL
    if not head.verified:
        if not headers.checksum_right(
            head.base,
            head.offset,
            head.header_length + head.payload,
            head.network,
            head.transport,
            head.version,
            head.protocol,
            partial,
        ):
            first = records.slot_at(slots, head.first)
            first.verdict = codes.BAD_CHECKSUM
            first.head = -1
            head.open = False
            return codes.HEAD_BAD
        head.verified = True
    if headers.checksum_right(
        slot.base,
        slot.offset,
        slot.length,
        head.network,
        head.transport,
        head.version,
        head.protocol,
        partial,
    ):
        return 0
    return codes.CLOSED_BAD_CHECKSUM


def _prepare(head: records.Head, sums: bool) -> int:
    """Sum what the packets of a head have in common."""
    head.ready = True
    if head.version == 4:
        at = head.offset + head.network
        total = headers.address_sum(head.base, at, 4)
        total += wire.u16(head.base, at)
        total += wire.u16(head.base, at + 6)
        total += wire.u16(head.base, at + 8)
        head.ip_sum = wire.fold(total)
    if sums:
        if head.protocol == codes.TCP:
            head.transport_sum = tcp.constant_sum(head)
        else:
            head.transport_sum = udp.constant_sum(head)
        head.odd_sum = 0
        head.even_sum = _covered(head, head.base, head.offset, head.payload)
    return 0


def _covered(head: records.Head, base: Base, offset: int, payload: int) -> int:
    """What the checksum of a segment covers beside its payload, itself included; not folded."""
    at = offset + head.transport
    covered = head.transport_sum + payload
    if head.protocol == codes.TCP:
        covered += wire.u16(base, at + 12) + wire.u16(base, at + 16)
        covered += wire.u32(base, at + 4)
    else:
        covered += payload + wire.u16(base, at + 6)
    return covered


def _append(
    slots: list[records.Slot],
    head: records.Head,
    slot: records.Slot,
    index: int,
    payload: int,
    sums: bool,
) -> int:
    """Make a packet the last segment of a head, and close the head where that ends it."""
    if not head.ready:
        _prepare(head, sums)
    last = records.slot_at(slots, head.last)
    last.following = index
    if head.version == 4:
        ip_id = wire.u16(slot.base, slot.offset + head.network + 4)
        head.id_mode = codes.FIXED_ID if ip_id == head.ip_id else codes.INCREMENT_ID
        head.ip_id = ip_id
    if head.count == 1:
        last.verdict = codes.MERGED
        last.header_length = head.header_length
    head.last = index
    head.count += 1
    slot.verdict = codes.MERGED
    slot.header_length = head.header_length
    if sums:
        covered = _covered(head, slot.base, slot.offset, payload)
        if head.payload & 1:
            head.odd_sum += covered
        else:
            head.even_sum += covered
    head.payload += payload
    flags = 0
    if head.protocol == codes.TCP:
        head.sequence = head.sequence + payload & wire.MASK32
        flags = wire.u8(slot.base, slot.offset + head.transport + 13) & 0x09
        head.flags |= flags
    if payload < head.gso_size:
        close(head, codes.CLOSED_SHORT)
    elif flags & 0x08:
        close(head, codes.CLOSED_PSH)
    elif flags:
        close(head, codes.CLOSED_FIN)
    elif head.count >= head.count_limit:
        close(head, codes.CLOSED_COUNT)
    return 0
