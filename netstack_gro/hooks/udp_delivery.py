"""Getting datagrams through a UDP socket, whatever the kernel answers: what `UdpTrainSender` does
with them once it is known where they go.

The kernel's answers, and what they mean: udp(7), net/ipv4/udp.c (udp_send_skb), net/ipv6/udp.c.

A signal handler may raise between any two instructions. So nothing here moves a datagram from one
place to another: a call has its items, the jobs made of them so far, and one number that says how
many datagrams are done with (`Outgoing.position`). When it ends by whatever exception, the backlog
is replaced by what these say is left.
"""

import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from netstack_gro.buffers import contiguous
from netstack_gro.dispatchers.addresses import Address, decode_address, host_of, is_ipv4
from netstack_gro.dispatchers.outgoing import Outgoing
from netstack_gro.dispatchers.udp_socket import ICMP_ANSWERS, path_mtu, socket_name
from netstack_gro.errors import EngineStateError, UdpSendError, device_error
from netstack_gro.hooks.room import FULL, Room

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_BYTES", "Aim", "Delivery", "Job", "unpacked"]

IPV4_HEADERS = 28  # RFC 791 section 3.1, RFC 768
IPV6_HEADERS = 48  # RFC 8200 section 3
MAX_BYTES = 65_507
"""Of a train: what an IPv4 packet of 65,535 bytes holds; the kernel refuses more (EMSGSIZE)."""
MAX_IPV6_BYTES = MAX_BYTES + IPV4_HEADERS - IPV6_HEADERS

_ROOM = 8 * 65_536
_RUNS = 256
_HOSTS = 1024  # remembered as having a route that does not cut

# The route's device does no checksums, or the kernel does not know what is in the message.
_UNABLE = frozenset({errno.EIO, errno.EINVAL, errno.EOPNOTSUPP})
# EMSGSIZE and EOPNOTSUPP are more often about the message itself.
_ANSWERS = ICMP_ANSWERS - {errno.EMSGSIZE, errno.EOPNOTSUPP}
_ATTEMPTS = 3  # at a message that such answers keep from being sent
# With these the socket or the device fails, not the message, which is kept.
_KEPT = frozenset({*FULL, errno.ENETDOWN, errno.ENODEV, errno.ENXIO, errno.EBADF})

_log = logging.getLogger("netstack_gro")


class Aim(NamedTuple):
    """Where datagrams go: packed address, control messages, their bytes without the tos."""

    name: bytes
    control: bytes
    bare: int


