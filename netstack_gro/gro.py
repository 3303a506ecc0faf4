"""GroDispatcher: one engine. Enqueue, merge, flush; nothing held from one batch to the next.

A packet is first compared with the most recent head, whose headers it usually repeats but for
lengths, sequence number, ID and checksums; only when that fails it is parsed and its flow looked
up. The table is emptied by a generation, heads are closed all at once by a barrier.
"""

import os
from collections.abc import Callable
from typing import Any, NoReturn, Self

from netstack_gro import gso, headers, records, tcp, udp, wire
from netstack_gro.batch import Batch
from netstack_gro.config import ChecksumState, GroConfig, IpIdMode, Limits, port_map
from netstack_gro.errors import EngineStateError
from netstack_gro.flow import Flow
from netstack_gro.packet import Delivery, Packet
from netstack_gro.records import Base
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import VirtioHeader

__all__ = ["GroDispatcher"]

IDLE = 1
BUSY = 2
CLOSED = 3

UNKNOWN = int(ChecksumState.UNKNOWN)
VERIFIED = int(ChecksumState.VERIFIED)
PARTIAL = int(ChecksumState.PARTIAL)

NO_ID = int(IpIdMode.NONE)
FIXED = int(IpIdMode.FIXED)
INCREMENT = int(IpIdMode.INCREMENT)

MERGE = 0
DF_ONLY = 1
REFUSE = 2
_FIXED_IDS = {"merge": 0, "df": 1, "refuse": 2}

ALONE = int(Verdict.ALONE)
DISABLED = int(Verdict.DISABLED)
UDP_PORT = int(Verdict.UDP_PORT)
ALREADY_AGGREGATED = int(Verdict.ALREADY_AGGREGATED)
BAD_VNET_HEADER = int(Verdict.BAD_VNET_HEADER)
PROTOCOL_OFF = int(Verdict.PROTOCOL_OFF)
NEVER_MERGE = int(Verdict.NEVER_MERGE)
TOO_LARGE = int(Verdict.TOO_LARGE)
BAD_CHECKSUM = int(Verdict.BAD_CHECKSUM)
MERGED = int(Verdict.MERGED)
OPENED = int(Verdict.OPENED)

CLOSED_PASSED = int(CloseReason.PASSED)
CLOSED_SHORT = int(CloseReason.SHORT)
CLOSED_PSH = int(CloseReason.PSH)
CLOSED_FIN = int(CloseReason.FIN)
CLOSED_LINK_HEADER = int(CloseReason.LINK_HEADER)
CLOSED_SEQUENCE = int(CloseReason.SEQUENCE)
CLOSED_IP_ID = int(CloseReason.IP_ID)
CLOSED_CHECKSUM_STATE = int(CloseReason.CHECKSUM_STATE)
CLOSED_LARGER = int(CloseReason.LARGER)
CLOSED_SIZE = int(CloseReason.SIZE)
CLOSED_COUNT = int(CloseReason.COUNT)
CLOSED_BAD_CHECKSUM = int(CloseReason.BAD_CHECKSUM)

VLAN_KEY = 0xFFFF0FFF  # TPID and VLAN ID, IEEE 802.1Q

_VERDICTS = len(Verdict)
_REASONS = len(CloseReason)
_GENERATIONS = 2**32 - 1


