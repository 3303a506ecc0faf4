"""pmd-pytcp, a TCP/IP stack in Python: behind the engine, a table with a timer, and neither."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from benchmarks.io.results import Results, WrongResultError
from netstack_gro import GroConfig, GroDispatcher
from netstack_gro.adapters.pytcp import Sessions, StackHook
from tests import lab, namespaces
from tests.pytcp_peer import PAYLOAD, Stack
from tests.requirements import lacks_tun

__all__ = ["lacks", "measure"]

BATCHES = (1, 2, 8, 32, 128)
TIMER_S = 0.001
TABLE = 44  # segments that a full table of the timer's holds, 64 KiB
OFF, HELD, OURS = "not merging", "held by a timer of 1 ms", "netstack-gro"
WALL = "us/segment, wall"
STREAM, QUICK_STREAM = 4 << 20, 1 << 19
LOOP, QUICK_LOOP = 2 << 20, 1 << 18
WINDOW = 1 << 20
MTU = 1428
SEGMENT = MTU - 52  # bytes of payload: IPv4, TCP and timestamps
ADDRESS, HOST = "10.0.0.1/24", "10.0.0.2"
PORT = 7
INFORMATION = 4  # struct tun_pi in front of each packet
LEAST = {8: 4.0, 32: 10.0}

SETUP = (
    f"pmd-pytcp 0.3.8 receives from a kernel's TCP over a TUN of MTU {MTU:,}: segments of that "
    "many bytes, a connection a round, sent by a process of its own. The stack's loop reads at "
    "most so many packets a turn, and its application reads after each turn. Its receive window "
    f"is {WINDOW >> 20} MiB (tcp.rcv_wnd_max): at the default, a batch would be the whole window, "
    "which it does not open again by itself. The three receivers are the same loop around the same "
    "hook; checksums are verified where packets are merged, and by the stack in any case. Timed "
    "is the transfer, from the first byte to the last, by the clock."
)
HOLDING = (
    f"The timer's table is flushed when it has {TABLE} packets, or {TIMER_S * 1000:g} ms after the "
    "first. A batch of one is handed on as it is, but for the timer's."
)
CLOSED = (
    "In the closed loop the sender is in this process, and heeds the stack's default window of "
    "65,535 bytes and its delayed acknowledgement; it waits for nothing else."
)


def lacks() -> str | None:
    """Why this cannot be measured here."""
    try:
        import pmd_pytcp  # noqa: F401
    except ImportError:
        return "pmd-pytcp is not installed"
    return lacks_tun()


class Receiver:
    """In place of an interface's receive ring: reads ``at_once`` packets a turn."""

    def __init__(self, ring: Any, descriptor: int, sockets: Any, engine: str, at_once: int) -> None:
        self._ring = ring
        self._descriptor = descriptor
        self._at_once = at_once
        self._held = engine == HELD
        hook = StackHook(ring._handle_frame, tell=Sessions(sockets).tell, packet_information=True)
        self._gro = GroDispatcher(hook, GroConfig(capacity=TABLE if self._held else 128))
        self._gro.enabled = engine != OFF
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._descriptor, False)
        self._loop.add_reader(self._descriptor, self._turn)

    def stop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> Iterator[memoryview]:
        while True:
            try:
                yield memoryview(os.read(self._descriptor, 2048))[INFORMATION:]
            except BlockingIOError:
                return

    def _turn(self) -> None:
        packets = list(islice(self._read(), self._at_once))
        if not self._held:
            self._gro.dispatch(packets)
            return
        for packet in packets:
            self._gro.enqueue(packet)
        if self._gro.pending and self._timer is None:
            self._timer = self._loop.call_later(TIMER_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._gro.flush()


def measure(rounds: int, *, quick: bool) -> Results:
    """Transfers by the three, at each number of packets a read; then the closed loop."""
    results = Results([SETUP, HOLDING, CLOSED])
    size = QUICK_STREAM if quick else STREAM
    with lab.Lab() as net, net.namespace() as here:
        for _ in range(rounds):
            for at_once in BATCHES[::2] if quick else BATCHES:
                for engine in (OFF, HELD, OURS):
                    seconds = _transfer(net, here, engine, at_once, size)
                    case = f"{at_once} packets a read"
                    _note(results, case, engine, seconds, size / SEGMENT)
    loop = QUICK_LOOP if quick else LOOP
    for _ in range(rounds):
        for engine in (OFF, OURS):
            seconds = asyncio.run(_closed(engine, loop))
            _note(results, "closed loop", engine, seconds, loop / PAYLOAD)
    for at_once in BATCHES[::2] if quick else BATCHES:
        case = f"{at_once} packets a read"
        results.times(case, OURS, OFF, WALL, LEAST.get(at_once, 0.95 if at_once == 1 else None))
        results.times(case, OURS, HELD, WALL, 1.0)
    results.times("closed loop", OURS, OFF, WALL, 5.0)
    return results


def _note(results: Results, case: str, engine: str, seconds: float, segments: float) -> None:
    results.add(case, engine, WALL, seconds / segments * 1e6, round(segments))


def _transfer(net: lab.Lab, here: lab.Namespace, engine: str, at_once: int, size: int) -> float:
    """Seconds that a transfer takes. WrongResultError where bytes are missing."""
    from pmd_net_addr import Ip4IfAddr
    from pmd_pytcp import stack

    made = stack.initialize_interface__tun("tun0")
    try:
        here.mtu("tun0", MTU)
        here.up("tun0")
        here.address("tun0", ADDRESS)

        async def run() -> float:
            stack.init(
                **(made | {"mtu": MTU}),
                ip4_host=Ip4IfAddr(f"{HOST}/24"),
                ip6_support=False,
                sysctls={"tcp.rcv_wnd_max": WINDOW, "tcp.delayed_ack.delay_ms": 100},
            )
            (interface,) = stack.interfaces.values()
            interface._rx_ring = Receiver(
                interface._rx_ring, made["fd"], stack.sockets, engine, at_once
            )
            await stack.start()
            try:
                return await _received(stack, lambda: _send(net, here, size), size)
            finally:
                await stack.stop()

        return asyncio.run(run())
    finally:
        os.close(made["fd"])


def _send(net: lab.Lab, here: lab.Namespace, size: int) -> None:
    net.start(here, "benchmarks.embed.pytcp", str(size))


async def _received(stack: Any, start: Callable[[], object], size: int) -> float:
    from pmd_pytcp.socket import AddressFamily, SocketType
    from pmd_pytcp.socket import socket as stack_socket

    while not stack.local_ip4_unicast():
        await asyncio.sleep(0.005)
    listening = stack_socket(AddressFamily.INET4, SocketType.STREAM)
    listening.bind((HOST, PORT))
    listening.listen()
    start()
    connection, _ = await listening.accept(timeout=20)
    count = len(await connection.recv(1 << 16, timeout=20))
    began = time.perf_counter()
    while count < size:
        data = await connection.recv(1 << 20, timeout=20)
        if not data:
            raise WrongResultError(f"{count} of {size} bytes arrived")
        count += len(data)
    taken = time.perf_counter() - began
    connection.close()
    listening.close()
    return taken


async def _closed(engine: str, size: int) -> float:
    """Seconds that a transfer takes whose sender is here and waits for windows."""
    async with Stack() as stack:
        peer = await stack.connect()
        hook = StackHook(stack.receive, tell=Sessions(stack.sockets).tell, packet_information=True)
        gro = GroDispatcher(hook, GroConfig(capacity=64))
        gro.enabled = engine == OURS
        began = time.perf_counter()
        await peer.send(bytes(size), gro.dispatch, at_once=32)
        return peer.finished - began


def _sender(size: int) -> None:
    namespaces.die_with_parent()
    with socket.create_connection((HOST, PORT), timeout=20) as outgoing:
        block = bytes(1 << 16)
        for _ in range(size >> 16):
            outgoing.sendall(block)
        outgoing.shutdown(socket.SHUT_WR)
        with suppress(OSError):  # the stack may be gone before it has answered the FIN
            outgoing.recv(1)


if __name__ == "__main__":
    _sender(int(sys.argv[1]))