class Job(NamedTuple):
    """Datagrams to one address: a list, or bytes to be cut every ``segment`` bytes."""

    data: Any
    segment: int
    aim: Aim

    def datagrams(self) -> "list[Buffer]":
        """They, one by one."""
        if not self.segment:
            listed: list[Buffer] = self.data
            return listed
        view = memoryview(self.data).cast("B")
        starts = range(0, len(view), self.segment)
        return [view[at : at + self.segment] for at in starts] or [b""]

    def total(self) -> int:
        """How many they are."""
        if not self.segment:
            return len(self.data)
        return -(-memoryview(self.data).nbytes // self.segment) or 1


Make = Callable[[Any], Job | None]
"""What makes of an item what is to be sent of it, or None."""


class Refused(NamedTuple):
    """A datagram that the kernel does not send, by its position."""

    position: int
    datagram: bytes
    name: bytes
    number: int


class _Call:
    """What one call was given, and what it has made of it.

    items: all, the backlog first, as jobs; None before they were looked at. made: of each of the
    first items, the position of its first datagram and its job; None where all of it is done
    with, or nothing is to be sent.
    """

    __slots__ = ("items", "made", "make")

    def __init__(self, make: Make) -> None:
        self.items: list[Any] | None = None
        self.make = make
        self.made: list[tuple[int, Job] | None] = []

    def job_of(self, item: Any) -> Job | None:
        """The job that an item is or stands for."""
        return item if type(item) is Job else self.make(item)


class Delivery:
    """Delivery(socket, ...): stages datagrams, sends them, and recovers from what goes wrong.

    The parameters, and what is promised, are those of `UdpTrainSender`. It owns the socket.
    """

    __slots__ = (
        "_again",
        "_backlog_size",
        "_busy",
        "_collect",
        "_faults",
        "_max_bytes",
        "_max_segments",
        "_outgoing",
        "_room",
        "_suspected_gso",
        "_suspected_mark",
        "backlog",
        "closed",
        "cut",
        "dropped",
        "gso",
        "hosts",
        "marks",
        "name",
        "opened",
        "refusal",
        "refusals",
        "refused_last",
        "retries",
    )

    def __init__(
        self,
        opened: socket.socket,
        *,
        gso: bool,
        max_segments: int,
        max_bytes: int,
        never_equal_tail: bool,
        timeout: float,
        backlog: int,
    ) -> None:
        self.opened: socket.socket = opened
        self.name: str = socket_name(opened)
        self.gso: bool = gso
        self.hosts: dict[bytes, str] = {}
        self.marks: bool = True
        self.backlog: deque[tuple[bytes, Aim]] = deque()
        self.closed: bool = False
        self.cut: int = 0
        self.retries: int = 0
        self.refusal: int = 0
        self.refusals: int = 0
        self.dropped: int = 0
        self._outgoing = Outgoing(_ROOM, _RUNS, never_equal_tail=never_equal_tail)
        self._max_segments = max_segments
        self._max_bytes = max_bytes
        self._room = Room(timeout)
        self._backlog_size = backlog
        self._faults = 0
        self._busy = False
        self._collect = False
        self._again = 0
        self.refused_last: list[Refused] = []
        # Left out of the message at hand, to blame if that helps.
        self._suspected_gso: bytes | None = None
        self._suspected_mark = False

    @property
    def counters(self) -> tuple[int, int, int]:
        """Datagrams sent, their bytes, and how many of the messages were trains."""
        sent, octets, trains, _ = self._outgoing.counters
        return sent, octets, trains

    @property
    def refused(self) -> int:
        """Datagrams and items that are not sent at all."""
        return self._outgoing.counters[3] + self._faults

    def close(self) -> None:
        """Close the socket, once nobody is at work."""
        self.closed = True
        if not self._busy:
            self.opened.close()

    def take_back(self) -> list[tuple[bytes, Address | None]]:
        """Empty the backlog."""
        if self._busy:
            raise EngineStateError(f"{self.name}: the sender is at work")
        taken = [(datagram, unpacked(aim.name)) for datagram, aim in self.backlog]
        self.backlog = deque()
        return taken

    def told(self) -> list[tuple[bytes, Address | None]]:
        """What the latest call was refused."""
        return [(each.datagram, unpacked(each.name)) for each in self.refused_last]

    def is_ipv4(self, name: bytes) -> bool:
        """Whether what is sent to a packed address, or to the connected peer, goes by IPv4."""
        return is_ipv4(name) if name else self.opened.family == socket.AF_INET

    def run(self, items: Iterable[Any], make: Make, *, collect: bool = True) -> int:
        """Send the backlog and then what ``make`` makes of ``items``; how many datagrams were sent.

        items: jobs, or what ``make`` takes. collect: keep what is refused for good, and raise it
        at the end.
        """
        if self.closed:
            raise EngineStateError("the sender is closed")
        if self._busy:
            raise EngineStateError(f"{self.name}: the sender is at work already")
        call = _Call(make)
        try:
            try:
                self._busy = True
                return self._run(call, items, collect)
            except BaseException:
                # Of all exceptions: the items may lie in memory that is used again from now on.
                if call.items is None:
                    call.items = [*self._waiting(), *(items if isinstance(items, list) else ())]
                self._save(call, call.items)
                raise
            finally:
                self._rest()
        finally:
            if self._busy:
                self._rest()

    def _rest(self) -> None:
        """End a call; once more, where that was cut short."""
        self._busy = False
        if self.closed:
            self.opened.close()

    def _run(self, call: _Call, items: Iterable[Any], collect: bool) -> int:
        call.items = [*self._waiting(), *items]
        self.refused_last = []
        self._collect = collect
        self._room.begin()
        before = self._outgoing.counters[0]
        self._work(call, call.items)
        self.backlog = deque()
        self._tell_refused()
        return self._outgoing.counters[0] - before

    def _work(self, call: _Call, items: list[Any]) -> None:
        """Stage and send all items."""
        made = call.made
        end = seen = self._outgoing.position
        kept = 0
        while len(made) < len(items):
            try:
                job = call.job_of(items[len(made)])
            except Exception:
                made.append(None)  # the caller's own code has failed on it, and would again
                self._faults += 1
                raise
            if job is None:
                made.append(None)
                continue
            made.append((end, job))
            end += job.total()
            if job.segment and len(job.data):
                self._send_train(job)
            else:
                self._send_list(job)
            if seen != self._outgoing.position:
                seen = self._outgoing.position
                while kept < len(made) and ((entry := made[kept]) is None or _end(*entry) <= seen):
                    made[kept] = None  # what was made of an item is kept no longer than it waits
                    kept += 1
        self._push()

    def _waiting(self) -> list[Job]:
        """The backlog, as jobs."""
        return [
            Job([datagram for datagram, _ in several], 0, aim)
            for aim, several in groupby(self.backlog, itemgetter(1))
        ]

    def _save(self, call: _Call, items: list[Any]) -> None:
        """Make the backlog of what a call has not sent, copied, and forget what is staged."""
        outgoing = self._outgoing
        outgoing.settle()
        done = outgoing.position
        outgoing.clear()
        self._again = 0
        self._suspected_mark = False
        self._suspected_gso = None
        self.refused_last = [each for each in self.refused_last if each.position < done]
        backlog: deque[tuple[bytes, Aim]] = deque()
        held = 0
        for start, job in self._left(call, items):
            for datagram in job.datagrams()[max(0, done - start) :]:
                try:
                    copied = bytes(contiguous(datagram))
                except TypeError:
                    self._faults += 1
                    continue
                if held + len(copied) > self._backlog_size:
                    self.dropped += 1
                    continue
                held += len(copied)
                backlog.append((copied, job.aim))
        self.backlog = backlog

    def _left(self, call: _Call, items: list[Any]) -> Iterator[tuple[int, Job]]:
        """The jobs of a call that may not be done with, and where each starts."""
        for entry in call.made:
            if entry is not None:
                yield entry
        for item in items[len(call.made) :]:
            try:
                job = call.job_of(item)
            except BaseException:  # noqa: BLE001 - of the caller's code; another is on its way
                self._faults += 1
            else:
                if job is not None:
                    yield self._outgoing.position, job

    # --- staging -------------------------------------------------------------------------------

    def _aim(self, aim: Aim) -> None:
        cut = self.gso and host_of(aim.name) not in self.hosts
        most = self._max_bytes
        if not self.is_ipv4(aim.name):
            most = min(most, MAX_IPV6_BYTES)
        self._outgoing.aim(*aim, self._max_segments if cut else 1, most)

    def _send_list(self, job: Job) -> None:
        """Stage datagrams, and send what is staged whenever there is no more room."""
        outgoing = self._outgoing
        datagrams = job.datagrams()
        start = 0
        self._aim(job.aim)
        while (start := outgoing.stage(datagrams, start)) < len(datagrams):
            if outgoing.pending:
                self._push()
            else:  # longer than all there is room for
                self._refuse([bytes(contiguous(datagrams[start]))], job.aim.name, errno.EMSGSIZE)
                outgoing.pass_over()
                start += 1

    def _send_train(self, job: Job) -> None:
        """The same for bytes that are to be cut."""
        outgoing = self._outgoing
        view = memoryview(job.data).cast("B")
        start = 0
        self._aim(job.aim)
        while (staged := outgoing.stage_train(view, job.segment, start)) < len(view):
            if staged == start and not outgoing.pending:
                staged = min(start + job.segment, len(view))
                self._refuse([bytes(view[start:staged])], job.aim.name, errno.EMSGSIZE)
                outgoing.pass_over()
            start = staged
            self._push()

    # --- sending -------------------------------------------------------------------------------

    def _push(self) -> None:
        """Send all that is staged."""
        outgoing = self._outgoing
        descriptor = self.opened.fileno()
        while outgoing.pending:
            count = outgoing.send(descriptor)
            if count > 0:
                self._again = 0
                self._draw_conclusions()
            else:
                self._recover(-count)
        outgoing.clear()

    def _recover(self, number: int) -> None:
        """Have the next message sent in another way, later, or not at all, after an error."""
        outgoing = self._outgoing
        if number == errno.EINTR:
            return
        if number in _KEPT:
            if number in FULL and self._room.wait(self.opened.fileno(), number):
                self.retries += 1
                return
            raise device_error(self.name, number, "cannot be sent through")
        if number in _ANSWERS and self._again < _ATTEMPTS:
            self._again += 1
            self.refusals += 1
            self.refusal = number
            return
        name, size, count, marked = outgoing.first
        if count == 1 and number == errno.EMSGSIZE and not self._again:
            self._again += 1  # that, too, may be ICMP's answer to an earlier one (IP_RECVERR)
            return
        if count > 1 and (number == errno.EMSGSIZE or self._exceeds(number, size, name)):
            self.cut += 1
            outgoing.cut_first()
        elif count > 1 and number in _UNABLE:
            self._suspected_gso = name
            self.cut += 1
            outgoing.cut_all()
        elif marked and number in _UNABLE:
            self._suspected_mark = True
            outgoing.without_tos = True
        else:
            outgoing.without_tos = self._suspected_mark = False
            self._suspected_gso = None
            datagrams, aim = outgoing.peek()
            self._again = 0
            self._refuse(datagrams, aim[0], number)
            outgoing.give_up()

    def _exceeds(self, number: int, size: int, name: bytes) -> bool:
        """Whether EINVAL only says what later kernels say with EMSGSIZE: longer than the MTU."""
        if number != errno.EINVAL:
            return False
        mtu = path_mtu(self.opened, name)
        return mtu is not None and size > mtu - self._headers(name)

    def _headers(self, name: bytes) -> int:
        return IPV4_HEADERS if self.is_ipv4(name) else IPV6_HEADERS

    def _draw_conclusions(self) -> None:
        """Remember what had to be left out of a message for the kernel to take it."""
        if self._suspected_mark:
            # What was left out before did not help, so it is not to blame.
            self._suspected_mark = False
            self._suspected_gso = None
            self.marks = False
            _log.info("%s: ECN marks cannot be sent here, and are left out", self.name)
        elif self._suspected_gso is not None:
            name, self._suspected_gso = self._suspected_gso, None
            if len(self.hosts) >= _HOSTS:
                del self.hosts[next(iter(self.hosts))]
            host = _host(name)
            self.hosts[host_of(name)] = host
            _log.info("%s: no UDP_SEGMENT on the route to %s", self.name, host or "the peer")

    def _refuse(self, datagrams: list[bytes], name: bytes, number: int) -> None:
        """Note what is refused, before it counts as done with."""
        if self._collect:
            at = self._outgoing.position
            self.refused_last += [
                Refused(at + place, datagram, name, number)
                for place, datagram in enumerate(datagrams)
            ]

    def _tell_refused(self) -> None:
        """Raise what tells of all that was refused in this call."""
        if not self.refused_last:
            return
        _, datagram, name, number = self.refused_last[0]
        host = _host(name) or "the peer"
        mtu = path_mtu(self.opened, name)
        if number == errno.EMSGSIZE:
            message = f"a datagram of {len(datagram)} bytes is too long to be sent to {host}"
            if mtu is not None:
                message += f", where {mtu - self._headers(name)} fit (MTU {mtu})"
        else:
            message = f"cannot be sent to {host}: {os.strerror(number)}"
        refused = self.told()
        if len(refused) > 1:
            message += f" (and {len(refused) - 1} more datagrams were refused)"
        raise UdpSendError(self.name, number, message, refused, mtu)


def unpacked(name: bytes) -> Address | None:
    """A packed address as the socket module has it; None for an empty one."""
    return decode_address(name) if name else None


def _end(start: int, job: Job) -> int:
    """The position after the last datagram of a job."""
    return start + job.total()


def _host(name: bytes) -> str:
    return decode_address(name)[0] if name else ""
