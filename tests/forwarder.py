"""Parts of a forwarder in user space: what stands between two kernels besides the engine.

`Faults` decides what happens to a packet on the way. `FaultyWire` is a sink that asks it and
hands what is left to a second engine. A `Cable` is a process of its own that carries the packets
of a TUN device to a veth, asking it too: real wire packets, before any engine. `FrameSender` is
the way back into a veth.
"""

import json
import os
import random
import select
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests import namespaces

if TYPE_CHECKING:
    from netstack_gro import GroDispatcher, Packet
    from tests import lab  # imports pyroute2, which a cable need not wait for
    from tests.engines import Engine

__all__ = ["Cable", "Counts", "Faults", "FaultyWire", "Forwarder", "FrameSender", "data_packets"]

T = TypeVar("T")

NO_PAYLOAD = 120  # bytes that no packet exceeds without TCP payload: IPv6 and 60 bytes of TCP
SOL_PACKET = 263  # include/linux/socket.h
PACKET_VNET_HDR = 15  # include/uapi/linux/if_packet.h
ETH_P = {4: b"\x08\x00", 6: b"\x86\xdd"}  # include/uapi/linux/if_ether.h
PATIENCE_S = 10.0
RECEIVE_BUFFER = 16 << 20


def data_packets(size: int, mtu: int) -> int:
    """How many packets a TCP transfer of ``size`` bytes takes at least."""
    return size // (mtu - 40)


@dataclass(slots=True)
class Counts:
    """What befell the packets that carry TCP payload; all others pass."""

    data: int = 0
    dropped: int = 0
    swapped: int = 0
    duplicated: int = 0


class Faults(Generic[T]):
    """Drops, swaps and duplicates a packet now and then, as often each.

    One fault in ``gap / 2`` packets on average, and never fewer than one in ``gap``, so that few
    packets suffice for every kind. A swapped packet goes behind one to three later ones, or to
    the end of those that were there to be read.
    """

    def __init__(self, seed: int, gap: int) -> None:
        self.counts = Counts()
        self._random = random.Random(seed)
        self._gap = gap
        self._next = self._random.randint(1, gap)
        self._kinds: list[str] = []
        self._held: list[T] = []
        self._until = 0

    def strike(self, packet: T, size: int) -> list[T]:
        """What becomes of a packet of ``size`` bytes of IP: none, one or several."""
        out = [packet] if size <= NO_PAYLOAD else self._strike(packet)
        if self._held and out:
            self._until -= 1
            if self._until <= 0:
                out += self.rest()
        return out

    def rest(self) -> list[T]:
        """What is still held back: nothing else came to go before it."""
        held, self._held = self._held, []
        return held

    def _strike(self, packet: T) -> list[T]:
        counts = self.counts
        counts.data += 1
        self._next -= 1
        if self._next:
            return [packet]
        self._next = self._random.randint(1, self._gap)
        if not self._kinds:
            self._kinds = ["drop", "swap", "duplicate"]
            self._random.shuffle(self._kinds)
        kind = self._kinds.pop()
        if kind == "drop":
            counts.dropped += 1
            return []
        if kind == "duplicate":
            counts.duplicated += 1
            return [packet, packet]
        counts.swapped += 1
        self._until = self._random.randint(1, 3)
        held, self._held = self._held, [packet]
        return held


class Forwarder:
    """Namespaces with nothing between them but dispatchers, which run until ``stack`` is closed.

    ``near`` and ``far`` are the ends; ``middle`` is for interfaces of the forwarder's own.
    """

    def __init__(self, engine: "Engine", net: "lab.Lab", stack: ExitStack) -> None:
        self.net = net
        self.near, self.far = net.namespace(), net.namespace()
        self.middle = net.namespace(ipv6=False)
        self._stack = stack
        self._engine = engine
        self._tun = engine.module("dispatchers.tun")
        self._device = engine.module("dispatchers.tun_device")
        self._writer = engine.module("hooks.tun").TunWriter

    def tun(self, namespace: "lab.Namespace", address: str, mtu: int, **options: Any) -> Any:
        """A TUN device, up, with the address ``ADDRESS/LENGTH``; its options are TunDevice's."""
        with namespace:
            device = self._stack.enter_context(self._device.TunDevice("tun0", **options))
        namespace.mtu("tun0", mtu)
        namespace.up("tun0")
        namespace.address("tun0", address)
        return device

    def queue(self, device: Any, namespace: "lab.Namespace") -> Any:
        """Another queue of a TUN device with several."""
        with namespace:
            return self._stack.enter_context(device.open_queue())

    def no_offloads(self) -> Any:
        return self._device.TunOffloads.none()

    def writer(self, device: Any) -> Any:
        return self._writer(device)

    def config(self) -> Any:
        return self._engine.GroConfig(udp=True, delivered_checksums="partial", capacity=64)

    def gro(self, hook: Any) -> Any:
        """A further engine."""
        return self._stack.enter_context(self._engine.GroDispatcher(hook, self.config()))

    def read_tun(self, device: Any, hook: Any, **options: Any) -> Any:
        return self.run(self._tun.TunDispatcher(device, hook, self.config(), **options))

    def read_interface(self, interface: str, hook: Any) -> Any:
        module = self._engine.module("dispatchers.packet_socket")
        with self.middle:
            source = module.open_packet_socket(interface, receive_buffer=RECEIVE_BUFFER)
        make = self._engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher
        return self.run(make(source, hook, self.config()))

    def read_ring(self, interface: str, hook: Any) -> Any:
        make = self._engine.module("dispatchers.ring").PacketRingDispatcher
        with self.middle:
            dispatcher = make(interface, hook, self.config())
        return self.run(dispatcher)

    def run(self, dispatcher: Any) -> Any:
        """Run it in a thread until this is left."""
        self._stack.enter_context(dispatcher)
        thread = self.net.thread(self.middle, dispatcher.run)

        def end() -> None:
            dispatcher.stop()
            thread.result()

        self._stack.callback(end)
        return dispatcher