class GroDispatcher:
    """An engine that merges the packets of a batch and flushes them into ``hook`` once.

    hook: called with a list of `Packet` at every flush that has any, in the arrival order of
    each packet's first input. With a ``limits`` attribute (a `Limits`) it is a sink: the
    stricter of its limits and the configuration holds, read at every batch.
    config: a `GroConfig`; None for the defaults.

    One engine belongs to one dispatcher and one thread: there is no lock. Entering it again from
    its own hook, or from a second thread, raises EngineStateError (a RuntimeError). An exception
    of the hook propagates from the call that flushed, after the engine has reset itself; what
    that flush held counts as delivered.

    As a context manager the engine flushes when it is left.
    """

    __slots__ = (
        "_barrier",
        "_batch",
        "_batches",
        "_bucket",
        "_buckets",
        "_bytes_in",
        "_bytes_out",
        "_capacity",
        "_config",
        "_default",
        "_delivery",
        "_digest",
        "_enabled",
        "_failure",
        "_fixed_ids",
        "_free",
        "_generation",
        "_head_count",
        "_heads",
        "_hook",
        "_layout",
        "_limits",
        "_mask",
        "_max_frame",
        "_max_size",
        "_never_merge",
        "_out",
        "_out_count",
        "_own",
        "_packets_in",
        "_packets_out",
        "_port_table",
        "_ports",
        "_reasons",
        "_recent",
        "_seed",
        "_segments",
        "_sink",
        "_slots",
        "_state",
        "_stir",
        "_sums",
        "_super_packets",
        "_taken",
        "_tcp",
        "_tcp_limit",
        "_udp",
        "_udp_limit",
        "_verdicts",
    )

    _barrier: int
    _batch: Batch
    _batches: int
    _bucket: int
    _buckets: list[records.Bucket]
    _bytes_in: int
    _bytes_out: int
    _capacity: int
    _config: GroConfig
    _default: int
    _delivery: Delivery
    _digest: int
    _enabled: bool
    _failure: BaseException | None
    _fixed_ids: int
    _free: list[Packet]
    _generation: int
    _head_count: int
    _heads: list[records.Head]
    _hook: Any
    _layout: int
    _limits: Limits | None
    _mask: int
    _max_frame: int
    _max_size: int
    _never_merge: Callable[[Flow], bool] | None
    _out: list[int]
    _out_count: int
    _own: Batch
    _packets_in: int
    _packets_out: int
    _port_table: Base
    _ports: bytes
    _reasons: list[int]
    _recent: int
    _seed: int
    _segments: int
    _sink: bool
    _slots: list[records.Slot]
    _state: int
    _stir: int
    _sums: bool
    _super_packets: int
    _taken: int
    _tcp: bool
    _tcp_limit: int
    _udp: bool
    _udp_limit: int
    _verdicts: list[int]

    def __init__(
        self, hook: Callable[[list[Any]], object], config: GroConfig | None = None
    ) -> None:
        try:
            made = self._state
        except AttributeError:  # interpreted, before the first time
            made = 0
        if made:
            raise EngineStateError("an engine is initialised once")
        if not callable(hook):
            raise TypeError(f"hook: a callable is required, not {type(hook).__name__!r}")
        if config is None:
            config = GroConfig()
        elif not isinstance(config, GroConfig):
            raise TypeError(f"config: a GroConfig is required, not {type(config).__name__!r}")
        self._hook = hook
        self._sink = hasattr(hook, "limits")
        self._config = config
        self._capacity = config.capacity
        self._layout = headers.LINKS[config.link]
        self._default = VERIFIED if config.received_checksums == "trust" else UNKNOWN
        self._max_frame = 0 if config.max_frame is None else config.max_frame
        self._ports = port_map(config.udp_tunnel_ports, config.udp_tunnel_ports_either)
        self._port_table = records.bytes_base(self._ports)
        self._never_merge = None
        self._failure = None
        self._enabled = True
        self._own = Batch(capacity=config.capacity)
        self._batch = self._own
        self._delivery = Delivery(config.link, config.capacity, config.max_slabs)
        self._delivery.default = self._default
        self._heads = self._delivery.heads
        self._out = records.indices(config.capacity)
        places = 1 << (2 * config.capacity - 1).bit_length()  # at most half full
        self._buckets = records.buckets(places)
        self._mask = places - 1
        self._verdicts = records.counters(_VERDICTS)
        self._reasons = records.counters(_REASONS)
        self._free = []
        seed = os.urandom(16)
        self._seed = int.from_bytes(seed[:8], "big")
        self._stir = int.from_bytes(seed[8:], "big")
        self._generation = 1
        self._barrier = 0
        self._taken = 0
        self._head_count = 0
        self._out_count = 0
        self._recent = -1
        self._bucket = 0
        self._digest = 0
        self._batches = 0
        self._packets_in = 0
        self._bytes_in = 0
        self._packets_out = 0
        self._bytes_out = 0
        self._super_packets = 0
        self._segments = 0
        self._limits = None
        self._apply(None)
        self._state = IDLE

    def __dealloc__(self) -> None:
        records.release(self._out)
        records.release(self._buckets)
        records.release(self._verdicts)
        records.release(self._reasons)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'GroDispatcher' object")

    def dispatch(self, packets: Any) -> int:
        """Merge and deliver a batch; how many packets were taken.

        packets: a `Batch`, which is left as it is and may be cleared or dispatched again
        afterwards, or an iterable of bytes-like packets without metadata. Packets that were
        enqueued before are the beginning of the batch. Beyond ``capacity`` packets the batch is
        flushed in pieces. A batch of one, with nothing pending, is delivered unparsed.

        An iterable that raises, or yields something that is not a packet, ends the batch: what
        was taken is delivered, then the exception propagates with the packet's index.
        """
        self._enter()
        try:
            if type(packets) is Batch:
                return self._dispatch_batch(packets)
            return self._dispatch_iterable(packets)
        finally:
            self._leave()

    def enqueue(
        self,
        packet: Any,
        *,
        wire_length: int | None = None,
        timestamp_ns: int = 0,
        interface: int = 0,
        checksum: ChecksumState | None = None,
        vlan: int | None = None,
        vlan_tpid: int = 0x8100,
        virtio: VirtioHeader | None = None,
        aggregated: bool = False,
    ) -> None:
        """Take one bytes-like packet, borrowed until `flush`; the keywords are those of `Batch`.

        At capacity, what is pending is flushed first.
        """
        self._enter()
        try:
            self._room()
            self._own._store(
                packet,
                wire_length,
                timestamp_ns,
                interface,
                checksum,
                vlan,
                vlan_tpid,
                virtio,
                aggregated,
            )
            self._run()
        finally:
            self._leave()

    def flush(self) -> int:
        """Deliver what is pending; how many packets the hook was given (0: it was not called)."""
        if self._state == CLOSED:
            return 0
        self._enter()
        try:
            count = self._out_count
            self._flush()
            return count
        finally:
            self._leave()

    def close(self) -> None:
        """Flush, and refuse packets from now on. Closing again does nothing."""
        if self._state == CLOSED:
            return
        try:
            self.flush()
        finally:
            if self._state == IDLE:
                self._state = CLOSED

    @property
    def hook(self) -> Callable[[list[Any]], object]:
        """The hook that packets are delivered to."""
        hook: Callable[[list[Any]], object] = self._hook
        return hook

    @property
    def config(self) -> GroConfig:
        """The configuration that the engine was made with."""
        config: GroConfig = self._config
        return config

    @property
    def pending(self) -> int:
        """Packets taken and not yet delivered."""
        return self._own._count

    @property
    def enabled(self) -> bool:
        """Whether packets are merged. Switched off, all are passed through as `DISABLED`.

        Switching during a batch closes the heads that are open; nothing is lost or reordered.
        """
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"enabled: a bool is required, not {type(value).__name__!r}")
        if value != self._enabled:
            self._enabled = value
            self._barrier = self._barrier + 1 & wire.MASK32

    @property
    def never_merge(self) -> Callable[[Flow], bool] | None:
        """A predicate over `Flow`: packets of flows for which it is true are passed through.

        It is asked when a candidate would open a head. If it raises, the packet is passed
        through, and the exception propagates once the batch has been delivered.
        """
        predicate: Callable[[Flow], bool] | None = self._never_merge
        return predicate

    @never_merge.setter
    def never_merge(self, predicate: Callable[[Flow], bool] | None) -> None:
        if predicate is not None and not callable(predicate):
            raise TypeError(
                f"never_merge: a callable or None is required, not {type(predicate).__name__!r}"
            )
        self._never_merge = predicate

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return Stats(
            batches=self._batches,
            packets_in=self._packets_in,
            bytes_in=self._bytes_in,
            packets_out=self._packets_out,
            bytes_out=self._bytes_out,
            super_packets=self._super_packets,
            segments=self._segments,
            pinned=self._delivery.pool.replaced,
            verdicts={verdict: self._verdicts[verdict] for verdict in Verdict},
            closed={
                reason: self._reasons[reason]
                for reason in CloseReason
                if reason is not CloseReason.NOT_HELD
            },
        )

    def _enter(self) -> int:
        if self._state != IDLE:
            if self._state == CLOSED:
                raise EngineStateError("the engine is closed")
            if self._state == BUSY:
                raise EngineStateError(
                    "the engine is at work: it was entered by its own hook or by a second thread"
                )
            raise EngineStateError("the engine was not initialised")
        self._state = BUSY
        return 0

    def _leave(self) -> int:
        self._state = IDLE
        if self._failure is not None and not self._out_count:
            failure = self._failure
            self._failure = None
            raise failure
        return 0

    def _apply(self, limits: Limits | None) -> int:
        """Combine the configuration with a sink's limits."""
        config = self._config
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits: a Limits is required, not {type(limits).__name__!r}")
        held = config if limits is None else limits
        self._tcp = config.tcp and held.tcp
        self._udp = config.udp and held.udp
        self._max_size = min(config.max_size, held.max_size)
        self._tcp_limit = min(config.max_tcp_segments or 65535, held.max_tcp_segments or 65535)
        self._udp_limit = min(config.max_udp_segments, held.max_udp_segments)
        self._fixed_ids = max(_FIXED_IDS[config.fixed_ip_ids], _FIXED_IDS[held.fixed_ip_ids])
        self._delivery.partial = (
            config.delivered_checksums == "partial" and held.delivered_checksums == "partial"
        )
        self._sums = not self._delivery.partial
        self._limits = limits
        return 0

    def _begin(self, batch: Batch) -> int:
        """Start a batch: its memory is current, the header space is nobody else's."""
        self._delivery.renew()
        if self._sink:
            limits = self._hook.limits
            if limits is not self._limits:
                self._apply(limits)
        self._batch = batch
        self._slots = batch._slots
        self._delivery.batch = batch
        self._delivery.slots = batch._slots
        return 0

    def _room(self) -> int:
        """Make room for one more packet of our own batch."""
        if self._own._count >= self._capacity:
            self._flush()
        if not self._own._count:
            self._begin(self._own)
        return 0

    def _dispatch_batch(self, batch: Batch) -> int:
        if batch._busy:
            raise EngineStateError("the batch is being dispatched by another engine")
        count = batch._count
        if self._own._count:
            return self._continue_with(batch)
        start = 0
        batch._busy = True
        try:
            while start < count:
                self._begin(batch)
                stop = min(start + self._capacity, count)
                if stop - start == 1:
                    self._alone(start)
                else:
                    for index in range(start, stop):
                        self._take(index)
                self._flush()
                start = stop
        finally:
            batch._busy = False
        return count

    def _continue_with(self, batch: Batch) -> int:
        """Add a batch to what is pending, which lies in a batch of our own."""
        count = batch._count
        batch._busy = True
        try:
            for index in range(count):
                self._room()
                self._own._adopt(batch, index)
                self._own._count += 1
                self._run()
            self._flush()
        finally:
            batch._busy = False
        return count

    def _dispatch_iterable(self, packets: Any) -> int:
        own = self._own
        count = 0
        delivering = False
        try:
            for packet in packets:
                if own._count >= self._capacity:
                    delivering = True
                    self._deliver_own()
                    delivering = False
                if not own._count:
                    self._begin(own)
                try:
                    own._borrow(packet)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"packet {count}: {error}") from None
                own._plain(records.slot_at(own._slots, own._count))
                own._count += 1
                count += 1
        except BaseException as error:
            if not delivering:
                self._deliver_own()
                error.add_note(f"{count} packets of the batch were taken and delivered before it")
            raise
        self._deliver_own()
        return count

    def _deliver_own(self) -> int:
        """Process what is left of our own batch and flush it."""
        if self._own._count == 1 and not self._taken:
            self._alone(0)
        else:
            self._run()
        self._flush()
        return 0

    def _run(self) -> int:
        """Process the packets of our own batch that have not been."""
        while self._taken < self._own._count:
            self._take(self._taken)
            self._taken += 1
        return 0

    def _alone(self, index: int) -> int:
        """Pass on a batch of one without looking at it."""
        slot = records.slot_at(self._slots, index)
        slot.head = -1
        slot.following = -1
        slot.verdict = ALONE
        self._bytes_in += slot.length
        self._out[0] = index
        self._out_count = 1
        self._taken = 1
        return 0

    def _take(self, index: int) -> int:
        """Merge one packet of the current batch, open a head for it, or pass it through."""
        slot = records.slot_at(self._slots, index)
        slot.head = -1
        slot.following = -1
        self._bytes_in += slot.length
        if self._recent >= 0:
            head = records.head_at(self._heads, self._recent)
            if (
                head.open
                and head.barrier == self._barrier
                and slot.length > head.header_length
                and not slot.flags
                and slot.wire_length == slot.length
                and slot.interface == head.interface
                and slot.vlan == head.vlan
                and slot.checksum == head.given
                and self._repeats(head, slot)
                and self._extend(head, slot, index)
            ):
                return 0
        return self._admit(slot, index)

    def _repeats(self, head: records.Head, slot: records.Slot) -> bool:
        """Whether a packet is a candidate whose headers repeat the head's: no need to parse it.

        All must be equal but IP length, IPv4 ID and header checksum, UDP length, TCP sequence
        number, FIN, PSH, and the transport checksum. The packet is longer than the headers.
        """
        base = slot.base
        at = slot.offset + head.transport
        if head.protocol == headers.TCP:
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
                self._prepare(head)
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
        return not head.network or wire.equal(
            base, slot.offset, head.base, head.offset, head.network
        )

    def _extend(self, head: records.Head, slot: records.Slot, index: int) -> bool:
        """Append a candidate with the head's headers; False where it must open its own."""
        payload = slot.length - head.header_length
        if self._continues(head, slot, payload):
            return False
        if head.checksum != VERIFIED:
            answer = self._challenge(head, slot)
            if answer:
                if answer == CLOSED_BAD_CHECKSUM:
                    self._close(head, CLOSED_BAD_CHECKSUM)
                    slot.verdict = BAD_CHECKSUM
                    self._out[self._out_count] = index
                    self._out_count += 1
                    return True
                return False
        self._append(head, slot, index, payload)
        return True

    def _continues(self, head: records.Head, slot: records.Slot, payload: int) -> int:
        """0 where a candidate with the head's headers goes on from it, else the `CloseReason`."""
        if head.protocol == headers.TCP and head.sequence != wire.u32(
            slot.base, slot.offset + head.transport + 4
        ):
            return CLOSED_SEQUENCE
        if head.version == 4:
            ip_id = wire.u16(slot.base, slot.offset + head.network + 4)
            if ip_id == head.ip_id:
                if head.count > 1:
                    if head.id_mode != FIXED:
                        return CLOSED_IP_ID
                elif self._fixed_ids and (
                    self._fixed_ids == REFUSE
                    or not wire.u8(head.base, head.offset + head.network + 6) & 0x40
                ):
                    return CLOSED_IP_ID
            elif ip_id != (head.ip_id + 1 & 0xFFFF) or (
                head.count > 1 and head.id_mode != INCREMENT
            ):
                return CLOSED_IP_ID
        if payload > head.gso_size:
            return CLOSED_LARGER
        if payload > head.limit - head.payload:
            return CLOSED_SIZE
        return 0

    def _challenge(self, head: records.Head, slot: records.Slot) -> int:
        """Verify the checksums that a merge is at stake for, the head's own first.

        0 where both are right, CLOSED_BAD_CHECKSUM where the packet's is not, -1 where the
        head's is not: then it was never a head, and is passed through.
        """
        partial = head.checksum == PARTIAL
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
                first = records.slot_at(self._slots, head.first)
                first.verdict = BAD_CHECKSUM
                first.head = -1
                head.open = False
                return -1
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
        return CLOSED_BAD_CHECKSUM

    def _prepare(self, head: records.Head) -> int:
        """Sum what the packets of a head have in common."""
        head.ready = True
        if head.version == 4:
            at = head.offset + head.network
            total = headers.address_sum(head.base, at, 4)
            total += wire.u16(head.base, at)
            total += wire.u16(head.base, at + 6)
            total += wire.u16(head.base, at + 8)
            head.ip_sum = wire.fold(total)
        if self._sums:
            if head.protocol == headers.TCP:
                head.transport_sum = tcp.constant_sum(head)
            else:
                head.transport_sum = udp.constant_sum(head)
            head.odd_sum = 0
            head.even_sum = self._covered(head, head.base, head.offset, head.payload)
        return 0

    def _covered(self, head: records.Head, base: Base, offset: int, payload: int) -> int:
        """What the checksum of a segment covers beside its payload, itself included; not folded."""
        at = offset + head.transport
        covered = head.transport_sum + payload
        if head.protocol == headers.TCP:
            covered += wire.u16(base, at + 12) + wire.u16(base, at + 16)
            covered += wire.u32(base, at + 4)
        else:
            covered += payload + wire.u16(base, at + 6)
        return covered

    def _append(self, head: records.Head, slot: records.Slot, index: int, payload: int) -> int:
        """Make a packet the last segment of a head, and close the head where that ends it."""
        if not head.ready:
            self._prepare(head)
        last = records.slot_at(self._slots, head.last)
        last.following = index
        if head.version == 4:
            ip_id = wire.u16(slot.base, slot.offset + head.network + 4)
            head.id_mode = FIXED if ip_id == head.ip_id else INCREMENT
            head.ip_id = ip_id
        if head.count == 1:
            last.verdict = MERGED
            last.header_length = head.header_length
        head.last = index
        head.count += 1
        slot.verdict = MERGED
        slot.header_length = head.header_length
        if self._sums:
            covered = self._covered(head, slot.base, slot.offset, payload)
            if head.payload & 1:
                head.odd_sum += covered
            else:
                head.even_sum += covered
        head.payload += payload
        flags = 0
        if head.protocol == headers.TCP:
            head.sequence = head.sequence + payload & wire.MASK32
            flags = wire.u8(slot.base, slot.offset + head.transport + 13) & 0x09
            head.flags |= flags
        if payload < head.gso_size:
            self._close(head, CLOSED_SHORT)
        elif flags & 0x08:
            self._close(head, CLOSED_PSH)
        elif flags:
            self._close(head, CLOSED_FIN)
        elif head.count >= head.count_limit:
            self._close(head, CLOSED_COUNT)
        return 0

    def _close(self, head: records.Head, reason: int) -> int:
        head.open = False
        head.closed = reason
        return 0

    def _admit(self, slot: records.Slot, index: int) -> int:
        """Take a packet that does not simply continue the most recent head."""
        parsed = self._delivery.parsed
        if not self._enabled:
            parsed.readable = False
            parsed.barrier = False
            return self._pass(slot, index, parsed, DISABLED)
        reason = headers.parse(
            self._layout, slot.base, slot.offset, slot.length, slot.wire_length, parsed
        )
        if not reason:
            reason = self._policy(slot, parsed)
        if reason:
            return self._pass(slot, index, parsed, reason)
        state = slot.checksum if slot.checksum else self._default
        number = self._lookup(slot, parsed)
        if number >= 0:
            head = records.head_at(self._heads, number)
            if head.open and head.barrier == self._barrier:
                why = self._difference(head, slot, parsed, state)
                if not why:
                    if state != VERIFIED:
                        why = self._challenge(head, slot)
                    if not why:
                        self._append(head, slot, index, parsed.payload)
                        self._recent = number
                        return 0
                if why > 0:
                    self._close(head, why)
                    if why == CLOSED_BAD_CHECKSUM:
                        parsed.readable = False
                        return self._pass(slot, index, parsed, BAD_CHECKSUM)
        return self._open(slot, index, parsed, state)

    def _difference(
        self, head: records.Head, slot: records.Slot, parsed: records.Parsed, state: int
    ) -> int:
        """The first `CloseReason` why a candidate of the flow cannot extend its head, or 0."""
        if slot.vlan != head.vlan:
            return CLOSED_LINK_HEADER
        if head.protocol == headers.TCP:
            why = tcp.difference(head, slot.base, slot.offset, parsed)
        else:
            why = headers.network_difference(head, slot.base, slot.offset, parsed)
        if not why:
            why = self._continues(head, slot, parsed.payload)
            if state != head.checksum and (not why or why > CLOSED_CHECKSUM_STATE):
                why = CLOSED_CHECKSUM_STATE
        return why

    def _policy(self, slot: records.Slot, parsed: records.Parsed) -> int:
        """The `Verdict` by which a well-formed candidate is passed through all the same, or 0."""
        if parsed.protocol == headers.UDP and (
            wire.u8(self._port_table, wire.u16(slot.base, slot.offset + parsed.transport + 2))
            or wire.u8(self._port_table, wire.u16(slot.base, slot.offset + parsed.transport)) & 2
        ):
            return UDP_PORT
        if slot.flags:
            if slot.flags & records.AGGREGATED:
                return ALREADY_AGGREGATED
            if not gso.fits(slot, parsed, 0):
                return BAD_VNET_HEADER
            if slot.flags & records.VNET:
                return ALREADY_AGGREGATED
        if not (self._tcp if parsed.protocol == headers.TCP else self._udp):
            return PROTOCOL_OFF
        if slot.length - parsed.network > self._limit(parsed):
            return TOO_LARGE
        return 0

    def _limit(self, parsed: records.Parsed) -> int:
        """The largest IP packet that may be delivered behind the packet's link header."""
        if self._max_frame:
            return min(self._max_size, self._max_frame - parsed.network)
        return self._max_size

    def _pass(self, slot: records.Slot, index: int, parsed: records.Parsed, verdict: int) -> int:
        """Deliver a packet as it came, behind all that is held of its flow."""
        slot.verdict = verdict
        self._out[self._out_count] = index
        self._out_count += 1
        if parsed.barrier:
            self._barrier = self._barrier + 1 & wire.MASK32
        elif parsed.readable and self._head_count:
            number = self._lookup(slot, parsed)
            if number >= 0:
                head = records.head_at(self._heads, number)
                if head.open and head.barrier == self._barrier:
                    self._close(head, CLOSED_PASSED)
        return 0

    def _open(self, slot: records.Slot, index: int, parsed: records.Parsed, state: int) -> int:
        """Make a candidate the head of its flow, in the bucket that `_lookup` noted."""
        predicate = self._never_merge
        if predicate is not None and self._claimed(predicate, slot, parsed):
            parsed.readable = False
            return self._pass(slot, index, parsed, NEVER_MERGE)
        number = self._head_count
        bucket = records.bucket_at(self._buckets, self._bucket)
        bucket.generation = self._generation
        bucket.digest = self._digest
        bucket.head = number
        self._head_count += 1
        self._recent = number
        self._out[self._out_count] = index
        self._out_count += 1
        slot.verdict = OPENED
        slot.head = number
        head = records.head_at(self._heads, number)
        head.base = slot.base
        head.offset = slot.offset
        head.first = index
        head.last = index
        head.network = parsed.network
        head.transport = parsed.transport
        head.header_length = parsed.header_length
        head.payload = parsed.payload
        head.gso_size = parsed.payload
        head.limit = self._limit(parsed) + parsed.network - parsed.header_length
        head.count = 1
        head.barrier = self._barrier
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
        head.id_mode = NO_ID
        if parsed.version == 4:
            head.ip_id = wire.u16(slot.base, slot.offset + parsed.network + 4)
        head.flags = 0
        if parsed.protocol == headers.TCP:
            head.count_limit = self._tcp_limit
            head.sequence = (
                wire.u32(slot.base, slot.offset + parsed.transport + 4) + parsed.payload
            ) & wire.MASK32
            flags = parsed.flags & 0x09
            if flags:
                self._close(head, CLOSED_PSH if flags & 0x08 else CLOSED_FIN)
                return 0
        else:
            head.count_limit = self._udp_limit
        if head.count_limit == 1:
            self._close(head, CLOSED_COUNT)
        return 0

    def _claimed(
        self, predicate: Callable[[Flow], bool], slot: records.Slot, parsed: records.Parsed
    ) -> bool:
        """Whether the predicate wants a flow left alone; also where the predicate fails."""
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
            if self._failure is None:
                self._failure = error
            return True

    def _lookup(self, slot: records.Slot, parsed: records.Parsed) -> int:
        """The latest head of a packet's flow, or -1; its bucket, or a free one, is noted."""
        # The VLAN's priority and DEI are no part of the flow.
        digest = wire.mix(self._seed ^ slot.interface, self._stir ^ (slot.vlan & VLAN_KEY))
        digest = headers.flow_digest(
            self._layout, slot.base, slot.offset, parsed, digest, self._stir
        )
        key = digest & wire.MASK32
        position = key & self._mask
        while True:
            bucket = records.bucket_at(self._buckets, position)
            if bucket.generation != self._generation:
                break
            if bucket.digest == key:
                head = records.head_at(self._heads, bucket.head)
                if (
                    head.interface == slot.interface
                    and not (head.vlan ^ slot.vlan) & VLAN_KEY
                    and headers.same_flow(self._layout, head, slot.base, slot.offset, parsed)
                ):
                    self._bucket = position
                    self._digest = key
                    return bucket.head
            position = position + 1 & self._mask
        self._bucket = position
        self._digest = key
        return -1

    def _flush(self) -> int:
        """Hand the batch's results to the hook, once, and forget them."""
        count = self._out_count
        if not count:
            return self._reset()
        delivery = self._delivery
        delivery.barrier = self._barrier
        packets = []
        inputs = 0
        for position in range(count):
            index = self._out[position]
            slot = records.slot_at(self._slots, index)
            if position == len(self._free):
                self._free.append(delivery.make_packet())
            packet = self._free[position]
            packet._delivery = delivery
            packet._index = index
            packet._space = -1
            packet._completed = False
            if slot.head >= 0:
                head = records.head_at(self._heads, slot.head)
                self._reasons[delivery.reason(index)] += 1
                inputs += head.count
                self._verdicts[slot.verdict] += head.count
                if head.count > 1:
                    self._super_packets += 1
                    self._segments += head.count
                    self._bytes_out += head.header_length + head.payload
                    packet._space = delivery.write_header(index)
                    packet._header_length = head.header_length
                    packets.append(packet)
                    continue
            else:
                inputs += 1
                self._verdicts[slot.verdict] += 1
            if slot.checksum == PARTIAL and self._sums:
                place = delivery.complete(index)
                if place >= 0:
                    packet._space = place
                    packet._header_length = delivery.parsed.header_length
                    packet._completed = True
            self._bytes_out += slot.length
            packets.append(packet)
        self._packets_in += inputs
        self._packets_out += count
        self._batches += 1
        del packet  # a reference left here would look like one that the hook kept
        try:
            self._hook(packets)
        finally:
            packets = []
            self._release(count)
            self._reset()
        return 0

    def _release(self, count: int) -> int:
        """Take the packets back; one that the hook kept gets its attributes written down."""
        for position in range(count):
            packet = self._free[position]
            if records.kept(packet, 2):  # the list's reference and this one
                if packet._delivery is not None:
                    packet._settle()
                self._free[position] = self._delivery.make_packet()
            else:
                packet._forget()
        return 0

    def _reset(self) -> int:
        """Empty the table and give back what was borrowed."""
        self._generation += 1
        if self._generation >= _GENERATIONS:
            self._generation = 1
            for position in range(self._mask + 1):
                records.bucket_at(self._buckets, position).generation = 0
        self._head_count = 0
        self._out_count = 0
        self._recent = -1
        self._taken = 0
        self._own._drop()
        return 0


records.seal(GroDispatcher)
