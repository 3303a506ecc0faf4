"""UDP for tests: datagrams that tell themselves apart, trains sent by the kernel alone, and what a
`UdpDispatcher` made of them.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines import Engine

UDP_SEGMENT = 103  # include/uapi/linux/udp.h
UDP_GRO = 104
SO_NO_CHECK = 11  # include/uapi/asm-generic/socket.h
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
FAMILIES = tuple(LOOPBACK)
PATIENCE_S = 10.0

_generator = random.Random(4)


def bodies(*sizes: int) -> list[bytes]:
    """A datagram of each size, no two alike where the size allows it."""
    return [_generator.randbytes(size) for size in sizes]


def equal_bodies(count: int, size: int, last: int | None = None) -> list[bytes]:
    """``count`` datagrams of ``size`` bytes, the last of ``last``."""
    return bodies(*[size] * (count - 1), size if last is None else last)


def send_train(sender: socket.socket, datagrams: list[bytes], address: Any = None) -> None:
    """Have the kernel cut one buffer into ``datagrams``, of which all but the last have one size.

    Written with the socket module alone, so that it is a witness.
    """
    control = []
    if len(datagrams) > 1:
        data = struct.pack("=H", len(datagrams[0]))
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, data)]
    sender.sendmsg([b"".join(datagrams)], control, 0, *([] if address is None else [address]))


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Received:
    """A hook that keeps copies of what it is given."""

    def __init__(self) -> None:
        self.reads: list[list[list[bytes]]] = []
        self.details: list[tuple[Any, ...]] = []

    def __call__(self, trains: list[Any]) -> None:
        self.reads.append([[bytes(datagram) for datagram in train] for train in trains])
        self.details += [
            (train.address, train.ecn, train.packet_info, train.timestamp_ns) for train in trains
        ]

    @property
    def trains(self) -> list[list[bytes]]:
        return [train for read in self.reads for train in read]

    @property
    def datagrams(self) -> list[bytes]:
        return [datagram for train in self.trains for datagram in train]

    def clear(self) -> None:
        self.reads.clear()
        self.details.clear()


@contextmanager
def receiving(engine: Engine, source: Any, **options: Any) -> Iterator[tuple[Any, Received]]:
    """A `UdpDispatcher` of an engine, and what its hook receives."""
    received = Received()
    with engine.module("dispatchers.udp").UdpDispatcher(source, received, **options) as dispatcher:
        yield dispatcher, received


@contextmanager
def sending_to(dispatcher: Any) -> Iterator[socket.socket]:
    """A socket connected to a dispatcher's."""
    address = dispatcher.address
    family = socket.AF_INET6 if len(address) == 4 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        yield sender


def dispatch(dispatcher: Any, count: int) -> None:
    """Dispatch until ``count`` datagrams have come, and see that no more do."""
    until = time.monotonic() + PATIENCE_S
    done = 0
    while done < count:
        taken = dispatcher.dispatch_once(max(0.0, until - time.monotonic()))
        assert taken, f"{done} of {count} datagrams came; {dispatcher.stats}"
        done += taken
    assert done == count
    assert dispatcher.dispatch_once(0) == 0


@contextmanager
def sender(engine: Engine, *arguments: Any, **options: Any) -> Iterator[Any]:
    """A `UdpTrainSender` of an engine; its socket is one on IPv4 loopback unless said."""
    arguments = arguments or (("127.0.0.1", 0),)
    with engine.module("hooks.udp").UdpTrainSender(*arguments, **options) as made:
        yield made


class Answering:
    """What a sender stages, with a kernel that first answers as it is told to."""

    def __init__(self, outgoing: Any, answers: list[int]) -> None:
        self._outgoing = outgoing
        self.answers = answers
        self.tried: list[tuple[int, bool]] = []
        """Of each message that was refused, how many datagrams it had, and whether a mark."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outgoing, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "without_tos":
            setattr(self._outgoing, name, value)
        else:
            super().__setattr__(name, value)

    def send(self, descriptor: int) -> int:
        if not self.answers:
            count: int = self._outgoing.send(descriptor)
            return count
        _name, _size, count, marked = self._outgoing.first
        self.tried.append((count, marked))
        return -self.answers.pop(0)


def answer(made: Any, *answers: int) -> Answering:
    """Have the kernel answer the next sends with these errnos."""
    delivery = made._delivery
    if not isinstance(delivery._outgoing, Answering):
        delivery._outgoing = Answering(delivery._outgoing, [])
    delivery._outgoing.answers = list(answers)
    delivery._outgoing.tried = []
    answering: Answering = delivery._outgoing
    return answering
