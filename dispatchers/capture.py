"""CaptureDispatcher: a capture file as a source of batches.

What a capture cannot say itself is recognised on the way (`offloads`): checksums that were still
to be filled in are merged as partial ones, and packets that were merged or not yet cut are passed
on as the super-packets they are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from types import MappingProxyType
from typing import IO

from netstack_gro.batch import Batch
from netstack_gro.capture import CaptureReader, Record, link_name, open_capture
from netstack_gro.config import MAX_CAPACITY, MAX_PACKET, ChecksumState, GroConfig, within
from netstack_gro.dispatchers.base import Dispatcher, DispatcherStats
from netstack_gro.dispatchers.offloads import (
    MssTable,
    Offload,
    Recogniser,
    fill_ip_checksum,
)
from netstack_gro.errors import ConfigError, EngineStateError
from netstack_gro.gro import GroDispatcher
from netstack_gro.packet import Packet
from netstack_gro.stats import Stats

__all__ = ["CaptureDispatcher", "CaptureStats"]

DEFAULT_BATCH = 64

MAX_ENGINES = 64
"""Interfaces with an engine of their own at once: a capture may describe 65,536."""

FIRST_CAPACITY = 1024
"""Packets that an engine has space for before its interface had a batch of more."""

MAX_TOTAL_CAPACITY = 4 * MAX_CAPACITY
"""Packets that all engines have space for, before those whose interfaces are idle are given up:
what 64 of FIRST_CAPACITY, one of the full capacity and one full batch, doubled, come to."""

MAX_SPAN_RECORDS = 65_536
MAX_SPAN_BYTES = 64 * 1024 * 1024
"""Records and bytes of the file over which a batch or window may stay open; bounds what waits."""

MIN_MTU = 68  # RFC 791 section 3.2: every IPv4 link carries that much

_PARTIAL = int(Offload.PARTIAL)
_IP_CHECKSUM = int(Offload.IP_CHECKSUM)
_AGGREGATED = int(Offload.AGGREGATED)

Observer = Callable[[Record, Offload], object]

_Kept = tuple[bytes | bytearray, Record, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStats(DispatcherStats):
    """`DispatcherStats` of a capture.

    truncated: records that hold less than their packet had (snap length).
    already_aggregated: packets recognised as several in one (`Offload.AGGREGATED`).
    partial_checksums: packets whose transport checksum was still the pseudo-header sum.
    empty_ip_checksums: packets whose IPv4 header checksum was still 0.
    """

    already_aggregated: int = 0
    partial_checksums: int = 0
    empty_ip_checksums: int = 0


class _Lane:
    """One interface: its engine, and what of it waits for being dispatched."""

    __slots__ = (
        "batch",
        "capacity",
        "engine",
        "examine",
        "first",
        "first_byte",
        "kept",
        "last",
        "memory",
        "until",
    )

    def __init__(self, engine: GroDispatcher, recogniser: Recogniser, limit: int) -> None:
        self.engine = engine
        self.examine = recogniser.examine
        self.capacity = engine.config.capacity
        self.batch = Batch(capacity=self.capacity)
        self.memory: list[bytearray] = []
        # What is in the batch, while that may have to be exchanged for one of up to ``limit``.
        self.kept: list[_Kept] | None = [] if self.capacity < limit else None
        # Of the records that wait: number of the first, the file's bytes before it; of its
        # window: the time of the last record, and when it is over.
        self.first = 0
        self.first_byte = 0
        self.last = 0
        self.until = 0

    def append(self, packet: bytes | bytearray, record: Record, found: int) -> None:
        """Put a record in the batch, with what is known of it."""
        if self.kept is not None:
            self.kept.append((packet, record, found))
        self.batch.append(
            packet,
            wire_length=min(record.wire_length, MAX_PACKET),
            timestamp_ns=record.timestamp_ns,
            interface=record.interface,
            checksum=ChecksumState.PARTIAL if found & _PARTIAL else None,
            aggregated=bool(found & _AGGREGATED),
        )

    def grow(self, engine: GroDispatcher, limit: int) -> None:
        """Go on with another engine, and a batch of its capacity, which gets what waits."""
        waiting = self.kept or []
        self.engine = engine
        self.capacity = engine.config.capacity
        self.batch = Batch(capacity=self.capacity)
        self.kept = [] if self.capacity < limit else None
        for packet, record, found in waiting:
            self.append(packet, record, found)


class CaptureDispatcher(Dispatcher):
    """Reads a capture and merges it batch by batch, each interface by an engine of its own.

    source: a path (``-`` is standard input), a binary file object, or an open `CaptureReader`,
        which the dispatcher then owns.
    hook: takes each engine's flush; `Packet.interface` is the index in ``reader.interfaces``.
    config: for every engine. Link layer and, with ``batch``, the capacity are the dispatcher's.
    batch: packets in a batch, 1 to 65,536; 64 if neither this nor ``window_ns`` is given. A batch
        is that many consecutive records of the file, or fewer that have 64 MiB or more. Where
        they are of several interfaces, each interface's share is dispatched to its engine, in
        the order of their first records.
    window_ns: instead, a batch is what arrived on one interface within a window: it opens at its
        first packet and takes all with timestamp < first + window_ns; a timestamp before the
        last one closes it. A window of more packets than the engine's capacity is flushed in
        pieces, one that is open over 65,536 records or 64 MiB of the file is closed.
    mtu: bytes of the largest IP packet on the wire, at least 68, where that is known: larger ones
        are super-packets.
    observer: called with each record and what was recognised in it, before it is in a batch.
    scrubbable: copy what is read to memory that `scrub` can overwrite.

    A capture with packets of more than 64 interfaces at once has the interface that waits
    longest dispatched early, to reuse its place. The first interface's engine has the full
    capacity; any other's begins with 1,024 packets at most and is replaced by a larger one, with
    the same switches and predicate, when its share of a batch grows beyond that.

    Raises CaptureError where the capture cannot be opened, ConfigError for a parameter out of
    range. While reading, `dispatch_once` raises the reader's errors after what was read before
    has been delivered; its timeout plays no part, a pipe is waited for.
    """

    __slots__ = (
        "_aggregated",
        "_batch",
        "_bytes",
        "_carried",
        "_config",
        "_current",
        "_empty_ip_checksums",
        "_ended",
        "_failure",
        "_first",
        "_hook",
        "_lanes",
        "_mss",
        "_mtu",
        "_observer",
        "_open",
        "_partial",
        "_reader",
        "_records",
        "_retired",
        "_scrubbable",
        "_truncated",
        "_window",
    )

    def __init__(
        self,
        source: str | PathLike[str] | IO[bytes] | CaptureReader,
        hook: Callable[[list[Packet]], object],
        config: GroConfig | None = None,
        *,
        batch: int | None = None,
        window_ns: int | None = None,
        mtu: int | None = None,
        observer: Observer | None = None,
        scrubbable: bool = False,
    ) -> None:
        super().__init__()
        if batch is not None and window_ns is not None:
            raise ConfigError("window_ns", "a batch is either a number of packets or a window")
        if window_ns is None:
            self._batch = within(
                "batch", DEFAULT_BATCH if batch is None else batch, 1, MAX_CAPACITY
            )
        else:
            self._batch = 0
        self._window = 0 if window_ns is None else within("window_ns", window_ns, 1, 2**63 - 1)
        self._mtu = None if mtu is None else within("mtu", mtu, MIN_MTU, 65535)
        config = GroConfig() if config is None else config
        self._config = replace(config, capacity=self._batch) if self._batch else config
        self._hook = hook
        self._observer = observer
        self._scrubbable = scrubbable
        self._mss = MssTable()
        # By interface; those of ``_open`` have records waiting, the longest waiting first.
        self._lanes: dict[int, _Lane] = {}
        self._open: dict[int, _Lane] = {}
        self._current: _Lane | None = None
        self._first: GroDispatcher | None = None
        self._retired = Stats()
        self._carried: Record | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._bytes = 0
        self._truncated = 0
        self._aggregated = 0
        self._partial = 0
        self._empty_ip_checksums = 0
        self._reader = source if isinstance(source, CaptureReader) else open_capture(source)
        self._records: Iterator[Record] = iter(self._reader)

    @property
    def reader(self) -> CaptureReader:
        """The capture: its name, interfaces and warnings."""
        return self._reader

    @property
    def gro(self) -> GroDispatcher:
        """The engine of the interface that had the first packet.

        Raises EngineStateError before there was any; `dispatch_once` reads it.
        """
        if self._first is None:
            raise EngineStateError("no packet was read yet, so no interface has an engine")
        return self._first

    @property
    def engines(self) -> Mapping[int, GroDispatcher]:
        """The engines by interface; of more than 64 interfaces, those of the most recent ones."""
        return MappingProxyType({number: lane.engine for number, lane in self._lanes.items()})

    @property
    def exhausted(self) -> bool:
        """Whether the capture has ended, or broke off, and all of it has been delivered."""
        return self._ended and not self._open and self._carried is None and self._failure is None

    @property
    def held_from(self) -> int | None:
        """`Record.number` of the earliest record that is not delivered yet, or None."""
        numbers = [lane.first for lane in self._open.values()]
        if self._carried is not None:
            numbers.append(self._carried.number)
        return min(numbers, default=None)

    @property
    def stats(self) -> CaptureStats:
        """A snapshot of the counters of all engines and of what was recognised."""
        total = self._retired
        for lane in self._lanes.values():
            total += lane.engine.stats
        return CaptureStats(
            engine=total,
            truncated=self._truncated,
            already_aggregated=self._aggregated,
            partial_checksums=self._partial,
            empty_ip_checksums=self._empty_ip_checksums,
        )

    def scrub(self) -> None:
        """Overwrite the input of the batch that the hook is being called for.

        Only with ``scrubbable``, and only in the hook; what is needed of the packets must be
        detached before. It proves that nothing of the input is looked at any more.
        """
        if self._current is None or not self._scrubbable:
            raise EngineStateError("nothing can be scrubbed: not in the hook, or not scrubbable")
        for memory in self._current.memory:
            memory[:] = b"\xa5" * len(memory)

    def _read_once(self, timeout: float | None) -> int:
        del timeout
        count = self._read_window() if self._window else self._read_batch()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return count

    def _release(self) -> None:
        self._reader.close()
        for lane in self._lanes.values():
            lane.engine.close()

    def _read_batch(self) -> int:
        count = 0
        # What a hook's exception left of the batch before goes first.
        room = 0 if self._open else self._batch
        limit = self._bytes + MAX_SPAN_BYTES
        while room:
            record = self._next()
            if record is None:
                break
            count += self._take(record)
            room -= 1
            if self._bytes >= limit:
                break
        return count + self._dispatch_open()

    def _read_window(self) -> int:
        count = 0
        while not count:
            record = self._next()
            if record is None:
                return self._dispatch_open()
            number, time = record.interface, record.timestamp_ns
            lane = self._open.get(number)
            if lane is not None and not lane.last <= time < lane.until:
                self._carried = record
                return self._dispatch(number)
            count = self._take(record)
            lane = self._lanes[number]
            # Its window may have been flushed in pieces, and still be open.
            if not lane.last <= time < lane.until:
                lane.until = time + self._window
            lane.last = time
            if len(lane.batch) == self._config.capacity:
                count += self._dispatch(number)
            else:
                count += self._dispatch_overdue(record)
        return count

    def _next(self) -> Record | None:
        """The next record, or None at the end; an error of the reader is kept for later."""
        record = self._carried
        if record is not None:
            self._carried = None
            return record
        if self._ended:
            return None
        try:
            return next(self._records)
        except StopIteration:
            self._ended = True
        except Exception as error:  # noqa: BLE001 - raised once all before it is delivered
            self._ended = True
            self._failure = error
        return None

    def _take(self, record: Record) -> int:
        """Put a record in the batch of its interface; packets dispatched early to make room."""
        data, time, wire_length, number, _, count = record
        early = 0
        lane = self._lanes.get(number)
        if lane is None:
            self._carried = record  # the hook may raise
            early = self._make_room()
            self._carried = None
            lane = self._add_lane(number)
        size = len(data)
        found = lane.examine(data, wire_length)
        if self._observer is not None:
            self._observer(record, Offload(found))
        waiting = len(lane.batch)
        if waiting == lane.capacity:
            self._grow(lane)
        if not waiting:
            self._open[number] = lane
            lane.first = count
            lane.first_byte = self._bytes
        self._bytes += size
        if not found and wire_length == size and not self._scrubbable and lane.kept is None:
            lane.batch.append(data, timestamp_ns=time, interface=number)
            return early
        if wire_length != size:
            self._truncated += 1
        self._append_marked(lane, record, found)
        return early

    def _append_marked(self, lane: _Lane, record: Record, found: int) -> None:
        """Put a record in its batch with what is known of it."""
        packet: bytes | bytearray = record.data
        if self._scrubbable or found & _IP_CHECKSUM:
            packet = bytearray(record.data)
            lane.memory.append(packet)
            if found & _IP_CHECKSUM:
                self._empty_ip_checksums += 1
                fill_ip_checksum(packet, lane.engine.config.link)
        if found & _PARTIAL:
            self._partial += 1
        if found & _AGGREGATED:
            self._aggregated += 1
        lane.append(packet, record, found)

    def _make_room(self) -> int:
        """Give up an engine where there are MAX_ENGINES; how many packets that dispatched."""
        if len(self._lanes) < MAX_ENGINES:
            return 0
        idle = (number for number in self._lanes if number not in self._open)
        number = next(idle, None)
        count = 0
        if number is None:
            number = next(iter(self._open))
            count = self._dispatch(number)
        self._retire(self._lanes.pop(number).engine)
        return count

    def _retire(self, engine: GroDispatcher) -> None:
        engine.close()
        self._retired += engine.stats

    def _grow(self, lane: _Lane) -> None:
        """Double the capacity of an interface's engine, which is not at work."""
        limit = self._config.capacity
        capacity = min(2 * lane.capacity, limit)
        total = capacity + sum([each.capacity for each in self._lanes.values()])
        for idle in [other for other in self._lanes if other not in self._open]:
            if total <= MAX_TOTAL_CAPACITY:
                break
            total -= self._lanes[idle].capacity
            self._retire(self._lanes.pop(idle).engine)
        former = lane.engine
        engine = GroDispatcher(self._hook, replace(former.config, capacity=capacity))
        engine.enabled = former.enabled
        engine.never_merge = former.never_merge
        lane.grow(engine, limit)
        self._retire(former)

    def _add_lane(self, number: int) -> _Lane:
        link = link_name(self._reader.interfaces[number].link_type, self._reader.name)
        limit = self._config.capacity
        capacity = limit if self._first is None else min(limit, FIRST_CAPACITY)
        engine = GroDispatcher(self._hook, replace(self._config, link=link, capacity=capacity))
        if self._first is None:
            self._first = engine
        lane = _Lane(engine, Recogniser(link, number, self._mss, self._mtu), limit)
        self._lanes[number] = lane
        return lane

    def _dispatch_open(self) -> int:
        """Dispatch all that waits, in the order of first records."""
        return sum([self._dispatch(number) for number in list(self._open)])

    def _dispatch_overdue(self, record: Record) -> int:
        """Dispatch the longest waiting window once the file has gone too far beyond its start."""
        number = next(iter(self._open))
        lane = self._open[number]
        # The records of an interface alone are bounded by its engine's capacity.
        if (
            len(self._open) == 1 or record.number - lane.first < MAX_SPAN_RECORDS
        ) and self._bytes - lane.first_byte < MAX_SPAN_BYTES:
            return 0
        lane.until = lane.last  # closed, not flushed in pieces
        return self._dispatch(number)

    def _dispatch(self, number: int) -> int:
        """Dispatch what waits of one interface."""
        lane = self._open.pop(number)
        self._current = lane
        try:
            return lane.engine.dispatch(lane.batch)
        finally:
            self._current = None
            lane.batch.clear()
            lane.memory.clear()
            if lane.kept is not None:
                lane.kept.clear()