class FaultyWire:
    """A sink that takes packets unmerged, has them struck, and enqueues the rest for ``gro``."""

    def __init__(self, faults: "Faults[Packet]", gro: "GroDispatcher", limits: Any) -> None:
        self.limits = limits
        self._faults = faults
        self._gro = gro

    def __call__(self, packets: "list[Packet]") -> None:
        strike = self._faults.strike
        left = [kept for packet in packets for kept in strike(packet, len(packet))]
        for packet in left + self._faults.rest():
            self._gro.enqueue(
                bytes(packet),
                timestamp_ns=packet.timestamp_ns,
                checksum=packet.checksum,
                virtio=packet.virtio_header(),
            )
        self._gro.flush()


class FrameSender:
    """A hook that sends IP packets from a packet socket in Ethernet frames, super-packets too.

    The kernel cuts and completes them, by the virtio_net_hdr before each (PACKET_VNET_HDR).
    """

    def __init__(self, out: socket.socket, destination: bytes, source: bytes, limits: Any) -> None:
        self.limits = limits
        out.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self._socket = out
        self._headers = {version: destination + source + kind for version, kind in ETH_P.items()}

    def __call__(self, packets: "list[Packet]") -> None:
        for packet in packets:
            header = packet.virtio_header()
            moved = type(header)(
                flags=header.flags & 1,  # NEEDS_CSUM
                gso_type=header.gso_type,
                hdr_len=header.hdr_len + 14 if header.hdr_len else 0,
                gso_size=header.gso_size,
                csum_start=header.csum_start + 14 if header.needs_csum else 0,
                csum_offset=header.csum_offset if header.needs_csum else 0,
            )
            data = bytes(packet)
            self._socket.send(moved.encode() + self._headers[data[0] >> 4] + data)


class Cable:
    """Carries packets from a TUN device without offloads into one end of a veth.

    A process of its own: it shares neither the interpreter nor the fate of what it is a cable to.
    """

    def __init__(
        self,
        net: "lab.Lab",
        namespace: "lab.Namespace",
        tun: int,
        interface: str,
        *,
        destination: bytes,
        seed: int,
        gap: int,
    ) -> None:
        out = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        with out:
            out.bind((interface, 0))
            addresses = destination + namespace.mac(interface)
            self._process = net.start(
                namespace,
                __name__,
                *(tun, out.fileno(), addresses.hex(), seed, gap),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[tun, out.fileno()],
            )

    def unplug(self) -> Counts:
        """Stop; what befell the packets on the way."""
        answer, _ = self._process.communicate(timeout=PATIENCE_S)
        return Counts(**json.loads(answer))


def carry(tun: int, out: socket.socket, addresses: bytes, faults: Faults[bytes]) -> None:
    """Until standard input ends."""
    headers = {version: addresses + kind for version, kind in ETH_P.items()}
    poll = select.poll()
    poll.register(tun, select.POLLIN)
    poll.register(sys.stdin, 0)
    while not any(events & select.POLLHUP for _descriptor, events in poll.poll()):
        for packet in _waiting(tun, faults):
            out.send(headers[packet[0] >> 4] + packet)


def _waiting(tun: int, faults: Faults[bytes]) -> Iterable[bytes]:
    """What can be read now, after faults."""
    while True:
        try:
            packet = os.read(tun, 65536)
        except BlockingIOError:
            break
        yield from faults.strike(packet, len(packet))
    yield from faults.rest()


def main(arguments: list[str]) -> None:
    namespaces.die_with_parent()
    tun, out, addresses, seed, gap = arguments
    faults = Faults[bytes](int(seed), int(gap))
    with socket.socket(fileno=int(out)) as frames:
        carry(int(tun), frames, bytes.fromhex(addresses), faults)
    print(json.dumps(asdict(faults.counts)))


if __name__ == "__main__":
    main(sys.argv[1:])
