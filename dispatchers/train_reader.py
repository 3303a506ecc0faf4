"""TrainReader: trains as recvmmsg(2) gives them, read into buffers that are never overwritten
while somebody looks at them.
"""

from typing import Any

from netstack_gro import records, wire
from netstack_gro.config import within
from netstack_gro.dispatchers import held, native, trains
from netstack_gro.dispatchers.messages import MessageVector
from netstack_gro.errors import EngineStateError, PinnedError

__all__ = ["TrainReader"]

SOL_SOCKET = 1  # include/uapi/asm-generic/socket.h
SOL_IP = 0  # include/linux/socket.h
SOL_UDP = 17
SOL_IPV6 = 41
UDP_GRO = 104  # include/uapi/linux/udp.h
IP_TOS = 1  # include/uapi/linux/in.h
IP_PKTINFO = 8
IPV6_PKTINFO = 50  # include/uapi/linux/in6.h, include/uapi/linux/ipv6.h
IPV6_TCLASS = 67
IN_INFO = 12  # bytes of struct in_pktinfo
IN6_INFO = 20  # and in6_pktinfo
SCM_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; two words of the process's own size
SCM_TIMESTAMPNS_NEW = 64  # two words of 64 bits
SO_RXQ_OVFL = 40

MSG_CTRUNC = 0x08  # include/linux/socket.h
MSG_TRUNC = 0x20

MASK32 = 0xFFFFFFFF
HALF32 = 0x80000000
SECOND = 1_000_000_000
MAX_SECONDS = 1 << 33  # so that nanoseconds fit 64 bits

NAME = 28  # bytes of struct sockaddr_in6, the longer one

MAX_BATCH = 1024  # UIO_MAXIOV, include/uapi/linux/uio.h
MAX_SIZE = 65_535
MAX_CONTROL = 1 << 16
MAX_SLABS = 65_536

ABSENT = 0  # no message said the segment size
MALFORMED = -1  # one did that is no 4-byte and no 2-byte integer


