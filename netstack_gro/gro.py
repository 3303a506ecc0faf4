"""GroDispatcher: one engine and its edge. Enqueue, merge, flush; nothing is held in between.

What callers hand in is checked and converted here; `Engine` decides what becomes of each packet,
`Outbox` makes packets of the results.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from netstack_gro import codes, records, wire
from netstack_gro.batch import Batch
from netstack_gro.config import ChecksumState, GroConfig, Limits, port_map
from netstack_gro.delivery import Delivery
from netstack_gro.engine import Engine
from netstack_gro.errors import EngineStateError
from netstack_gro.flow import Flow
from netstack_gro.hook import Hook
from netstack_gro.outbox import Outbox
from netstack_gro.stats import Stats
from netstack_gro.virtio import VirtioHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["GroDispatcher"]

CO_COROUTINE = 0x80  # inspect.CO_COROUTINE

IDLE = 1
BUSY = 2
CLOSED = 3


class GroDispatcher:
    """GroDispatcher(hook, config=None): merges a batch and flushes it into ``hook`` once.

    hook: called with a list of `Packet` at every flush that has any, in the arrival order of
    each packet's first input. With a ``limits`` attribute (a `Limits`) it is a sink: the
    stricter of its limits and the configuration holds, read at every batch.
    config: a `GroConfig`; None for the defaults.

    One engine belongs to one dispatcher and one thread: there is no lock. Entering it again from
    its own hook, or from a second thread while it is at work, raises EngineStateError (a
    RuntimeError). An exception of the hook propagates from the call that flushed, after the engine
    has reset itself; what that flush held counts as delivered. What interrupts the engine itself
    (KeyboardInterrupt, MemoryError) ends the batch in the same way.

    A batch begins with its first packet, dispatched or enqueued; a sink's limits are read then.
    As a context manager the engine flushes when it is left, and can be used on; `close` ends it.
    """

    __slots__ = (
        "_capacity",
        "_config",
        "_delivery",
        "_engine",
        "_hook",
        "_limits",
        "_outbox",
        "_own",
        "_sink",
        "_state",
        "_taken",
    )

    _capacity: int
    _config: GroConfig
    _delivery: Delivery
    _engine: Engine
    _hook: Any
    _limits: Limits | None
    _outbox: Outbox
    _own: Batch
    _sink: bool
    _state: int
    _taken: int

    def __init__(self, hook: Hook, config: GroConfig | None = None) -> None:
        if self._state:
            raise EngineStateError("an engine is initialised once")
        if not callable(hook):
            raise TypeError(f"hook: a callable is required, not {type(hook).__name__!r}")
        code = getattr(hook, "__code__", None)
        if code is not None and code.co_flags & CO_COROUTINE:
            raise TypeError("hook: a coroutine function would never run; give a plain callable")
        if config is None:
            config = GroConfig()
        elif not isinstance(config, GroConfig):
            raise TypeError(f"config: a GroConfig is required, not {type(config).__name__!r}")
        layout = codes.LINKS[config.link]
        default = codes.VERIFIED if config.received_checksums == "trust" else codes.UNKNOWN
        ports = port_map(
            frozenset(config.udp_tunnel_ports), frozenset(config.udp_tunnel_ports_either)
        )
        self._hook = hook
        self._sink = hasattr(hook, "limits")
        self._config = config
        capacity = config.capacity
        self._capacity = capacity
        self._own = Batch(capacity=capacity)
        self._taken = 0
        self._delivery = Delivery(config.link, capacity, default, config.max_slabs)
        self._engine = Engine(layout, capacity, default, ports)
        self._engine.attach(self._delivery.heads, self._delivery.parsed)
        self._outbox = Outbox(self._delivery)
        self._apply(None)
        self._idle()
        self._state = IDLE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'GroDispatcher' object")

    def dispatch(self, packets: "Batch | Iterable[Buffer]") -> int:
        """Merge and deliver a batch; how many packets were taken.

        packets: a `Batch`, which is left as it is and may be cleared or dispatched again
        afterwards, or an iterable of bytes-like packets without metadata. Packets that were
        enqueued before are the beginning of the batch. Beyond ``capacity`` packets the batch is
        flushed in pieces. A batch of one, with nothing pending, is delivered unparsed.

        An iterable that raises, or yields something that is not a packet, ends the batch: what
        was taken is delivered, then the exception propagates with the packet's index. Raises
        PinnedError where views that the hook kept leave no space for headers (see
        `GroConfig.max_slabs`): the packets from there on were not taken.
        """
        self._ready()
        try:
            self._state = BUSY
            if type(packets) is Batch:
                return self._dispatch_batch(packets)
            return self._dispatch_iterable(packets)
        finally:
            self._state = IDLE
            self._tell()

    def enqueue(
        self,
        packet: "Buffer",
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

        At capacity, what is pending is flushed first. Raises PinnedError as `dispatch` does; the
        packet was not taken then.
        """
        self._ready()
        try:
            self._state = BUSY
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
            self._state = IDLE
            self._tell()

    def flush(self) -> int:
        """Deliver what is pending; how many packets the hook was given (0: it was not called)."""
        if self._state == CLOSED:
            return 0
        self._ready()
        try:
            self._state = BUSY
            count = self._engine.out_count
            self._flush()
            return count
        finally:
            self._state = IDLE
            self._tell()

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
    def hook(self) -> Hook:
        """The hook that packets are delivered to."""
        hook: Hook = self._hook
        return hook

    @property
    def config(self) -> GroConfig:
        """The configuration that the engine was made with."""
        config: GroConfig = self._config
        return config

    @property
    def pending(self) -> int:
        """Packets taken and not yet delivered."""
        self._made()
        return self._own._count

    @property
    def enabled(self) -> bool:
        """Whether packets are merged. Switched off, all are passed through as `DISABLED`.

        Switching during a batch closes the heads that are open; nothing is lost or reordered.
        """
        self._made()
        return self._engine.enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"enabled: a bool is required, not {type(value).__name__!r}")
        self._made()
        if value != self._engine.enabled:
            self._engine.enabled = value
            self._engine.barrier = self._engine.barrier + 1 & wire.MASK32

    @property
    def never_merge(self) -> Callable[[Flow], bool] | None:
        """A predicate over `Flow`: packets of flows for which it is true are passed through.

        It is asked when a candidate would open a head. If it raises, the packet is passed
        through, and the exception propagates once the batch has been delivered.
        """
        self._made()
        predicate: Callable[[Flow], bool] | None = self._engine.never_merge
        return predicate

    @never_merge.setter
    def never_merge(self, predicate: Callable[[Flow], bool] | None) -> None:
        if predicate is not None and not callable(predicate):
            raise TypeError(
                f"never_merge: a callable or None is required, not {type(predicate).__name__!r}"
            )
        self._made()
        self._engine.never_merge = predicate

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        self._made()
        stats: Stats = self._outbox.stats()
        return stats

    @property
    def _packets_in(self) -> int:
        """`Stats.packets_in` by itself, for dispatchers."""
        self._made()
        return self._outbox._packets_in

    def _made(self) -> int:
        if not self._state:
            raise EngineStateError("the engine was not initialised")
        return 0

    def _ready(self) -> int:
        """Raise what forbids to enter the engine.

        Interpreted, a signal handler may raise between any two calls: so the state changes after
        ``try``, and is the first thing to be put back.
        """
        if self._state != IDLE:
            if self._state == CLOSED:
                raise EngineStateError("the engine is closed")
            if self._state == BUSY:
                raise EngineStateError(
                    "the engine is at work: it was entered by its own hook or by a second thread"
                )
            self._made()
        return 0

    def _tell(self) -> int:
        """Raise what a predicate raised, once its batch was delivered."""
        if self._engine.failure is not None and not self._engine.out_count:
            failure = self._engine.failure
            self._engine.failure = None
            raise failure
        return 0

    def _apply(self, limits: Limits | None) -> int:
        """Combine the configuration with a sink's limits."""
        config = self._config
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits: a Limits is required, not {type(limits).__name__!r}")
        held = config if limits is None else limits
        engine = self._engine
        engine.tcp = config.tcp and held.tcp
        engine.udp = config.udp and held.udp
        engine.max_size = min(config.max_size, held.max_size)
        engine.max_frame = config.max_frame or 0
        engine.tcp_limit = min(config.max_tcp_segments or 65535, held.max_tcp_segments or 65535)
        engine.udp_limit = min(config.max_udp_segments, held.max_udp_segments)
        engine.fixed_ids = max(
            codes.FIXED_IDS[config.fixed_ip_ids], codes.FIXED_IDS[held.fixed_ip_ids]
        )
        self._delivery.partial = (
            config.delivered_checksums == "partial" and held.delivered_checksums == "partial"
        )
        self._limits = limits
        return 0

    def _begin(self, batch: Batch) -> int:
        """Start a batch: its memory is current, the header space is nobody else's.

        Raises PinnedError where there is no such space; nothing was taken then.
        """
        self._delivery.renew()
        if self._sink:
            limits = self._hook.limits
            if limits is None or limits is not self._limits:
                if not isinstance(limits, Limits):
                    raise TypeError(f"limits: a Limits is required, not {type(limits).__name__!r}")
                self._apply(limits)
        self._delivery.batch = batch
        self._delivery.slots = batch._slots
        self._engine.slots = batch._slots
        return 0

    def _idle(self) -> int:
        """Forget the batch and let go of its buffers."""
        self._engine.reset()
        self._taken = 0
        self._own._drop()
        self._delivery.batch = self._own
        self._delivery.slots = self._own._slots
        self._engine.slots = self._own._slots
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
                    self._engine.pass_alone(start)
                else:
                    self._engine.take(start, stop)
                self._flush()
                start = stop
        except BaseException:
            self._idle()
            raise
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
        if isinstance(packets, bytes | bytearray | memoryview):
            raise TypeError("dispatch takes a Batch or an iterable of packets; enqueue takes one")
        listed = type(packets) is list
        try:
            for packet in () if listed else packets:
                if own._count >= self._capacity:
                    delivering = True
                    self._deliver_own()
                    delivering = False
                self._borrow(packet, count)
                count += 1
            while listed and count < len(packets):
                if own._count >= self._capacity:
                    delivering = True
                    self._deliver_own()
                    delivering = False
                following = count
                if not own._count:
                    self._begin(own)
                    following = own._borrow_list(packets, count)
                if following == count:  # something else than bytes, or behind such
                    self._borrow(packets[count], count)
                    following += 1
                count = following
        except BaseException as error:
            if not delivering:
                self._deliver_own()
                error.add_note(f"{count} packets of the batch were taken and delivered before it")
            raise
        self._deliver_own()
        return count

    def _borrow(self, packet: Any, number: int) -> int:
        """Borrow a packet of an iterable, of which there is room for one more."""
        own = self._own
        if not own._count:
            self._begin(own)
        try:
            own._borrow(packet)
        except (TypeError, ValueError) as error:
            if type(error) is TypeError or type(error) is ValueError:
                raise type(error)(f"packet {number}: {error}") from None
            error.add_note(f"packet {number}")
            raise
        own._plain(records.slot_at(own._slots, own._count))
        own._count += 1
        return 0

    def _deliver_own(self) -> int:
        """Process what is left of our own batch and flush it."""
        if self._own._count == 1 and not self._taken:
            self._engine.pass_alone(0)
        else:
            self._run()
        self._flush()
        return 0

    def _run(self) -> int:
        """Process the packets of our own batch that have not been."""
        start = self._taken
        self._taken = self._own._count
        try:
            self._engine.take(start, self._taken)
        except BaseException:
            self._idle()
            raise
        return 0

    def _flush(self) -> int:
        """Hand the batch's results to the hook, once, and forget them."""
        count = self._engine.out_count
        if not count:
            return 0
        self._delivery.barrier = self._engine.barrier
        try:
            packets = self._outbox.pack(self._engine.out, count)
            try:
                self._hook(packets)
            finally:
                del packets  # so that what the hook kept can be told from what it did not
        finally:
            try:
                self._outbox.take_back(count)
            finally:
                self._idle()
        return 0


records.seal(GroDispatcher, ("_state",), ("_config", "_hook"))
