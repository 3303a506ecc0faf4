"""What continues a head, and how a head grows.

`run` appends the packets of a batch that continue a head. Nearly every packet that merges repeats
the head's headers but for lengths, sequence number, ID and checksums, so that it need not be
parsed; of one that was, `difference` says why not. ``fixed_ids`` is a number of
`codes.FIXED_IDS`.
"""

from netstack_gro import codes, headers, records, tcp, udp, wire
from netstack_gro.wire import Base


def run(
    slots: list[records.Slot],
    head: records.Head,
    start: int,
    stop: int,
    known: bool,
    fixed_ids: int,
) -> int:
    """Append the packets from ``start`` on that continue an open head, until one does not.

    A packet that was not parsed must plainly do so, without metadata that the head's first packet
    had not. ``known`` says that they were, and that there is no `difference`. Returns the index of
    the first that was not appended, ``stop`` where all were; -1 less the index of one that would
    have been but for its own checksum.

    One loop over locals, where functions and the head's fields would be easier to read: nearly
    every packet takes this way, and with them it costs twice as much.
    """
    tcp = head.protocol == codes.TCP
    four = head.version == 4
    first = head.base
    network = head.offset + head.network
    transport = head.offset + head.transport
    extensions = head.transport - head.network - 40
    last = records.slot_at(slots, head.last)
    modes = _id_modes(head, fixed_ids)
    ip_id = head.ip_id
    sequence = head.sequence
    total = head.payload
    count = head.count
    even = odd = number = mode = flags = reason = 0
    refused = False
    index = start
    while index < stop:
        slot = records.slot_at(slots, index)
        payload = slot.length - head.header_length
        if (
            payload <= 0
            or payload > head.gso_size
            or payload > head.limit - total
            or slot.wire_length != slot.length
            or slot.interface != head.interface
            or slot.vlan != head.vlan
            or ((slot.flags or slot.checksum != head.given) and not known)
        ):
            break
        # All must be equal but IP length, ID and header checksum, UDP length, TCP sequence
        # number, FIN, PSH, and the transport checksum.
        base = slot.base
        at = slot.offset + head.transport
        if tcp:
            if wire.u32(base, at + 4) != sequence or not wire.same_tcp(
                base, at, first, transport, head.header_length - head.transport
            ):
                break
        elif (
            wire.u32(base, at) != wire.u32(first, transport)
            or wire.u16(base, at + 4) != slot.length - head.transport
            or not wire.u16(base, at + 6)
        ):
            break
        at = slot.offset + head.network
        size = slot.length - head.network
        if four:
            number = wire.u16(base, at + 4)
            mode = codes.FIXED_ID if number == ip_id else codes.INCREMENT_ID
            if (
                not modes & mode
                or (number != ip_id and number != (ip_id + 1 & 0xFFFF))
                or wire.u16(base, at + 2) != size
                or not wire.same_ipv4(base, at, first, network)
            ):
                break
        elif (
            wire.u16(base, at + 4) + 40 != size
            or not wire.same_ipv6(base, at, first, network)
            or (extensions and not wire.equal(base, at + 40, first, network + 40, extensions))
        ):
            break
        if head.network and not wire.equal(base, slot.offset, first, head.offset, head.network):
            break
        if not head.ready:
            _prepare(head)
        if four:
            check = wire.fold16(head.ip_sum + size + number)
            if check + wire.u16(base, at + 10) != 0xFFFF:
                break
        # What the transport checksum covers beside the payload, itself included.
        at = slot.offset + head.transport
        covered = head.transport_sum + payload
        if tcp:
            check = wire.u16(base, at + 16)
            covered += sequence
            covered += wire.u16(base, at + 12)
        else:
            check = wire.u16(base, at + 6)
            covered += payload
        covered += check
        if head.checksum != codes.VERIFIED:
            if not head.verified and not _verify_first(slots, head):
                break
            if head.checksum == codes.PARTIAL:
                refused = not _is_right(head, base, slot.offset, slot.length)
            else:
                data = wire.sum16(base, slot.offset + head.header_length, payload)
                # 0xFFFF in place of 0 is the same sum, but not what segmentation would write.
                refused = wire.fold(covered + data) != 0xFFFF or (tcp and check == 0xFFFF)
            if refused:
                break
        if count == 1:
            last.verdict = codes.MERGED
            last.header_length = head.header_length
        last.following = index
        last = slot
        slot.head = -1
        slot.following = -1
        slot.verdict = codes.MERGED
        slot.header_length = head.header_length
        modes = mode
        ip_id = number
        if tcp:
            flags |= wire.u8(base, at + 13) & 0x09
            sequence = sequence + payload & wire.MASK32
        if total & 1:
            odd += covered
        else:
            even += covered
        total += payload
        count += 1
        index += 1
        if payload < head.gso_size or flags or count >= head.count_limit:
            if payload < head.gso_size:
                reason = codes.CLOSED_SHORT
            elif flags:
                reason = codes.CLOSED_PSH if flags & 0x08 else codes.CLOSED_FIN
            else:
                reason = codes.CLOSED_COUNT
            break
    if count > head.count:
        head.last = index - 1
        head.count = count
        head.payload = total
        head.sequence = sequence
        head.ip_id = ip_id
        head.id_mode = modes
        head.flags |= flags
        head.even_sum += even
        head.odd_sum += odd
        if reason:
            close(head, reason)
    return -1 - index if refused else index


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


