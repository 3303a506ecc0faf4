"""UdpDispatcher: the datagrams of a UDP socket, as the trains in which the kernel gives them.

    def hook(trains):
        for train in trains:
            for datagram in train:
                handle(datagram, train.address, train.ecn)

    with UdpDispatcher(("", 4433), hook) as dispatcher:
        dispatcher.run()

The kernel does the merging here (UDP_GRO): there is no engine, and the hook gets `Train`s in place
of packets. The rest is as with any live dispatcher.

Reading 1,200-byte datagrams that wait in a socket, sent over loopback in trains of 50, takes for
each, in microseconds and with the kernel's copying (medians, side by side in one run):

    recvfrom in a loop                                   0.94
    recvmmsg, 8 at a time, compiled                      0.70    interpreted (ctypes)  7.4
    recvmmsg, 64 at a time, compiled                     0.62                          6.8
    with UDP_GRO, compiled                               0.08                          0.24
    with UDP_GRO, and cut into datagrams                 0.10                          0.42

A call of recvmmsg costs the interpreter 3 us more through ctypes; the rest of the difference is
what it takes Python to read control messages. So both are used: ctypes where nothing is compiled,
the direct call elsewhere. Interpreted and without UDP_GRO, recvfrom in a loop is the faster one.
"""

import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction

from netstack_gro.config import within
from netstack_gro.dispatchers.addresses import Address
from netstack_gro.dispatchers.interfaces import borrowed_socket
from netstack_gro.dispatchers.live import LiveSource, named_failures
from netstack_gro.dispatchers.train_reader import TrainReader
from netstack_gro.dispatchers.trains import Train
from netstack_gro.dispatchers.udp_settings import Settings, is_readable, switch_merging
from netstack_gro.dispatchers.udp_socket import (
    ICMP_ANSWERS,
    MAX_TRAIN,
    WANTED_TRAINS,
    Given,
    ReceiveOptions,
    adopted,
    control_size,
    drain_errors,
    dropped,
    is_connected,
    is_shut,
    prepare,
    socket_name,
)
from netstack_gro.errors import DeviceError, PinnedError

__all__ = ["TrainHook", "UdpDispatcher", "UdpStats"]

TrainHook = Callable[[list[Train]], object]

_ROUNDS = 64  # of emptying a socket that goes on receiving

_log = logging.getLogger("netstack_gro")


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpStats:
    """What a `UdpDispatcher` has done since it was made.

    trains: delivered, lone datagrams included. datagrams, bytes: in them.
    truncated: datagrams lost because a buffer was shorter than their train, by ``buffer_size``.
    control_truncated: messages dropped because their control messages were cut short, so that
        nobody knows where one datagram ends and the next begins.
    malformed: messages dropped because of a segment size that is none.
    dropped: what the kernel had no room for or found damaged, by its own count (SO_RXQ_OVFL), in
        which a train may count as one.
    refusals: ICMP errors that arrived for what was sent through the socket.
    pinned: how often a buffer was replaced because the hook had kept datagrams in it.
    """

    trains: int = 0
    datagrams: int = 0
    bytes: int = 0
    truncated: int = 0
    control_truncated: int = 0
    malformed: int = 0
    dropped: int = 0
    refusals: int = 0
    pinned: int = 0


