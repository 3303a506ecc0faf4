"""Delivery: an engine's memory behind the packets of one flush.

The batch in flight, the heads that its packets opened, and the space where super-packets have
their rewritten headers: input is never written to.
"""

from netstack_gro import codes, gso, headers, records, wire
from netstack_gro.batch import Batch
from netstack_gro.config import Link
from netstack_gro.slabs import SlabPool


class Delivery:
    """One engine's memory: the batch in flight, the heads, and the space for rewritten headers.

    The space has one place of HEADERS_LIMIT bytes per packet of a flush; ``used`` counts them.
    """

    __slots__ = (
        "barrier",
        "batch",
        "capacity",
        "default",
        "heads",
        "layout",
        "link",
        "memory",
        "parsed",
        "partial",
        "pool",
        "slots",
        "space",
        "used",
        "view",
        "viewed",
    )

    barrier: int
    batch: Batch
    capacity: int
    default: int
    heads: list[records.Head]
    layout: int
    link: Link
    memory: bytearray
    parsed: records.Parsed
    partial: bool
    pool: SlabPool
    slots: list[records.Slot]
    space: bytearray
    used: int
    view: memoryview
    viewed: bool

    def __init__(self, link: Link, capacity: int, default: int, max_slabs: int) -> None:
        self.link = link
        self.layout = codes.LINKS[link]
        self.capacity = capacity
        self.heads = records.heads(capacity)
        self.parsed = records.parsed()
        self.pool = SlabPool(bytearray(capacity * codes.HEADERS_LIMIT), max_slabs)
        self.memory = self.pool.current
        self.space = records.space_base(self.memory)
        self.view = memoryview(self.memory)
        self.used = 0
        self.barrier = 0
        self.default = default
        self.partial = False
        self.viewed = False

    def __dealloc__(self) -> None:
        records.release(self.heads)
        records.release(self.parsed)

    def parse(self, index: int) -> int:
        """Parse a packet of the batch into ``parsed``; `headers.parse`'s answer."""
        slot = records.slot_at(self.slots, index)
        return headers.parse(
            self.layout, slot.base, slot.offset, slot.length, slot.wire_length, self.parsed
        )

    def reason(self, index: int) -> int:
        """The `CloseReason` of a slot's head; 0 for a packet passed through."""
        slot = records.slot_at(self.slots, index)
        if slot.head < 0:
            return 0
        return records.head_at(self.heads, slot.head).closed

    def state(self, index: int) -> int:
        """The `ChecksumState` with which a packet came, or that the engine found."""
        slot = records.slot_at(self.slots, index)
        state = slot.checksum if slot.checksum else self.default
        if state == codes.UNKNOWN and slot.head >= 0:
            head = records.head_at(self.heads, slot.head)
            if head.verified:
                return codes.VERIFIED
        return state

    def take_space(self) -> int:
        """The offset of a free place for a header."""
        at = self.used * codes.HEADERS_LIMIT
        self.used += 1
        return at

    def renew(self) -> int:
        """Start over with a space that no kept view can see."""
        self.used = 0
        if self.viewed:
            self.view.release()
            try:
                self.pool.renew()
            finally:
                self.memory = self.pool.current
                self.space = records.space_base(self.memory)
                self.view = memoryview(self.memory)
            self.viewed = False
        return 0

    def write_header(self, index: int) -> int:
        """Write the headers of the super-packet that begins with a slot; their place."""
        slot = records.slot_at(self.slots, index)
        head = records.head_at(self.heads, slot.head)
        at = self.take_space()
        head.space = at
        wire.copy(self.space, at, slot.base, slot.offset, head.header_length)
        length = head.header_length - head.network + head.payload
        if head.version == 4:
            wire.put_u16(self.space, at + head.network + 2, length)
            wire.put_u16(
                self.space,
                at + head.network + 10,
                0xFFFF
                - wire.fold(
                    head.ip_sum + length + wire.u16(slot.base, slot.offset + head.network + 4)
                ),
            )
        else:
            wire.put_u16(self.space, at + head.network + 4, length - 40)
        if head.protocol == codes.TCP:
            wire.put_u8(
                self.space,
                at + head.transport + 13,
                wire.u8(self.space, at + head.transport + 13) | head.flags,
            )
        else:
            wire.put_u16(self.space, at + head.transport + 4, 8 + head.payload)
        self.write_checksum(head)
        return at

    def write_checksum(self, head: records.Head) -> int:
        """The transport checksum of a super-packet whose headers are written."""
        at = head.space + head.transport
        count = head.header_length - head.transport + head.payload
        if self.partial:
            covered = headers.address_sum(self.space, head.space + head.network, head.version)
            covered += head.protocol + count
            check = wire.fold(covered)
        elif head.protocol == codes.TCP:
            covered = head.transport_sum + head.payload + self.sum_payload(head)
            covered += wire.u32(self.space, at + 4)
            covered += wire.u16(self.space, at + 12)
            check = 0xFFFF - wire.fold(covered)
        else:
            covered = head.transport_sum + 2 * head.payload + self.sum_payload(head)
            check = 0xFFFF - wire.fold(covered)
            if not check:
                check = 0xFFFF  # RFC 768: 0 would say that there is none
        wire.put_u16(self.space, at + (16 if head.protocol == codes.TCP else 6), check)
        return 0

    def sum_payload(self, head: records.Head) -> int:
        """The sum of a super-packet's payload, not folded."""
        if head.checksum != codes.PARTIAL:
            # What a right checksum covers sums to 0 modulo 65,535, so a payload is minus the
            # rest; where it starts at an odd offset, its bytes change places in their words.
            return 0xFFFF - wire.fold(head.even_sum) + 0xFFFF - wire.swap16(wire.fold(head.odd_sum))
        total = 0
        position = 0
        index = head.first
        while index >= 0:
            slot = records.slot_at(self.slots, index)
            size = slot.length - slot.header_length
            part = wire.sum16(slot.base, slot.offset + slot.header_length, size)
            total += wire.swap16(part) if position & 1 else part
            position += size
            index = slot.following
        return wire.fold(total)

    def complete(self, index: int) -> int:
        """Write the headers of a lone packet with its partial checksum completed.

        Returns their place, or -1 where the packet does not say what its checksum covers. The
        place's header length is left in ``parsed``.
        """
        slot = records.slot_at(self.slots, index)
        parsed = self.parsed
        reason = self.parse(index)
        if not parsed.header_length or parsed.header_length > codes.HEADERS_LIMIT:
            return -1
        if reason == codes.TRUNCATED or not gso.fits(slot, parsed, reason):
            return -1
        # Whoever said "partial" may be wrong: only a pseudo-header sum can be completed.
        if not headers.checksum_right(
            slot.base,
            slot.offset,
            parsed.network + parsed.length,
            parsed.network,
            parsed.transport,
            parsed.version,
            parsed.protocol,
            True,
        ):
            return -1
        at = parsed.transport
        field = at + (16 if parsed.protocol == codes.TCP else 6)
        count = parsed.network + parsed.length - at
        check = 0xFFFF - wire.sum16(slot.base, slot.offset + at, count)
        if not check and parsed.protocol == codes.UDP:
            check = 0xFFFF
        place = self.take_space()
        wire.copy(self.space, place, slot.base, slot.offset, parsed.header_length)
        wire.put_u16(self.space, place + field, check)
        return place
