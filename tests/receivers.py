"""Every packet dispatcher on something that packets can be sent into, for tests that run all.

    with receivers.opened("recvmmsg veth", engine, hook, config) as (dispatcher, send):
        send(frames)
        dispatcher.dispatch_once()

Each opener is a generator of one pair: the dispatcher, and a function that has it receive a list
of frames (Ethernet frames or IP packets, as ``LINKS`` says), all of them waiting when it returns.
"""

import fcntl
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from netstack_gro.config import GroConfig
from tests import lab
from tests.engines import Engine

Send = Callable[[Sequence[bytes]], None]
Opened = Iterator[tuple[Any, Send]]
Opener = Callable[[Engine, Any, GroConfig], Opened]

ETH_P_ALL = 3
PATIENCE_S = 10.0
O_DIRECT = 0o40000  # include/uapi/asm-generic/fcntl.h: a pipe of packets


def _pair(kind: int) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, theirs


def _over_pair(name: str, kind: int) -> Opener:
    def open_pair(engine: Engine, hook: Any, config: GroConfig) -> Opened:
        ours, theirs = _pair(kind)
        module = engine.module(f"dispatchers.{name.lower()[: -len('Dispatcher')]}")
        with theirs, getattr(module, name)(ours, hook, config) as dispatcher:
            yield dispatcher, _sender(theirs.send)

    return open_pair


def _over_pipe(engine: Engine, hook: Any, config: GroConfig) -> Opened:
    receiving, sending = os.pipe2(O_DIRECT)
    fcntl.fcntl(sending, fcntl.F_SETPIPE_SZ, 1 << 20)  # by default it holds 16 packets
    try:
        module = engine.module("dispatchers.readv")
        with module.ReadvDispatcher(receiving, hook, config) as dispatcher:
            yield dispatcher, _sender(lambda frame: os.write(sending, frame))
    finally:
        os.close(sending)


@contextmanager
def _veth() -> Iterator[tuple[lab.Namespace, socket.socket]]:
    """A namespace with an eth0, and a raw socket whose frames arrive there."""
    with lab.Lab() as net, ExitStack() as stack:
        ours, theirs = net.namespace(ipv6=False), net.namespace(ipv6=False)
        net.veth(theirs, "eth0", ours, "eth0", mtu=9000)
        for namespace in (ours, theirs):
            namespace.offloads("eth0", gro=False)
        sender = stack.enter_context(theirs.socket(socket.AF_PACKET, socket.SOCK_RAW))
        sender.bind(("eth0", 0))
        yield ours, sender


def _recvmmsg_veth(engine: Engine, hook: Any, config: GroConfig) -> Opened:
    module = engine.module("dispatchers.recvmmsg")
    with (
        _veth() as (namespace, sender),
        namespace,
        module.RecvMmsgDispatcher("eth0", hook, config) as dispatcher,
    ):
        yield dispatcher, _sender(sender.send)


def _ring_veth(engine: Engine, hook: Any, config: GroConfig) -> Opened:
    module = engine.module("dispatchers.ring")
    with (
        _veth() as (namespace, sender),
        namespace,
        # Long enough that what is sent at once is one block.
        module.PacketRingDispatcher("eth0", hook, config, timeout_ms=100) as dispatcher,
    ):
        yield dispatcher, _sender(sender.send)


def _tun(kind: str) -> Opener:
    def open_tun(engine: Engine, hook: Any, config: GroConfig) -> Opened:
        module = engine.module("dispatchers.tun")
        with lab.Lab() as net, net.namespace(ipv6=False) as namespace, ExitStack() as stack:
            device = stack.enter_context(module.TunDevice("dev0", kind=kind))
            with module.TunDispatcher(device, hook, config) as dispatcher:
                namespace.mtu("dev0", 9000)
                namespace.up("dev0")
                with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                    sender.bind(("dev0", 0x0800))
                    yield dispatcher, _sender(sender.send)

    return open_tun


OPENERS: dict[str, Opener] = {
    "recvmmsg veth": _recvmmsg_veth,
    "recvmmsg datagram pair": _over_pair("RecvMmsgDispatcher", socket.SOCK_DGRAM),
    "recvmmsg seqpacket pair": _over_pair("RecvMmsgDispatcher", socket.SOCK_SEQPACKET),
    "readv datagram pair": _over_pair("ReadvDispatcher", socket.SOCK_DGRAM),
    "readv seqpacket pair": _over_pair("ReadvDispatcher", socket.SOCK_SEQPACKET),
    "readv packet pipe": _over_pipe,
    "tun": _tun("tun"),
    "tap": _tun("tap"),
    "ring veth": _ring_veth,
}

LINKS = {"tun": "ip"}
"""The link layer of the frames that an opener's dispatcher takes, where it is not Ethernet."""


@contextmanager
def opened(name: str, engine: Engine, hook: Any, config: GroConfig) -> Iterator[tuple[Any, Send]]:
    """The dispatcher called ``name``, one of `OPENERS`, and how to send to it."""
    yield from OPENERS[name](engine, hook, config)


def drain(dispatcher: Any, packets: int) -> int:
    """Dispatch until at least ``packets`` have come; how many did. Fails when they do not."""
    count = 0
    until = time.monotonic() + PATIENCE_S
    while count < packets:
        count += dispatcher.dispatch_once(timeout=1)
        assert time.monotonic() < until, f"{packets - count} of {packets} packets never came"
    return count


def _sender(send: Callable[[bytes], int]) -> Send:
    def send_all(frames: Sequence[bytes]) -> None:
        for frame in frames:
            assert send(frame) == len(frame)

    return send_all


def readable(dispatcher: Any, timeout: float) -> bool:
    """Whether a dispatcher's descriptor becomes readable in time."""
    return bool(select.select([dispatcher], [], [], timeout)[0])
