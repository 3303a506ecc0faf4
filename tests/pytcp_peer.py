"""A TCP sender in memory for a connection of pmd-pytcp: it heeds the window and nothing else.

    async with Stack() as stack:
        peer = await stack.connect()
        await peer.send(data, hook, at_once=8)

No packet is lost, so there is nothing to retransmit. What the sender waits for is an
acknowledgement, and `Peer.waits` counts how often there was none though all that was sent had been
read by the application: that is what a delayed acknowledgement costs.
"""

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from netstack_gro import VirtioHeader, segment
from netstack_gro.virtio import NEEDS_CSUM, GsoType
from tests import builders

__all__ = ["PAYLOAD", "Peer", "Stack"]

HERE, THERE = "10.0.0.2", "10.0.0.1"
PAYLOAD = 1388  # in an IP packet of 1,428 bytes
PORT = 7
INFORMATION = b"\0\0\x08\0"  # struct tun_pi of IPv4
ACK, SYN = 0x10, 0x02
PATIENCE_S = 10.0
DEFAULTS = {"tcp.rcv_wnd_max": 65535, "tcp.delayed_ack.delay_ms": 100}  # the stack's own


class Stack:
    """The stack, with one interface that ends in this process, and a listening socket.

    sysctls: as ``pmd_pytcp.stack.init`` takes them; they are the process's, and stay.
    """

    def __init__(self, sysctls: dict[str, Any] | None = None) -> None:
        self._sysctls = DEFAULTS | (sysctls or {})
        self._ports = iter(range(40000, 60000))

    async def __aenter__(self) -> Self:
        from pmd_net_addr import Ip4IfAddr
        from pmd_pytcp import stack
        from pmd_pytcp.lib.interface_layer import InterfaceLayer
        from pmd_pytcp.socket import AddressFamily, SocketType
        from pmd_pytcp.socket import socket as stack_socket

        self._stack = stack
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._theirs = theirs
        self._wire.setblocking(False)
        self._wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        stack.init(
            fd=theirs.fileno(),
            layer=InterfaceLayer.L3,
            mtu=1500,
            interface_name="wire",
            ip4_host=Ip4IfAddr(f"{HERE}/24"),
            ip6_support=False,
            sysctls=self._sysctls,
        )
        (self.interface,) = stack.interfaces.values()
        await stack.start()
        async with asyncio.timeout(PATIENCE_S):
            while not stack.local_ip4_unicast():
                await asyncio.sleep(0.01)
        self._listening = stack_socket(AddressFamily.INET4, SocketType.STREAM)
        self._listening.bind((HERE, PORT))
        self._listening.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listening.close()
        await self._stack.stop()
        self._wire.close()
        self._theirs.close()

    @property
    def sockets(self) -> Any:
        """The stack's table of sockets."""
        return self._stack.sockets

    def receive(self, packet: bytes) -> None:
        """Hand the stack a packet, with its packet information, as its ring does."""
        self.interface._rx_ring._handle_frame(packet)

    async def connect(self) -> "Peer":
        """An established connection, with nothing sent yet."""
        peer = Peer(self, self._wire, next(self._ports))
        peer.put(SYN)
        accepted = asyncio.ensure_future(self._listening.accept(timeout=PATIENCE_S))
        while not peer.established:
            await asyncio.sleep(0)
            peer.hear()
        peer.put(ACK)
        peer.connection, _ = await accepted
        return peer


class Peer:
    """The sending end of one connection.

    received: bytes that the application has read, whose SHA-256 is ``digest``; finished: when it
    had read all of the last `send`, by time.perf_counter. waits: see above.
    """

    connection: Any

    def __init__(self, stack: Stack, wire: socket.socket, port: int) -> None:
        self._stack = stack
        self._wire = wire
        self._port = port
        self._start = 1000  # initial sequence number
        self._next = self._start
        self._acknowledged = 0
        self._window = 0
        self._expected = 0
        self.established = False
        self.received = 0
        self.digest = hashlib.sha256()
        self.finished = 0.0
        self.waits = 0

    def put(self, flags: int) -> None:
        """Send a segment without data."""
        packet = builders.tcp4(
            b"",
            source=THERE,
            destination=HERE,
            sport=self._port,
            dport=PORT,
            seq=self._next,
            ack=self._expected,
            flags=flags,
            window=65535,
        )
        self._next += flags == SYN
        self._stack.receive(INFORMATION + packet)

    def hear(self) -> bool:
        """Take in what the stack has sent; whether there was anything."""
        heard = False
        with suppress(BlockingIOError):
            while True:
                packet = self._wire.recv(2048)[len(INFORMATION) :]
                if packet[9] != 6 or int.from_bytes(packet[22:24], "big") != self._port:
                    continue
                heard = True
                if packet[33] & SYN:
                    self.established = True
                    self._expected = int.from_bytes(packet[24:28], "big") + 1
                self._acknowledged = int.from_bytes(packet[28:32], "big")
                self._window = int.from_bytes(packet[34:36], "big")
        return heard

    async def send(
        self, data: bytes, deliver: Callable[[list[bytes]], object], *, at_once: int
    ) -> None:
        """Send all of ``data`` in segments of PAYLOAD bytes, and have the application read it.

        deliver: takes the packets of one read, as many as the window permits and ``at_once`` at
        most. After each read the application empties the connection.
        """
        packets = self.packets(data)
        end = self._next + len(data)
        reading = asyncio.ensure_future(self._read(self.received + len(data)))
        read = self.received
        try:
            async with asyncio.timeout(60):
                while packets or self._acknowledged != end:
                    room = self._acknowledged + self._window - self._next
                    batch = packets[: min(at_once, room // PAYLOAD)]
                    if batch:
                        del packets[: len(batch)]
                        sent = sum(len(packet) - 40 for packet in batch)
                        self._next += sent
                        read += sent
                        deliver(batch)
                    while self.received < read:
                        await asyncio.sleep(0)
                    if not self.hear() and not batch:
                        self.waits += 1
                        while not self.hear():
                            await asyncio.sleep(0.001)
                await reading
        finally:
            reading.cancel()

    def packets(self, data: bytes) -> list[bytes]:
        """The next segments, as on the wire."""
        found: list[bytes] = []
        at = self._next
        step = 40 * PAYLOAD
        for start in range(0, len(data), step):
            part = data[start : start + step]
            whole = builders.tcp4(
                part,
                source=THERE,
                destination=HERE,
                sport=self._port,
                dport=PORT,
                seq=at + start,
                ack=self._expected,
                window=65535,
                ident=(start // PAYLOAD) & 0xFFFF,
                partial=True,
            )
            header = VirtioHeader(NEEDS_CSUM, GsoType.TCPV4, 40, PAYLOAD, 20, 16, link="ip")
            found.extend(segment(whole, header) if len(part) > PAYLOAD else [_completed(whole)])
        return found

    async def _read(self, until: int) -> None:
        while self.received < until:
            data = await self.connection.recv(1 << 16, timeout=PATIENCE_S)
            self.received += len(data)
            self.digest.update(data)
        self.finished = time.perf_counter()


def _completed(packet: bytes) -> bytes:
    return builders.fix_checksums(packet)
