"""Getting datagrams through a UDP socket, whatever the kernel answers: what `UdpTrainSender` does
with them once it is known where they go.

The kernel's answers, and what they mean: udp(7), net/ipv4/udp.c (udp_send_skb), net/ipv6/udp.c.
"""

import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from netstack_gro.dispatchers.addresses import Address, decode_address, host_of, is_ipv4
from netstack_gro.dispatchers.outgoing import Outgoing
from netstack_gro.dispatchers.udp_socket import ICMP_ANSWERS, path_mtu, socket_name
from netstack_gro.errors import DeviceError, EngineStateError, UdpSendError, device_error
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


class Delivery:
    """Delivery(socket, ...): stages datagrams, sends them, and recovers from what goes wrong.

    The parameters, and what is promised, are those of `UdpTrainSender`. It owns the socket.
    """

    __slots__ = (
        "_again",
        "_backlog_size",
        "_busy",
        "_collect",
        "_held",
        "_max_bytes",
        "_max_segments",
        "_outgoing",
        "_refused_now",
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
        "refusals",
        "refused",
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
        self.refusals: int = 0
        self.refused: int = 0
        self.dropped: int = 0
        self._outgoing = Outgoing(_ROOM, _RUNS, never_equal_tail=never_equal_tail)
        self._max_segments = max_segments
        self._max_bytes = max_bytes
        self._room = Room(timeout)
        self._backlog_size = backlog
        self._held = 0
        self._busy = False
        self._collect = False
        self._again = 0
        self._refused_now: list[tuple[bytes, bytes, int]] = []
        # Left out of the message at hand, to blame if that helps.
        self._suspected_gso: bytes | None = None
        self._suspected_mark = False

    @property
    def counters(self) -> tuple[int, int, int]:
        """Datagrams sent, their bytes, and how many of the messages were trains."""
        return self._outgoing.counters

    def close(self) -> None:
        """Close the socket, once nobody is at work."""
        self.closed = True
        if not self._busy:
            self.opened.close()

    def take_back(self) -> list[tuple[bytes, Address | None]]:
        """Empty the backlog."""
        taken = [(datagram, unpacked(aim.name)) for datagram, aim in self.backlog]
        self.backlog.clear()
        self._held = 0
        return taken

    def is_ipv4(self, name: bytes) -> bool:
        """Whether what is sent to a packed address, or to the connected peer, goes by IPv4."""
        return is_ipv4(name) if name else self.opened.family == socket.AF_INET

    def run(self, jobs: Iterator[Job], *, collect: bool = True) -> int:
        """Send the backlog and then ``jobs``; how many datagrams were sent.

        collect: keep what is refused for good, and raise it at the end.
        """
        if self.closed:
            raise EngineStateError("the sender is closed")
        if self._busy:
            raise EngineStateError(f"{self.name}: the sender is at work already")
        self._busy = True
        self._collect = collect
        self._room.begin()
        before = self._outgoing.counters[0]
        try:
            self._work(chain(self._waiting(), jobs))
            if self._refused_now:
                raise self._refusal()
        finally:
            self._refused_now.clear()
            self._busy = False
            if self.closed:
                self.opened.close()
        return self._outgoing.counters[0] - before

    def _work(self, jobs: Iterator[Job]) -> None:
        """Stage and send ``jobs``; after an error that may pass, the rest is in the backlog."""
        try:
            for job in jobs:
                if job.segment and len(job.data):
                    self._send_train(job)
                else:
                    self._send_list(job)
            self._push()
        except DeviceError:
            for job in jobs:
                self._keep(job.datagrams(), job.aim)
            raise
        except BaseException:  # of a hook's transform, or misuse: what was before it is sent
            self._push()
            raise

    def _waiting(self) -> Iterator[Job]:
        """The backlog, which is empty from then on."""
        waiting, self.backlog = self.backlog, deque()
        self._held = 0
        for aim, several in groupby(waiting, itemgetter(1)):
            yield Job([datagram for datagram, _ in several], 0, aim)

    # --- staging -------------------------------------------------------------------------------

    def _aim(self, aim: Aim) -> None:
        cut = self.gso and host_of(aim.name) not in self.hosts
        most = self._max_bytes
        if not self.is_ipv4(aim.name):
            most = min(most, MAX_IPV6_BYTES)
        self._outgoing.aim(*aim, self._max_segments if cut else 1, most)

    def _send_list(self, job: Job) -> None:
        """Stage datagrams, and send what is staged whenever there is no more room."""
        datagrams = job.datagrams()
        start = 0
        self._aim(job.aim)
        try:
            while True:
                start = self._outgoing.stage(datagrams, start)
                if start == len(datagrams):
                    return
                if self._outgoing.pending:
                    self._push()
                else:  # longer than all there is room for
                    self._refuse([bytes(datagrams[start])], job.aim.name, errno.EMSGSIZE)
                    start += 1
        except DeviceError:
            self._keep(datagrams[start:], job.aim)
            raise

    def _send_train(self, job: Job) -> None:
        """The same for bytes that are to be cut."""
        view = memoryview(job.data).cast("B")
        start = 0
        self._aim(job.aim)
        try:
            while True:
                staged = self._outgoing.stage_train(view, job.segment, start)
                if staged == len(view):
                    return
                if staged == start and not self._outgoing.pending:
                    staged = min(start + job.segment, len(view))
                    self._refuse([bytes(view[start:staged])], job.aim.name, errno.EMSGSIZE)
                start = staged
                self._push()
        except DeviceError:
            self._keep(Job(view[start:], job.segment, job.aim).datagrams(), job.aim)
            raise

    def _keep(self, datagrams: "Iterable[Buffer]", aim: Aim) -> None:
        """Copy datagrams to the backlog."""
        for datagram in datagrams:
            copied = bytes(datagram)
            if self._held + len(copied) > self._backlog_size:
                self.dropped += 1
                continue
            self._held += len(copied)
            self.backlog.append((copied, aim))

    # --- sending -------------------------------------------------------------------------------

    def _push(self) -> None:
        """Send all that is staged. What cannot be sent now is in the backlog afterwards."""
        outgoing = self._outgoing
        descriptor = self.opened.fileno()
        try:
            while outgoing.pending:
                count = outgoing.send(descriptor)
                if count > 0:
                    self._again = 0
                    self._draw_conclusions()
                else:
                    self._recover(-count)
        except DeviceError:
            while outgoing.pending:
                datagrams, aim = outgoing.give_up()
                self._keep(datagrams, Aim(*aim))
            raise
        finally:
            if not outgoing.pending:
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
            datagrams, aim = outgoing.give_up()
            self._again = 0
            self._refuse(datagrams, aim[0], number)

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
        self.refused += len(datagrams)
        if self._collect:
            self._refused_now += [(datagram, name, number) for datagram in datagrams]

    def _refusal(self) -> UdpSendError:
        """The error that tells of what was refused in this call."""
        datagram, name, number = self._refused_now[0]
        host = _host(name) or "the peer"
        mtu = path_mtu(self.opened, name)
        if number == errno.EMSGSIZE:
            message = f"a datagram of {len(datagram)} bytes is too long to be sent to {host}"
            if mtu is not None:
                message += f", where {mtu - self._headers(name)} fit (MTU {mtu})"
        else:
            message = f"cannot be sent to {host}: {os.strerror(number)}"
        refused = [(data, unpacked(to)) for data, to, _ in self._refused_now]
        if len(refused) > 1:
            message += f" (and {len(refused) - 1} more datagrams were refused)"
        return UdpSendError(self.name, number, message, refused, mtu)


def unpacked(name: bytes) -> Address | None:
    """A packed address as the socket module has it; None for an empty one."""
    return decode_address(name) if name else None


def _host(name: bytes) -> str:
    return decode_address(name)[0] if name else ""