def close(head: records.Head, reason: int) -> int:
    """Append nothing more to a head."""
    head.open = False
    head.closed = reason
    return 0


def _continues(head: records.Head, slot: records.Slot, payload: int, fixed_ids: int) -> int:
    """0 where a candidate with the head's headers goes on from it, else the `CloseReason`."""
    if head.protocol == codes.TCP and head.sequence != wire.u32(
        slot.base, slot.offset + head.transport + 4
    ):
        return codes.CLOSED_SEQUENCE
    if head.version == 4:
        ip_id = wire.u16(slot.base, slot.offset + head.network + 4)
        mode = codes.FIXED_ID if ip_id == head.ip_id else codes.INCREMENT_ID
        if not _id_modes(head, fixed_ids) & mode:
            return codes.CLOSED_IP_ID
        if ip_id != head.ip_id and ip_id != (head.ip_id + 1 & 0xFFFF):
            return codes.CLOSED_IP_ID
    if payload > head.gso_size:
        return codes.CLOSED_LARGER
    if payload > head.limit - head.payload:
        return codes.CLOSED_SIZE
    return 0


def _id_modes(head: records.Head, fixed_ids: int) -> int:
    """How the IPv4 IDs of a head may go on: FIXED_ID, INCREMENT_ID, or both, as bits."""
    if head.count > 1 or head.version != 4:
        return head.id_mode
    if fixed_ids and (
        fixed_ids == codes.FIXED_IDS_REFUSED
        or not wire.u8(head.base, head.offset + head.network + 6) & 0x40
    ):
        return codes.INCREMENT_ID
    return codes.FIXED_ID | codes.INCREMENT_ID


def _verify_first(slots: list[records.Slot], head: records.Head) -> bool:
    """Verify a head's own checksum, which is at stake when a packet is to be merged into it.

    Where it is not right, the packet was never a head, and is passed through.
    """
    head.verified = _is_right(head, head.base, head.offset, head.header_length + head.payload)
    if not head.verified:
        first = records.slot_at(slots, head.first)
        first.verdict = codes.BAD_CHECKSUM
        first.head = -1
        head.open = False
    return head.verified


def _is_right(head: records.Head, base: Base, offset: int, length: int) -> bool:
    """Whether the checksum of a packet with the head's headers is right."""
    return headers.checksum_right(
        base,
        offset,
        length,
        head.network,
        head.transport,
        head.version,
        head.protocol,
        head.checksum == codes.PARTIAL,
    )


def _prepare(head: records.Head) -> int:
    """Sum what the packets of a head have in common."""
    head.ready = True
    base = head.base
    if head.version == 4:
        at = head.offset + head.network
        total = headers.address_sum(base, at, 4)
        total += wire.u16(base, at)
        total += wire.u16(base, at + 6)
        total += wire.u16(base, at + 8)
        head.ip_sum = wire.fold(total)
    at = head.offset + head.transport
    if head.protocol == codes.TCP:
        head.transport_sum = tcp.constant_sum(head)
        total = wire.u16(base, at + 12) + wire.u16(base, at + 16)
        total += wire.u32(base, at + 4)
    else:
        head.transport_sum = udp.constant_sum(head)
        total = head.payload + wire.u16(base, at + 6)
    head.odd_sum = 0
    head.even_sum = total + head.transport_sum + head.payload
    return 0