class UdpDispatcher(LiveSource):
    """Reads a UDP socket and hands its trains to a hook. A context manager; leaving it closes it.

    source: an address to bind a new socket to, as (host, port); the empty host stands for all
        addresses of IPv6 and IPv4. Or a socket.socket, which stays the caller's: the dispatcher
        duplicates its descriptor, so that the caller may go on sending through it. What is set
        here holds for both, until `close` puts it back; who reads from the caller's meanwhile
        takes datagrams from the dispatcher, and gets trains uncut. See `close`.
    hook: takes a list of `Train`, those of one read. Trains and their datagrams stay valid for as
        long as they are held; the buffers that they lie in are replaced meanwhile.
    gro: None uses UDP_GRO where the kernel vouches for it (Linux 5.12); True also where it can
        only be set (5.0); False never, which gives trains of one.
    ecn, packet_info, timestamps: have each train say its ECN mark and traffic class, where it
        was sent to, and when it arrived. What the kernel cannot tell is None.
    batch: trains in a read, at most, 1 to 1,024. As many buffers are allocated, once.
    buffer_size: bytes of each buffer. No train has more than 65,535, the default; with less,
        what does not fit is lost and counted (`UdpStats.truncated`).
    budget: datagrams after which `dispatch_once` returns, though there may be more, so that other
        sockets of an event loop get their turn: it goes on reading until then, and ends at most
        one read later. A read gives at most 128 times ``batch``.
    receive_buffer: bytes of datagrams that the kernel is asked to hold unread (SO_RCVBUF, and with
        CAP_NET_ADMIN beyond net.core.rmem_max); 64 trains by default. `options` has what it
        granted.
    raise_refusals: whether an ICMP error is raised (below).
    reuse_port: bind a new socket with SO_REUSEPORT: several dispatchers share the address, and
        each peer's datagrams go to one of them.
    max_slabs: buffers that kept datagrams may pin, 1 to 65,536, before PinnedError.

    ``dispatch_once`` and ``run`` count datagrams. An ICMP error in answer to what was sent is
    told to connected sockets only: it is counted, and raised as a DeviceError with its errno
    (ECONNREFUSED and the like) after all that was read before it has been delivered. Nothing is
    lost, and the dispatcher can be run again.

    What was read when a signal handler raised (KeyboardInterrupt) is delivered by the next
    ``dispatch_once`` or ``run``: only once the hook was entered is it the hook's.

    Raises DeviceError where the address cannot be bound or no descriptor is to be had, ConfigError
    for a parameter out of range, an address that is none and another kind of socket, TypeError for
    a socket of an asyncio transport.
    """

    __slots__ = (
        "_before",
        "_budget",
        "_connected",
        "_ended",
        "_hook",
        "_idle",
        "_left",
        "_options",
        "_raise_refusals",
        "_reader",
        "_refusals",
        "_shared",
        "_waiting",
    )

    def __init__(
        self,
        source: Given,
        hook: TrainHook,
        *,
        gro: bool | None = None,
        ecn: bool = True,
        packet_info: bool = True,
        timestamps: bool = True,
        batch: int = 8,
        buffer_size: int = MAX_TRAIN,
        budget: int = 512,
        receive_buffer: int = WANTED_TRAINS * MAX_TRAIN,
        raise_refusals: bool = True,
        reuse_port: bool = False,
        max_slabs: int = 256,
    ) -> None:
        within("batch", batch, 1, 1024)
        within("buffer_size", buffer_size, 1, MAX_TRAIN)
        within("budget", budget, 1, 2**31 - 1)
        within("receive_buffer", receive_buffer, 1, 2**30)
        within("max_slabs", max_slabs, 1, 65536)
        if not callable(hook):
            raise TypeError(f"hook: a callable is required, not {type(hook).__name__!r}")
        if iscoroutinefunction(hook):
            raise TypeError("hook: a coroutine function would never run; give a plain callable")
        opened = adopted(source, reuse_port=reuse_port)
        before: Settings | None = None
        try:
            with named_failures("udp socket", "cannot be read"):
                name = socket_name(opened)
                before = self._before = Settings(opened)
                options = prepare(
                    opened,
                    gro=gro,
                    ecn=ecn,
                    packet_info=packet_info,
                    timestamps=timestamps,
                    receive_buffer=receive_buffer,
                )
                reader = TrainReader(
                    batch, buffer_size, control_size(options), max_slabs, trains=options.trains
                )
                reader.start_drops(dropped(opened) or 0)
                self._connected = is_connected(opened)
            super().__init__(opened.fileno(), name)
        except BaseException:
            if before is not None:
                before.put_back(opened)
            opened.close()
            raise
        opened.detach()
        self._shared = not isinstance(source, tuple)
        self._left: list[tuple[bytes, Address | None]] = []
        self._waiting: list[Train] = []
        self._hook = hook
        self._budget = budget
        self._raise_refusals = raise_refusals
        self._options = options
        self._reader = reader
        self._refusals = 0
        self._idle = False
        self._ended = False

    @property
    def address(self) -> Address:
        """The address that the socket is bound to. Raises EngineStateError after `close`."""
        with borrowed_socket(self.fileno()) as opened:
            bound: Address = opened.getsockname()
            return bound

    @property
    def options(self) -> ReceiveOptions:
        """What the kernel granted when the dispatcher was made."""
        return self._options

    @property
    def stats(self) -> UdpStats:
        """A snapshot of the counters; also after `close`."""
        self._count_drops()
        trains, datagrams, octets, truncated, cut, malformed, lost, replaced = self._reader.counters
        return UdpStats(
            trains=trains,
            datagrams=datagrams,
            bytes=octets,
            truncated=truncated,
            control_truncated=cut,
            malformed=malformed,
            dropped=lost,
            refusals=self._refusals,
            pinned=replaced,
        )

    @property
    def exhausted(self) -> bool:
        """Whether the socket was shut down for reading (shutdown(2)) and nothing is left in it."""
        return self._ended

    def _receive(self) -> int:
        """Read until the budget is used up or nothing is left, with a flush for each read."""
        taken = 0
        for _ in range(self._budget):
            # What was taken and not delivered: a signal handler raised in between.
            count = len(self._waiting) or self._reader.receive(self._descriptor)
            if count < 0:
                if not self._failed(-count, taken):
                    break
            else:
                self._idle = False
                taken += self._deliver()
                if count < self._reader.batch:
                    break
            if taken >= self._budget or self._stopping or self._closed:
                break
        return taken

    def _deliver(self) -> int:
        """Hand on what was read; how many datagrams."""
        trains = self._waiting
        self._reader.take_into(trains)
        count = sum(map(len, trains))
        # From here to the hook's first instruction no signal handler is run.
        self._waiting = []
        if trains:
            self._hook(trains)
        return count

    def _failed(self, number: int, taken: int) -> bool:
        """Make of a read's errno what it means; whether to read again."""
        if number == errno.EAGAIN:
            if not taken:
                # A socket that was shut down is readable for ever, and this is all it says.
                self._ended = self._idle and is_shut(self._descriptor)
                self._idle = True
                if self._suspect:
                    # Errors that IP_RECVERR has kept, until somebody takes them, wake us for ever.
                    with borrowed_socket(self._descriptor) as opened:
                        self._refusals += drain_errors(opened)
            return False
        if number == errno.EINTR:
            return True
        if number not in ICMP_ANSWERS:
            self._fail(number)
        self._refusals += 1
        if self._connected and self._raise_refusals:
            raise DeviceError(
                self._name, number, f"ICMP answered what was sent: {os.strerror(number)}"
            )
        return True

    def _count_drops(self) -> None:
        """Read the kernel's count, while the socket is open."""
        with self._using, suppress(OSError):  # closed by others: what was counted stays
            if self._descriptor >= 0:
                with borrowed_socket(self._descriptor) as opened:
                    total = dropped(opened)
                    if total is not None:
                        self._reader.saw_drops(total)

    def close(self) -> None:
        """Give the socket back, with the options that it had as far as the kernel can tell.

        A socket of the caller's stays open. What the kernel had merged when UDP_GRO is switched off
        would be read as one long datagram from then on. So where UDP_GRO was off before, all that
        is queued in the socket at that time is taken out of it and waits, cut, in `take_left`,
        which the logger ``netstack_gro`` is told of: who goes on with the socket takes that first,
        or dispatches all there is before closing. Where it arrives faster than it can be taken
        out, or kept datagrams pin all buffers, the socket may hold trains that will be read uncut,
        and that is said, too.

        In a forked child nothing of this is done: the socket is the parent's. Otherwise as with
        any dispatcher.
        """
        super().close()

    def take_left(self) -> list[tuple[bytes, Address | None]]:
        """The datagrams that `close` found in a socket of the caller's, once, in order.

        Each with the address that it came from. What was read and not delivered is among them.
        """
        left, self._left = self._left, []
        return left

    def _release_more(self) -> None:
        self._count_drops()
        with suppress(OSError), borrowed_socket(self._descriptor) as opened:  # closed by others
            if self._before.ours:
                self._keep()
                if self._shared and self._options.trains and not self._before.merges:
                    self._empty(opened)
                self._before.put_back(opened)
        if self._left:
            _log.warning(
                "%s: %d datagrams that nobody was given are in take_left()",
                self._name,
                len(self._left),
            )

    def _empty(self, opened: socket.socket) -> None:
        """Switch UDP_GRO off when nothing is queued that was merged."""
        for _ in range(_ROUNDS):
            switch_merging(opened, False)
            if not is_readable(opened):
                return
            switch_merging(opened, True)  # or the kernel does not tell where to cut
            if not self._take_out():
                break
        _log.warning("%s: trains may be left in the socket, to be read uncut", self._name)

    def _take_out(self) -> bool:
        """Read what is queued; whether nothing was in the way."""
        while True:
            try:
                count = self._reader.receive(self._descriptor)
            except PinnedError:
                return False
            if count > 0:
                self._keep()
            elif count == -errno.EAGAIN:
                return True
            elif -count not in {errno.EINTR, *ICMP_ANSWERS}:
                return False

    def _keep(self) -> None:
        """Copy what was read."""
        self._reader.take_into(self._waiting)
        for train in self._waiting:
            self._left += [(bytes(datagram), train.address) for datagram in train]
        self._waiting = []
