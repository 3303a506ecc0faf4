"""Four ways to receive UDP datagrams, of which each is given to its consumer as an object.

The consumer counts them, and does nothing else; asyncio calls it for each one, the others have it
go through them.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.io.results import WrongResultError
from benchmarks.io.sender import body
from netstack_gro.dispatchers.udp import UdpDispatcher
from tests import lab

__all__ = ["KINDS", "Check", "Receiver", "bound", "drain"]

SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
SO_MEMINFO = 55
MEMINFO_DROPS = 8  # SK_MEMINFO_DROPS, include/uapi/linux/sock_diag.h
RECEIVE_BUFFER = 1 << 28
PATIENCE_S = 5.0
GRO_BATCH, SINGLE_BATCH = 8, 64  # trains, and datagrams, in a read


@dataclass(slots=True)
class Check:
    """A consumer that looks at every datagram."""

    size: int
    segments: int
    last: int
    seen: int = 0

    def __call__(self, datagram: Any) -> None:
        ends = self.seen % self.segments == self.segments - 1
        expected = body(self.seen, self.last if ends else self.size)
        if bytes(datagram) != expected:
            raise WrongResultError(
                f"datagram {self.seen}: {len(datagram)} bytes, not the {len(expected)} sent"
            )
        self.seen += 1


@dataclass(slots=True)
class Receiver:
    """A socket and a way to read it.

    port: what it is bound to. read: takes all that waits, of
    which so many are expected; how many datagrams there were. check:
    the consumer to use from now on; None: one that counts.
    """

    name: str
    port: int
    read: Callable[[int], int]
    opened: socket.socket
    check: Check | None = None
    counters: Callable[[], dict[str, float]] = field(default=dict)

    @property
    def dropped(self) -> int:
        """Datagrams that the kernel had no room for or found damaged."""
        info = self.opened.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
        return int.from_bytes(info[4 * MEMINFO_DROPS :], "little")


def drain(receiver: Receiver, expected: int) -> None:
    """Read until all have come; WrongResultError where more do, or not all of them."""
    count = receiver.read(expected)
    while count < expected:
        if not select.select([receiver.opened], [], [], PATIENCE_S)[0]:
            break
        count += receiver.read(expected - count)
    if count != expected or receiver.dropped:
        raise WrongResultError(
            f"{receiver.name}: {count} datagrams of {expected}, {receiver.dropped} dropped"
        )


@contextmanager
def bound(where: lab.Namespace, address: str) -> Iterator[socket.socket]:
    """A non-blocking socket with room for a round."""
    with where.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        opened.setblocking(False)
        opened.bind((address, 0))
        yield opened


def _port(opened: socket.socket) -> int:
    port: int = opened.getsockname()[1]
    return port


@contextmanager
def recvfrom_loop(opened: socket.socket, size: int) -> Iterator[Receiver]:
    """A buffer as long as the datagrams: longer ones only take longer to allocate."""

    def read(_expected: int) -> int:
        count = 0
        recvfrom, check = opened.recvfrom, receiver.check
        while True:
            try:
                datagram, _address = recvfrom(size)
            except BlockingIOError:
                return count
            if check is not None:
                check(datagram)
            count += 1

    receiver = Receiver("recvfrom loop", _port(opened), read, opened)
    yield receiver


@contextmanager
def asyncio_endpoint(opened: socket.socket, size: int) -> Iterator[Receiver]:
    """One `asyncio.DatagramProtocol`, in a loop that runs until all have come."""
    count = 0
    wanted = 0
    done: asyncio.Future[None] | None = None

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            nonlocal count
            if receiver.check is not None:
                receiver.check(data)
            count += 1
            if count == wanted and done is not None:
                done.set_result(None)

    def read(expected: int) -> int:
        nonlocal count, wanted, done
        count, wanted = 0, expected
        done = loop.create_future()
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(done, PATIENCE_S))
        return count

    loop = asyncio.new_event_loop()
    receiver = Receiver("asyncio", _port(opened), read, opened)
    try:
        transport, _protocol = loop.run_until_complete(
            loop.create_datagram_endpoint(Protocol, sock=opened.dup())
        )
        yield receiver
        transport.close()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


@contextmanager
def _dispatcher(opened: socket.socket, *, gro: bool, iterate: bool = True) -> Iterator[Receiver]:
    count = 0

    def hook(trains: list[Any]) -> None:
        nonlocal count
        if receiver.check is not None:
            for train in trains:
                for datagram in train:
                    receiver.check(datagram)
                count += len(train)
        elif iterate:
            for train in trains:
                for _datagram in train:
                    count += 1
        else:
            count += sum(map(len, trains))

    def read(_expected: int) -> int:
        nonlocal count
        count = 0
        while dispatcher.dispatch_once(0):
            pass
        return count

    def counters() -> dict[str, float]:
        stats = dispatcher.stats
        return {
            "datagrams_a_train": round(stats.datagrams / max(stats.trains, 1), 1),
            "dropped": stats.dropped + stats.truncated + stats.malformed + stats.control_truncated,
        }

    with UdpDispatcher(
        opened,
        hook,
        gro=gro,
        batch=GRO_BATCH if gro else SINGLE_BATCH,
        receive_buffer=RECEIVE_BUFFER,
        ecn=False,
        packet_info=False,
        timestamps=False,
    ) as dispatcher:
        name = "netstack-gro, " + ("UDP_GRO" if gro else "recvmmsg")
        if not iterate:
            name += ", trains only"
        receiver = Receiver(name, _port(opened), read, opened, counters=counters)
        yield receiver


KINDS: dict[str, Callable[[socket.socket, int], Any]] = {
    "UDP_GRO": lambda opened, _size: _dispatcher(opened, gro=True),
    "trains": lambda opened, _size: _dispatcher(opened, gro=True, iterate=False),
    "recvmmsg": lambda opened, _size: _dispatcher(opened, gro=False),
    "recvfrom": recvfrom_loop,
    "asyncio": asyncio_endpoint,
}
"""Context managers that give a `Receiver` of a socket, by the bytes of the largest datagram."""
