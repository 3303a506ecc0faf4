"""Packets a second into a hook, by way of each dispatcher, side by side in one run.

    python -m benchmarks.receive [--json] [--rounds N]

In each round the kernel is given what its buffers hold, and then the time is taken in which the
receiver reads all of it and hands every datagram of 1,200 bytes of payload to a hook: as an object
of its own where datagrams are the result (UDP sockets), as merged packets otherwise. The sender is
not part of the time. Needs root; everything happens in network namespaces of its own.
"""

import argparse
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import netstack_gro
from netstack_gro import GroConfig
from netstack_gro.dispatchers.packet_socket import open_packet_socket
from netstack_gro.dispatchers.recvmmsg import RecvMmsgDispatcher
from netstack_gro.dispatchers.ring import PacketRingDispatcher
from netstack_gro.dispatchers.tun import TunDispatcher
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.dispatchers.udp import UdpDispatcher
from tests import lab

PAYLOAD = 1200
TRAIN = 50  # datagrams in a send with UDP_SEGMENT: of 60,000 bytes
TRAINS = 30  # in a round
BUFFER = 1 << 28
UDP_SEGMENT = 103  # include/uapi/linux/udp.h
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
SO_SNDBUFFORCE = 32
FAR, NEAR = "10.0.0.1", "10.0.0.2"
PORT = 4433

Round = Callable[[], int]
"""Reads all that waits; how many datagrams there were."""


class Network:
    """Two namespaces with a veth between them, or one with a TUN device, and a UDP sender."""

    def __init__(self, net: lab.Lab) -> None:
        self.far, self.near = net.namespace(ipv6=False), net.namespace(ipv6=False)
        net.veth(self.far, "eth0", self.near, "eth0", mtu=1500)
        self.far.address("eth0", f"{FAR}/24")
        self.near.address("eth0", f"{NEAR}/24")
        self.far.neighbour("eth0", NEAR, self.near.mac("eth0"))

    @contextmanager
    def sender(self, where: lab.Namespace, address: str, *, trains: bool) -> Iterator[Any]:
        """A function that sends the datagrams of one round."""
        data = bytes(PAYLOAD * TRAIN)
        with where.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
            if trains:
                sending.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD)
                pieces = [data]
            else:
                pieces = [data[:PAYLOAD]] * TRAIN

            def send() -> None:
                for _ in range(TRAINS):
                    for piece in pieces:
                        sending.sendto(piece, (address, PORT))

            yield send


# --- UDP sockets -------------------------------------------------------------------------------


def _receiving(network: Network) -> socket.socket:
    opened = network.near.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    opened.bind((NEAR, PORT))
    return opened


def recvfrom_loop(network: Network) -> Iterator[Any]:
    seen: list[int] = [0]

    def handle(datagram: bytes) -> None:
        seen[0] += 1

    with _receiving(network) as opened, network.sender(network.far, NEAR, trains=True) as send:
        opened.setblocking(False)

        def read() -> int:
            seen[0] = 0
            while True:
                try:
                    datagram, _address = opened.recvfrom(65535)
                except BlockingIOError:
                    return seen[0]
                handle(datagram)

        yield send, read


def _udp(network: Network, *, gro: bool) -> Iterator[Any]:
    seen: list[int] = [0]

    def handle(datagram: Any) -> None:
        seen[0] += 1

    def hook(trains: list[Any]) -> None:
        for train in trains:
            for datagram in train:
                handle(datagram)

    with _receiving(network) as opened, network.sender(network.far, NEAR, trains=True) as send:
        options: dict[str, Any] = {"ecn": False, "packet_info": False, "timestamps": False}
        batch = 8 if gro else 64
        with UdpDispatcher(
            opened, hook, gro=gro, batch=batch, receive_buffer=BUFFER, **options
        ) as d:

            def read() -> int:
                seen[0] = 0
                while d.dispatch_once(0):
                    pass
                return seen[0]

            yield send, read


# --- packets -----------------------------------------------------------------------------------


