"""Engine: what becomes of each packet of a batch.

A packet is first tried against the most recent head; only when it does not plainly continue that
is it parsed and its flow looked up. What is passed through closes its flow's head, or, where its
flow cannot be read, every head at once by a barrier: so a flow is never reordered.
"""

from collections.abc import Callable

from netstack_gro import codes, gso, headers, merge, records, wire
from netstack_gro.flow import Flow
from netstack_gro.table import FlowTable
from netstack_gro.wire import Base


class Engine:
    """The state of one batch: slots, heads, flow table, and the packets to deliver, in order.

    slots, heads: the records of the batch and of the heads that it opened. out, out_count: the
    slots that begin a packet to deliver, in arrival order. barrier: heads opened before the
    present one are closed. The other attributes are the rules in force, as `GroConfig` and
    `Limits` have them: fixed_ids is a number of `codes.FIXED_IDS`, max_frame is 0 for no limit.
    failure: what the predicate raised.
    """

    __slots__ = (
        "_default",
        "_head_count",
        "_layout",
        "_parsed",
        "_port_table",
        "_ports",
        "_recent",
        "_table",
        "barrier",
        "enabled",
        "failure",
        "fixed_ids",
        "heads",
        "max_frame",
        "max_size",
        "never_merge",
        "out",
        "out_count",
        "slots",
        "tcp",
        "tcp_limit",
        "udp",
        "udp_limit",
    )

    _default: int
    _head_count: int
    _layout: int
    _parsed: records.Parsed
    _port_table: Base
    _ports: bytes
    _recent: int
    _table: FlowTable
    barrier: int
    enabled: bool
    failure: BaseException | None
    fixed_ids: int
    heads: list[records.Head]
    max_frame: int
    max_size: int
    never_merge: Callable[[Flow], bool] | None
    out: list[int]
    out_count: int
    slots: list[records.Slot]
    tcp: bool
    tcp_limit: int
    udp: bool
    udp_limit: int

    def __init__(self, layout: int, capacity: int, default: int, ports: bytes) -> None:
        self._layout = layout
        self._default = default
        self._ports = ports
        self._port_table = records.bytes_base(ports)
        self._table = FlowTable(layout, capacity)
        self.out = records.indices(capacity)
        self.never_merge = None
        self.failure = None
        self.enabled = True
        self.barrier = 0
        self.out_count = 0
        self._head_count = 0
        self._recent = -1

    def __dealloc__(self) -> None:
        records.release(self.out)

    def attach(self, heads: list[records.Head], parsed: records.Parsed) -> int:
        """Take the memory for heads and for the parser's findings."""
        self.heads = heads
        self._parsed = parsed
        self._table.attach(heads)
        return 0

    def pass_alone(self, index: int) -> int:
        """Pass on a batch of one without looking at it."""
        slot = records.slot_at(self.slots, index)
        slot.head = -1
        slot.following = -1
        slot.verdict = codes.ALONE
        self.out[0] = index
        self.out_count = 1
        return 0

    def take(self, start: int, stop: int) -> int:
        """Merge each packet from ``start`` to ``stop``, open a head for it, or pass it through."""
        index = start
        while index < stop:
            slot = records.slot_at(self.slots, index)
            if self._recent >= 0:
                head = records.head_at(self.heads, self._recent)
                if (
                    head.open
                    and head.barrier == self.barrier
                    and slot.length > head.header_length
                    # Other ports, as most packets of another flow have: the call is not worth it.
                    and wire.u32(slot.base, slot.offset + head.transport)
                    == wire.u32(head.base, head.offset + head.transport)
                ):
                    index = merge.run(self.slots, head, index, stop, False, self.fixed_ids)
                    if index == stop:
                        return 0
                    if index < 0:
                        index = -1 - index
                        self._refuse(head, records.slot_at(self.slots, index), index)
                        index += 1
                        continue
                    slot = records.slot_at(self.slots, index)
            slot.head = -1
            slot.following = -1
            self._admit(slot, index)
            index += 1
        return 0

    def reset(self) -> int:
        """Forget the batch."""
        self._table.empty()
        for number in range(self._head_count):
            records.forget_head(records.head_at(self.heads, number))
        self._head_count = 0
        self._recent = -1
        self.out_count = 0
        return 0

    def _admit(self, slot: records.Slot, index: int) -> int:
        """Take a packet that does not plainly continue the most recent head."""
        parsed = self._parsed
        if not self.enabled:
            parsed.readable = False
            parsed.barrier = False
            return self._pass(slot, index, codes.DISABLED)
        reason = headers.parse(
            self._layout, slot.base, slot.offset, slot.length, slot.wire_length, parsed
        )
        if not reason:
            reason = self._policy(slot)
        if reason:
            return self._pass(slot, index, reason)
        state = slot.checksum if slot.checksum else self._default
        number = self._table.find(slot, parsed)
        if number >= 0:
            head = records.head_at(self.heads, number)
            if head.open and head.barrier == self.barrier:
                why = merge.difference(head, slot, parsed, state, self.fixed_ids)
                if not why:
                    following = merge.run(self.slots, head, index, index + 1, True, self.fixed_ids)
                    if following > index:
                        self._recent = number
                        return 0
                    if following < 0:
                        return self._refuse(head, slot, index)
                else:
                    merge.close(head, why)
        return self._open(slot, index, state)

    def _refuse(self, head: records.Head, slot: records.Slot, index: int) -> int:
        """Pass a packet through that its own checksum keeps from extending a head."""
        merge.close(head, codes.CLOSED_BAD_CHECKSUM)
        slot.head = -1
        slot.following = -1
        slot.verdict = codes.BAD_CHECKSUM
        self.out[self.out_count] = index
        self.out_count += 1
        return 0

    def _policy(self, slot: records.Slot) -> int:
        """The `Verdict` by which a well-formed candidate is passed through all the same, or 0."""
        parsed = self._parsed
        if parsed.protocol == codes.UDP and (
            wire.u8(self._port_table, wire.u16(slot.base, slot.offset + parsed.transport + 2))
            or wire.u8(self._port_table, wire.u16(slot.base, slot.offset + parsed.transport)) & 2
        ):
            return codes.UDP_PORT
        if slot.flags:
            if slot.flags & records.AGGREGATED:
                return codes.ALREADY_AGGREGATED
            if not gso.fits(slot, parsed, 0):
                return codes.BAD_VNET_HEADER
            if slot.flags & records.VNET:
                return codes.ALREADY_AGGREGATED
        if not (self.tcp if parsed.protocol == codes.TCP else self.udp):
            return codes.PROTOCOL_OFF
        if slot.length - parsed.network > self._limit():
            return codes.TOO_LARGE
        return 0

    def _limit(self) -> int:
        """The largest IP packet that may be delivered behind the packet's link header."""
        if self.max_frame:
            return min(self.max_size, self.max_frame - self._parsed.network)
        return self.max_size

    def _pass(self, slot: records.Slot, index: int, verdict: int) -> int:
        """Deliver a packet as it came, behind all that is held of its flow."""
        parsed = self._parsed
        slot.verdict = verdict
        self.out[self.out_count] = index
        self.out_count += 1
        if parsed.barrier:
            self.barrier = self.barrier + 1 & wire.MASK32
        elif parsed.readable and self._head_count:
            number = self._table.find(slot, parsed)
            if number >= 0:
                head = records.head_at(self.heads, number)
                if head.open and head.barrier == self.barrier:
                    merge.close(head, codes.CLOSED_PASSED)
        return 0

    def _open(self, slot: records.Slot, index: int, state: int) -> int:
        """Make a candidate the head of its flow, in the place that the table noted."""
        parsed = self._parsed
        barrier = self.barrier  # the predicate may switch merging off, which raises a new one
        predicate = self.never_merge
        if predicate is not None and self._claimed(predicate, slot):
            parsed.readable = False
            return self._pass(slot, index, codes.NEVER_MERGE)
        number = self._head_count
        self._table.enter(number)
        self._head_count += 1
        self._recent = number
        self.out[self.out_count] = index
        self.out_count += 1
        slot.verdict = codes.OPENED
        slot.head = number
        head = records.head_at(self.heads, number)
        head.base = slot.base
        head.offset = slot.offset
        head.first = index
        head.last = index
        head.network = parsed.network
        head.transport = parsed.transport
        head.header_length = parsed.header_length
        head.payload = parsed.payload
        head.gso_size = parsed.payload
        head.limit = self._limit() + parsed.network - parsed.header_length
        head.count = 1
        head.barrier = barrier
        head.interface = slot.interface
        head.vlan = slot.vlan
        head.version = parsed.version
        head.protocol = parsed.protocol
        head.checksum = state
        head.given = slot.checksum
        head.verified = False
        head.ready = False
        head.open = True
        head.closed = 0
        head.id_mode = codes.NO_ID
        if parsed.version == 4:
            head.ip_id = wire.u16(slot.base, slot.offset + parsed.network + 4)
        head.flags = 0
        if parsed.protocol == codes.TCP:
            head.count_limit = self.tcp_limit
            head.sequence = (
                wire.u32(slot.base, slot.offset + parsed.transport + 4) + parsed.payload
            ) & wire.MASK32
            flags = parsed.flags & 0x09
            if flags:
                merge.close(head, codes.CLOSED_PSH if flags & 0x08 else codes.CLOSED_FIN)
                return 0
        else:
            head.count_limit = self.udp_limit
        if head.count_limit == 1:
            merge.close(head, codes.CLOSED_COUNT)
        return 0

    def _claimed(self, predicate: Callable[[Flow], bool], slot: records.Slot) -> bool:
        """Whether the predicate wants a flow left alone; also where the predicate fails."""
        parsed = self._parsed
        at = slot.offset + parsed.network + (12 if parsed.version == 4 else 8)
        size = 4 if parsed.version == 4 else 16
        try:
            return bool(
                predicate(
                    Flow(
                        slot.interface,
                        parsed.protocol,
                        records.piece(slot.base, at, size),
                        records.piece(slot.base, at + size, size),
                        wire.u16(slot.base, slot.offset + parsed.transport),
                        wire.u16(slot.base, slot.offset + parsed.transport + 2),
                    )
                )
            )
        except BaseException as error:  # noqa: BLE001 - it propagates once nothing can be lost
            if self.failure is None:
                self.failure = error
            return True
