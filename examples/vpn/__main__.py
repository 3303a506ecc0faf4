"""A VPN between two hosts: TUN to UDP and back. An example of the library, and no WireGuard.

    python -m examples.vpn --tun vpn0 --secret FILE --local 192.0.2.1:5000 --peer 192.0.2.2:5000

What the kernel sends into the TUN comes as super-packets, is cut, sealed, and sent in trains. What
comes from the peer comes in trains, is opened, merged, and written to the TUN as super-packets.
Ctrl-C ends it with a summary.
"""

import argparse
import asyncio
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from examples.vpn.session import HELLO, HELLO_SIZE, Greeting
from netstack_gro import GroConfig, GroDispatcher, GroError, Packet
from netstack_gro.dispatchers import Train, TunDevice, TunDispatcher, TunOffloads, UdpDispatcher
from netstack_gro.dispatchers.aio import serve
from netstack_gro.errors import DeviceDownError, DeviceError
from netstack_gro.hooks import TunWriter, UdpTrainSender

Address = tuple[str, int]
HELLO_S = 0.5
OUTWARD = GroConfig(capacity=64, tcp=False)  # what is to be cut need not be merged
INWARD = GroConfig(capacity=1024, udp=True, delivered_checksums="partial")


class Tunnel:
    """Both directions, in one thread."""

    def __init__(
        self, device: TunDevice, link: socket.socket, peer: Address, secret: bytes, merge: bool
    ) -> None:
        self._peer = peer
        self._greeting = Greeting(secret)
        self.sender = UdpTrainSender(link, gso=None if merge else False)
        self.writer = TunWriter(device)
        self.gro = GroDispatcher(self.writer, INWARD)
        self.gro.enabled = merge
        self.packets = self.refused = self.lost = 0

    def outward(self, packets: list[Packet]) -> None:
        """From the TUN: each super-packet becomes a train of its segments."""
        session = self._greeting.session
        if session is None:
            self.lost += len(packets)
            return
        for packet in packets:
            datagrams = session.seal(packet.segments())
            self.packets += len(datagrams)
            self._send(datagrams)

    def inward(self, trains: list[Train]) -> None:
        """From the peer: all that one read gave is merged together."""
        packets: list[bytes] = []
        for train in trains:
            datagrams = [bytes(datagram) for datagram in train]
            if len(datagrams[0]) == HELLO_SIZE:
                for datagram in datagrams:
                    if datagram[:1] == HELLO:
                        self._greet(datagram)
                datagrams = [datagram for datagram in datagrams if datagram[:1] != HELLO]
            if self._greeting.session is not None:
                packets += self._greeting.session.open(datagrams)
            else:
                self.refused += len(datagrams)
        with suppress(DeviceDownError):  # the writer keeps what it could not write
            self.gro.dispatch(packets)

    async def greet(self) -> None:
        """Say hello until there is a session."""
        while self._greeting.session is None:
            self._send([self._greeting.hello()])
            await asyncio.sleep(HELLO_S)

    def report(self) -> str:
        session = self._greeting.session
        refused = self.refused + self._greeting.refused + (session.refused if session else 0)
        sent, written = self.sender.stats, self.writer.stats
        return (
            f"sent {self.packets:,} packets, {sent.trains:,} trains; wrote {written.packets:,}, "
            f"{written.super_packets:,} of them super-packets; refused {refused:,} datagrams"
        )

    def _greet(self, datagram: bytes) -> None:
        answer = self._greeting.hear(datagram)
        if answer is not None:
            self._send([answer])

    def _send(self, datagrams: list[bytes]) -> None:
        try:
            self.sender.send(datagrams, self._peer)
        except DeviceError:  # as on a cable, what finds no way is lost
            self.lost += len(self.sender.take_back())


def endpoint(text: str) -> Address:
    """``host:port``."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


async def run(sources: list[TunDispatcher | UdpDispatcher], tunnel: Tunnel) -> None:
    """Until a signal comes."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: [source.stop() for source in sources])
    tasks = [loop.create_task(serve(source)) for source in sources]
    greeting = loop.create_task(tunnel.greet())
    try:
        await asyncio.gather(*tasks)  # which raises what the first of them does
    finally:
        for task in (greeting, *tasks):
            task.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(prog="vpn", description="Carry a TUN over UDP: an example.")
    parser.add_argument("--tun", required=True, metavar="NAME", help="the TUN device")
    parser.add_argument("--local", required=True, type=endpoint, metavar="ADDR:PORT")
    parser.add_argument("--peer", required=True, type=endpoint, metavar="ADDR:PORT")
    parser.add_argument("--secret", required=True, type=Path, metavar="FILE", help="its bytes")
    parser.add_argument("--plain", action="store_true", help="no super-packets and no trains")
    asked = parser.parse_args()
    secret = asked.secret.read_bytes()
    if len(secret) < 32:
        parser.error(f"--secret: {len(secret)} bytes are too few, 32 it takes")
    merge = not asked.plain
    offloads = TunOffloads() if merge else TunOffloads.none()
    try:
        with ExitStack() as stack:
            device = stack.enter_context(TunDevice(asked.tun, offloads=offloads))
            family = socket.AF_INET6 if ":" in asked.local[0] else socket.AF_INET
            link = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            link.bind(asked.local)
            tunnel = Tunnel(device, link, asked.peer, secret, merge)
            stack.enter_context(tunnel.sender)
            udp = UdpDispatcher(link, tunnel.inward, gro=None if merge else False)
            stack.enter_context(udp)
            tun = stack.enter_context(TunDispatcher(device, tunnel.outward, OUTWARD))
            print(f"carrying {device.name}", flush=True)
            asyncio.run(run([tun, udp], tunnel))
            print(tunnel.report())
    except (GroError, OSError) as error:
        print(f"vpn: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