def _packets(dispatcher: Any, delivered: list[int]) -> Round:
    def read() -> int:
        delivered[0] = 0
        while dispatcher.dispatch_once(0):
            pass
        return delivered[0]

    return read


def _counting() -> tuple[list[int], Callable[[list[Any]], None]]:
    delivered = [0]

    def hook(packets: list[Any]) -> None:
        for packet in packets:
            delivered[0] += packet.gso_segs or 1

    return delivered, hook


CONFIG = GroConfig(capacity=64, udp=True, max_udp_segments=128)


def packet_socket(network: Network) -> Iterator[Any]:
    delivered, hook = _counting()
    with network.near:
        network.near.offloads("eth0", gro=False)
        source = open_packet_socket("eth0", receive_buffer=BUFFER)
        with RecvMmsgDispatcher(source, hook, CONFIG) as dispatcher:
            with network.sender(network.far, NEAR, trains=False) as send:
                yield send, _packets(dispatcher, delivered)


def packet_ring(network: Network) -> Iterator[Any]:
    delivered, hook = _counting()
    with network.near:
        with PacketRingDispatcher("eth0", hook, CONFIG, blocks=256) as dispatcher:
            with network.sender(network.far, NEAR, trains=False) as send:

                def sent() -> None:
                    send()
                    time.sleep(0.01)  # until the kernel's timer has handed over the last block

                yield sent, _packets(dispatcher, delivered)


def _tun(network: Network, *, offload: bool) -> Iterator[Any]:
    delivered, hook = _counting()
    with network.near as namespace:
        wanted = TunOffloads() if offload else TunOffloads.none()
        with TunDevice("tun7", offloads=wanted) as device:
            namespace.address("tun7", "10.7.0.1/24")
            namespace.queue_length("tun7", 2 * TRAIN * TRAINS)
            namespace.up("tun7")
            with TunDispatcher(device, hook, CONFIG) as dispatcher:
                with network.sender(namespace, "10.7.0.2", trains=True) as send:
                    yield send, _packets(dispatcher, delivered)


CASES: dict[str, Callable[[Network], Iterator[Any]]] = {
    "recvfrom loop": recvfrom_loop,
    "recvmmsg": lambda network: _udp(network, gro=False),
    "recvmmsg, UDP_GRO": lambda network: _udp(network, gro=True),
    "packet socket, recvmmsg": packet_socket,
    "packet ring": packet_ring,
    "TUN": lambda network: _tun(network, offload=False),
    "TUN, offload": lambda network: _tun(network, offload=True),
}


def measure(rounds: int) -> dict[str, list[float]]:
    """Nanoseconds a datagram of each case in each round, the cases in turn."""
    opened: dict[str, Iterator[Any]] = {}
    results: dict[str, list[float]] = {}
    for name, case in CASES.items():  # one at a time: they would see each other's packets
        with lab.Lab() as net:
            opened[name] = running = case(Network(net))
            send, read = next(running)
            send()
            read()
            times = []
            for _ in range(rounds):
                send()
                start = time.perf_counter_ns()
                count = read()
                times.append((time.perf_counter_ns() - start) / count)
                if count != TRAIN * TRAINS:
                    print(f"{name}: {count} of {TRAIN * TRAINS}", file=sys.stderr)
            results[name] = times
            running.close()  # type: ignore[attr-defined]
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object a case, as a list")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args(arguments)
    engine = "compiled" if netstack_gro.__compiled__ else "interpreted"
    results = measure(options.rounds)
    base = statistics.median(results["recvfrom loop"])
    rows = [
        {
            "case": name,
            "engine": engine,
            "unit": "ns/datagram",
            "min": min(times),
            "median": statistics.median(times),
            "runs": len(times),
            "times_recvfrom": base / statistics.median(times),
        }
        for name, times in results.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"engine: {engine}; datagrams of {PAYLOAD} bytes, {TRAIN * TRAINS} a round")
    for row in rows:
        print(
            f"  {row['case']:26}{1e9 / row['median']:12,.0f} a second"
            f"{row['median']:10.0f} ns each{row['times_recvfrom']:8.1f} x recvfrom"
        )


if __name__ == "__main__":
    main()
