"""TUN and TAP devices in namespaces, what a kernel sends into them, and a router between two.

    with lab.Lab() as net:
        router = Router(net)                       # tun0 and tun1 in one namespace that forwards
        os.write(router.entry.fileno(), ...)       # what is written to tun0
        router.read(count)                         # comes out of tun1, on the wire

`Router` is the witness of what was written to a TUN: the kernel cuts super-packets, completes
checksums and takes one from each TTL on the way, and nothing else.
"""

import os
import select
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Self

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.virtio import VirtioHeader
from tests import builders, lab
from tests.engines import Engine

PATIENCE_S = 10.0
UDP_SEGMENT = 103  # include/uapi/linux/udp.h
PARTIAL = GroConfig(udp=True, delivered_checksums="partial")
LARGEST = 12 + 22 + 65535

NEAR = {4: "10.1.0.1", 6: "fd01::1"}  # what the kernel has on its TUN
FAR = {4: "10.1.0.9", 6: "fd01::9"}  # who is behind it
BEYOND = {4: "10.2.0.9", 6: "fd02::9"}  # who is behind the other one


def set_up(
    namespace: lab.Namespace,
    device: TunDevice,
    *,
    mtu: int = 1500,
    versions: Sequence[int] = (4, 6),
) -> TunDevice:
    """Give a device the addresses `NEAR`, a neighbour at `FAR`, and set it up; the device."""
    namespace.mtu(device.name, mtu)
    namespace.up(device.name)
    for version in versions:
        namespace.address(device.name, f"{NEAR[version]}/{24 if version == 4 else 64}")
        if device.kind == "tap":
            namespace.neighbour(device.name, FAR[version], builders.MAC_DESTINATION)
    return device


def opened(
    namespace: lab.Namespace,
    name: str = "tun0",
    *,
    mtu: int = 1500,
    versions: Sequence[int] = (4, 6),
    **options: Any,
) -> TunDevice:
    """A device in a namespace, set up."""
    with namespace:
        device = TunDevice(name, **options)
    return set_up(namespace, device, mtu=mtu, versions=versions)


def send_train(
    sender: socket.socket, address: str, payload: bytes, size: int = 0, *, port: int = 9000
) -> None:
    """Send one datagram, or with a ``size`` a train of them in one call."""
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))] if size else []
    sender.sendmsg([payload], control, 0, (address, port))


def read_frames(device: TunDevice, count: int) -> list[bytes]:
    """The next frames to be read from a device, with their virtio_net_hdr."""
    readable = select.poll()
    readable.register(device, select.POLLIN)
    frames: list[bytes] = []
    while len(frames) < count:
        try:
            frames.append(os.read(device.fileno(), LARGEST))
        except BlockingIOError:
            if not readable.poll(PATIENCE_S * 1000):
                raise TimeoutError(f"{len(frames)} of {count} frames came") from None
    return frames


def nothing_to_read(device: TunDevice) -> bool:
    """Whether no frame waits, written synchronously by whoever did."""
    readable = select.poll()
    readable.register(device, select.POLLIN)
    return not readable.poll(0)


def announces(packet: bytes) -> bool:
    """Whether an IP packet is one by which a router of IPv6 announces itself on its links."""
    return packet[0] >> 4 == 6 and packet[24:26] == b"\xff\x02"


class Router:
    """A namespace that routes what is written to ``entry`` (tun0) out of ``out`` (tun1).

    ``out`` has no virtio_net_hdr, so that packets leave as they would on a wire; with
    ``whole=True`` it has one, and they leave as the kernel has them. A router of IPv6
    announces itself, which only what is read otherwise than by `read` may mind.
    """

    def __init__(
        self,
        net: lab.Lab,
        *,
        whole: bool = False,
        versions: Sequence[int] = (4, 6),
        **options: Any,
    ) -> None:
        self.namespace = net.namespace(ipv6=6 in versions)
        self.entry = opened(self.namespace, "tun0", versions=versions, **options)
        with self.namespace:
            self.out = TunDevice(
                "tun1", vnet_hdr=whole, offloads=None if whole else TunOffloads.none()
            )
        self.namespace.up("tun1")
        self.namespace.address("tun1", "10.2.0.1/24")
        self.namespace.sysctl("ipv4/ip_forward", 1)
        if 6 in versions:
            self.namespace.address("tun1", "fd02::1/64")
            self.namespace.sysctl("ipv6/conf/all/forwarding", 1)

    def read(self, count: int) -> list[bytes]:
        """What comes out of tun1 next."""
        packets: list[bytes] = []
        while len(packets) < count:
            (frame,) = read_frames(self.out, 1)
            if not announces(frame[self.out.vnet_size :]):
                packets.append(frame)
        return packets

    @property
    def idle(self) -> bool:
        """Whether nothing comes out, and nothing comes back."""
        for device in (self.out, self.entry):
            while not nothing_to_read(device):
                (frame,) = read_frames(device, 1)
                start = device.vnet_size + (14 if device.kind == "tap" else 0)
                if not announces(frame[start:]):
                    return False
        return True

    def close(self) -> None:
        self.entry.close()
        self.out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def routed(packets: Iterable[bytes]) -> list[bytes]:
    """What a router makes of IP packets: one less in TTL or hop limit, and the IPv4 checksum."""
    return [_routed(bytearray(packet)) for packet in packets]


def _routed(packet: bytearray) -> bytes:
    if packet[0] >> 4 == 6:
        packet[7] -= 1
        return bytes(packet)
    packet[8] -= 1
    packet[10:12] = b"\0\0"
    header = packet[: (packet[0] & 15) * 4]
    packet[10:12] = (0xFFFF - (builders.ones_sum(header) or 0xFFFF)).to_bytes(2, "big")
    return bytes(packet)


def stream(
    version: int,
    protocol: int,
    sizes: Sequence[int],
    *,
    first_id: int | None = None,
    fill: int = 0,
    **fields: Any,
) -> list[bytes]:
    """Packets of one flow through a `Router`, in order: payloads of ``sizes`` bytes.

    IPv4 IDs count up from ``first_id``; None: all are equal. ``fill`` makes payloads differ.
    """
    packets = []
    sequence = 1
    for number, size in enumerate(sizes):
        payload = bytes((fill + number + at) & 255 for at in range(size))
        given = dict(fields, source=FAR[version], destination=BEYOND[version])
        if version == 4:
            given["ident"] = 7 if first_id is None else (first_id + number) & 0xFFFF
        if protocol == builders.TCP:
            given["seq"] = sequence
        packets.append(builders.BUILDERS[version, protocol](payload, **given))
        sequence += size
    return packets


def through(writer: Any) -> Any:
    """A plain callable in front of a sink, so that the engine does not see its limits."""

    def hook(packets: list[Any]) -> None:
        writer(packets)

    return hook


def write(
    engine: Engine, writer: Any, packets: Sequence[bytes], config: GroConfig = PARTIAL
) -> None:
    """Have packets merged, and the result written, by an engine of their own."""
    with engine.GroDispatcher(writer, config) as gro:
        gro.dispatch(packets)


def writer_to(engine: Engine, device: TunDevice, **options: Any) -> Any:
    return engine.module("hooks.tun").TunWriter(device, **options)


class Written:
    """The real writev(2), with the virtio_net_hdr of each write noted, and all of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.headers: list[VirtioHeader] = []
        self.frames: list[bytes] = []
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self)

    def __call__(self, descriptor: int, buffers: Any) -> int:
        self.frames.append(b"".join(buffers))
        self.headers.append(VirtioHeader.decode(self.frames[-1]))
        return self._writev(descriptor, buffers)