class TrainReader:
    """TrainReader(batch, size, control_size, max_slabs, trains): reads up to ``batch`` trains.

    size: bytes of each buffer. control_size: bytes for the control messages of each.
    max_slabs: buffers set aside because somebody holds what lies in them, before PinnedError.
    trains: whether UDP_GRO is on, so that a message whose control messages were cut short may
    have been several datagrams.
    """

    __slots__ = (
        "_aside",
        "_batch",
        "_buffers",
        "_bytes",
        "_control_cut",
        "_controls_at",
        "_count",
        "_datagrams",
        "_dropped",
        "_drops",
        "_info",
        "_info_at",
        "_info_size",
        "_locks",
        "_malformed",
        "_max_slabs",
        "_messages",
        "_name",
        "_replaced",
        "_segment",
        "_size",
        "_time",
        "_tos",
        "_total",
        "_trains",
        "_truncated",
        "_untaken",
    )

    _aside: list[Any]
    _batch: int
    _buffers: list[Any]
    _bytes: int
    _control_cut: int
    _count: int
    _datagrams: int
    _dropped: int
    _drops: int
    _info: bytes | None
    _info_at: int
    _info_size: int
    _locks: list[Any]
    _malformed: int
    _max_slabs: int
    _messages: MessageVector
    _name: bytes | None
    _replaced: int
    _segment: int
    _size: int
    _time: int
    _tos: int
    _total: int
    _trains: bool
    _truncated: int
    _untaken: bool

    def __init__(
        self, batch: int, size: int, control_size: int, max_slabs: int, *, trains: bool
    ) -> None:
        if self._messages is not None:
            raise EngineStateError("it is initialised once")
        batch = within("batch", batch, 1, MAX_BATCH)
        self._size = within("size", size, 1, MAX_SIZE)
        self._max_slabs = within("max_slabs", max_slabs, 1, MAX_SLABS)
        self._trains = trains
        messages = MessageVector(
            batch, size, within("control_size", control_size, 0, MAX_CONTROL), NAME
        )
        self._buffers = [records.blank(self._size) for _ in range(batch)]
        self._locks = [held.locked(buffer) for buffer in self._buffers]
        self._aside = []
        self._messages = messages
        for index in range(batch):
            self._aim(index)
        self._batch = batch

    @property
    def batch(self) -> int:
        """The largest number of trains in a read."""
        return self._batch

    @property
    def counters(self) -> tuple[int, ...]:
        """Counted so far.

        Trains and datagrams delivered, and their bytes; datagrams cut off for want of room;
        messages dropped because their segment size was lost, and because it was malformed; what
        the kernel dropped; buffers replaced.
        """
        return (
            self._total,
            self._datagrams,
            self._bytes,
            self._truncated,
            self._control_cut,
            self._malformed,
            self._dropped,
            self._replaced,
        )

    def receive(self, descriptor: int) -> int:
        """Read what there is, without waiting: how many messages, or -errno.

        Where those of the last read were not taken, nothing is read: they are still there. Raises
        PinnedError where more buffers are held than ``max_slabs``; nothing is read then.
        """
        if self._messages is None:
            raise EngineStateError("the reader was not initialised")
        return self._receive(descriptor)

    def take(self) -> "list[trains.Train]":
        """The trains of the messages that `receive` read, without what is none; once."""
        taken: list[trains.Train] = []
        self._take(taken)
        return taken

    def take_into(self, taken: "list[trains.Train]") -> None:
        """Append the trains of `take` to a list.

        Compiled, that is done or not done when a signal handler raises, and nothing is lost.
        """
        if type(taken) is not list:
            raise TypeError(f"a list is required, not {type(taken).__name__!r}")
        self._take(taken)

    def saw_drops(self, total: int) -> None:
        """Learn the kernel's count of what it dropped, which wraps at 32 bits."""
        self._saw_drops(total)

    def start_drops(self, total: int) -> None:
        """Count what the kernel drops from ``total`` on."""
        self._drops = total & MASK32

    def describe(self, control: bytes, segments_lost: bool) -> tuple[int, ...]:
        """What control messages say, by their bytes, as a C program would have them.

        segments_lost: they were cut short (MSG_CTRUNC). Returns the segment size (0: none said,
        -1: malformed), the type of service, the place and length of packet information in
        ``control``, the time, and the kernel's count of drops; -1 each, or 0, for none.
        """
        drops = self._drops
        self._drops = -1
        copied = bytearray(control + b"\0")
        self._scan(records.space_base(copied), 0, len(copied) - 1, segments_lost)
        found = self._drops
        self._drops = drops
        return self._segment, self._tos, self._info_at, self._info_size, self._time, found

    def _receive(self, descriptor: int) -> int:
        if self._untaken:
            return self._count
        if self._count:
            self._renew()
        count = self._messages._receive(descriptor, MSG_TRUNC)  # which has the true length told
        # No call may stand between: a signal handler would be run, and the number be lost.
        if count > 0:
            self._count = count
            self._untaken = True
        return count

    def _take(self, taken: "list[trains.Train]") -> int:
        if not self._untaken:
            return 0
        before = None if held.COMPILED else self.counters
        found: list[trains.Train] = []
        try:
            for index in range(self._count):
                self._take_one(index, found)
        except BaseException:
            if before is None:  # out of memory: they are counted again
                raise
            (
                self._total,
                self._datagrams,
                self._bytes,
                self._truncated,
                self._control_cut,
                self._malformed,
                _dropped,
                self._replaced,
            ) = before
            raise
        taken += found
        self._untaken = False
        return 0

    def _take_one(self, index: int, taken: "list[trains.Train]") -> int:
        """Add what a message holds to ``taken``, or count why it is nothing."""
        messages = self._messages
        entry = index * native.MMSGHDR
        flags = native.u32(messages._vector, entry + native.MSG_FLAGS)
        length = native.u32(messages._vector, entry + native.MSG_LEN)
        controls = native.size(messages._vector, entry + native.MSG_CONTROLLEN)
        cut = (flags & MSG_CTRUNC) != 0
        self._scan(messages._controls, index * messages._control_size, controls, cut)
        segment = self._segment
        if segment == MALFORMED:
            self._malformed += 1
            return 0
        if segment == ABSENT:
            if cut and self._trains:
                self._control_cut += 1  # it may have been several, and nobody knows where they end
                return 0
            segment = length  # the kernel says nothing of a lone datagram
        if length > self._size:
            # Those that are there as a whole are delivered, the one that was cut is not.
            whole = self._size // segment
            self._truncated += (length + segment - 1) // segment - whole
            if not whole:
                return 0
            length = whole * segment
        segment = min(segment, length)
        train = trains.make_train(held.lent(self._buffers[index]), length, segment)
        name_length = native.u32(messages._vector, entry + native.MSG_NAMELEN)
        if 0 < name_length <= NAME:
            train._name = self._shared_name(index * NAME, name_length)
        if self._info_size:
            train._info = self._shared_info(self._info_at, self._info_size)
        train._tos = self._tos
        train._time = self._time
        self._total += 1
        self._datagrams += train._count()
        self._bytes += length
        taken.append(train)
        return 0

    def _shared_name(self, at: int, length: int) -> bytes | None:
        """The packed address, the same object as the last one's where they are equal."""
        names = self._messages._names
        if (
            self._name is None
            or len(self._name) != length
            or not wire.equal(names, at, records.bytes_base(self._name), 0, length)
        ):
            self._name = records.piece(names, at, length)
        return self._name

    def _shared_info(self, at: int, length: int) -> bytes | None:
        """The packet information, the same object as the last one's where they are equal."""
        controls = self._messages._controls
        if (
            self._info is None
            or len(self._info) != length
            or not wire.equal(controls, at, records.bytes_base(self._info), 0, length)
        ):
            self._info = records.piece(controls, at, length)
        return self._info

    def _scan(self, base: native.Memory, at: int, used: int, cut: bool) -> int:
        """Read the ``used`` bytes of control messages at ``at`` into the fields they are for."""
        self._segment = ABSENT
        self._tos = -1
        self._time = -1
        self._info_size = 0
        self._info_at = 0
        end = at + used
        while at + native.CMSGHDR <= end:
            size = native.size(base, at)
            if size < native.CMSGHDR or size > end - at:
                break
            level = native.i32(base, at + native.CMSG_LEVEL)
            kind = native.i32(base, at + native.CMSG_TYPE)
            data = at + native.CMSGHDR
            self._read(base, level, kind, data, size - native.CMSGHDR, cut)
            at += native.cmsg_align(size)
        return 0

    def _read(
        self, base: native.Memory, level: int, kind: int, data: int, size: int, cut: bool
    ) -> int:
        """Read one control message of ``size`` bytes at ``data``; others than ours are nothing."""
        if level == SOL_UDP:
            if kind == UDP_GRO:
                self._segment = self._segment_size(base, data, size, cut)
        elif level == SOL_IP:
            if kind == IP_TOS:
                self._tos = self._tos_of(base, data, size)
            elif kind == IP_PKTINFO and size >= IN_INFO and not self._info_size:
                self._info_at = data
                self._info_size = IN_INFO
        elif level == SOL_IPV6:
            if kind == IPV6_TCLASS:
                self._tos = self._tos_of(base, data, size)
            elif kind == IPV6_PKTINFO and size >= IN6_INFO:
                self._info_at = data
                self._info_size = IN6_INFO
        elif level == SOL_SOCKET:
            if kind == SO_RXQ_OVFL and size >= 4:
                self._saw_drops(native.u32(base, data))
            elif kind == SCM_TIMESTAMPNS or kind == SCM_TIMESTAMPNS_NEW:
                if size >= 16:
                    self._set_time(native.i64(base, data), native.i64(base, data + 8))
                elif size >= 8:
                    self._set_time(native.i32(base, data), native.i32(base, data + 4))
        return 0

    def _segment_size(self, base: native.Memory, data: int, size: int, cut: bool) -> int:
        """The segment size; where messages were cut short, ABSENT unless this one is whole."""
        if size == 4:
            found = native.i32(base, data)
        elif cut:
            return ABSENT
        elif size == 2:
            found = native.u16(base, data)
        else:
            return MALFORMED
        return found if found > 0 else MALFORMED

    def _tos_of(self, base: native.Memory, data: int, size: int) -> int:
        """The traffic class byte, which comes as a byte of IPv4 and as an int of IPv6."""
        if size >= 4:
            return native.i32(base, data) & 0xFF
        return wire.u8(base, data) if size > 0 else -1

    def _set_time(self, seconds: int, nanoseconds: int) -> int:
        if 0 <= seconds < MAX_SECONDS and 0 <= nanoseconds < SECOND:
            self._time = seconds * SECOND + nanoseconds
        return 0

    def _saw_drops(self, total: int) -> int:
        if self._drops < 0:
            self._drops = total & MASK32
            return 0
        more = (total - self._drops) & MASK32
        if more < HALF32:  # what was queued before the latest reading says less than that
            self._dropped += more
            self._drops = total & MASK32
        return 0

    def _renew(self) -> int:
        """Exchange the buffers of the last read in which somebody still holds something."""
        for index in range(self._count):
            buffer = self._buffers[index]
            held.unlock(self._locks[index])
            if held.is_held(buffer, 2):  # the list's reference and this one
                self._exchange(index)
            self._locks[index] = held.locked(self._buffers[index])
            self._aim(index)  # in any case: a signal handler may have raised in between last time
        self._count = 0
        return 0

    def _exchange(self, index: int) -> int:
        """Set a buffer aside, and take another in its place."""
        # The one that was set aside first is the likeliest to be free. The others are looked at
        # only where no new one may be made.
        crowded = len(self._aside) >= self._max_slabs
        found = None
        for place in range(len(self._aside) if crowded else min(1, len(self._aside))):
            candidate = self._aside[place]
            # In interpreted code, whoever held a view may have resized what it was a view of.
            if not held.is_held(candidate, 2) and len(candidate) == self._size:
                del self._aside[place]
                found = candidate
                break
        if found is None:
            if crowded:
                raise PinnedError(
                    f"datagrams kept by the hook pin {self._max_slabs} buffers of {self._size} "
                    "bytes; keep bytes(datagram) instead, or raise max_slabs"
                )
            found = records.blank(self._size)
        exchanged = self._buffers[index]
        self._buffers[index] = found
        self._replaced += 1
        self._aside.append(exchanged)
        return 0

    def _aim(self, index: int) -> int:
        """Have the kernel write message ``index`` into the buffer of that number."""
        messages = self._messages
        native.put_size(
            messages._iovecs,
            index * native.IOVEC + native.IOV_BASE,
            native.address(records.blank_base(self._buffers[index]), 0),
        )
        return 0


records.seal(
    TrainReader,
    (
        "_batch",
        "_bytes",
        "_control_cut",
        "_count",
        "_datagrams",
        "_dropped",
        "_drops",
        "_info_at",
        "_info_size",
        "_malformed",
        "_max_slabs",
        "_replaced",
        "_segment",
        "_size",
        "_time",
        "_tos",
        "_total",
        "_trains",
        "_truncated",
        "_untaken",
    ),
    ("_aside", "_buffers", "_info", "_locks", "_messages", "_name"),
)
