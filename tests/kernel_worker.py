"""The side of the kernel oracle that lives in namespaces of its own, a program by itself.

Each sequence is written to a TUN device with IFF_NAPI, packet by packet: every write is one NAPI
poll, and its packet goes through napi_gro_receive() before write() returns. What GRO holds back
the kernel delivers when gro_flush_timeout after the last write has passed; an AF_PACKET socket
on the device sees each delivered packet behind a virtio_net_hdr.

Two things would end a GRO round early, and both are noticed, so that the sequence is repeated:

- the timer, if the writes together took longer than gro_flush_timeout;
- a jiffy that began in between, since napi_complete_done() flushes whatever a poll finds held
  from an earlier jiffy. No clock shows jiffies exactly (CLOCK_MONOTONIC_COARSE lags), but
  TCP_INFO of a socket that never sent says how long ago jiffy 0 was.

All is in when the delivered packets account for all inputs: no sleep and no sentinel is needed.
The wait for the timer is hidden by several devices, each with a sequence of its own under way.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from pyroute2 import IPRoute

from tests import namespaces

TUNSETIFF = 0x400454CA  # include/uapi/linux/if_tun.h
IFF_TUN = 0x0001
IFF_TAP = 0x0002
IFF_NAPI = 0x0010
IFF_NO_PI = 0x1000
SOL_PACKET = 263  # include/linux/socket.h
PACKET_VNET_HDR = 15  # include/uapi/linux/if_packet.h
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 0x0003  # include/uapi/linux/if_ether.h
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
UDP_GRO = 104  # include/uapi/linux/udp.h
LAST_DATA_SENT = 44  # offset of tcpi_last_data_sent in struct tcp_info, include/uapi/linux/tcp.h
GSO_UDP_L4 = 5  # VIRTIO_NET_HDR_GSO_UDP_L4, include/uapi/linux/virtio_net.h

VNET = struct.Struct("=BBHHHH")
FLUSH_NS = 1_000_000  # two thousand one-byte writes fit; a jiffy is 1 to 10 ms
RECEIVE_BUFFER = 16 << 20
LARGEST = 65535 + 40 + 14  # an IPv6 packet in an Ethernet frame
ATTEMPTS = 200
PATIENCE_S = 5.0

Delivered = tuple[bytes, bytes]
"""A virtio_net_hdr and the packet behind it."""


class Lost(Exception):
    """The kernel did not deliver what was written, or would not keep still."""


class Jiffies:
    """Reads the kernel's tick counter, in milliseconds."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        start = self.read()
        deadline = time.monotonic() + 1
        while self.read() == start:  # also a proof that it ticks at all
            if time.monotonic() > deadline:
                raise OSError("TCP_INFO of an idle socket does not tell the time")

    def read(self) -> int:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_SENT + 4)
        return int.from_bytes(info[LAST_DATA_SENT:], sys.byteorder)

    def close(self) -> None:
        self._socket.close()


class Device:
    """One TUN (or TAP) device, one sequence at a time."""

    def __init__(self, name: str, kind: int, route: IPRoute, jiffies: Jiffies) -> None:
        self.name = name
        self._jiffies = jiffies
        self._quiet_at = 0
        self._written = 0
        with ExitStack() as stack:
            self._tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, self._tun)
            flags = kind | IFF_NAPI | IFF_NO_PI
            fcntl.ioctl(self._tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
            (index,) = route.link_lookup(ifname=name)
            route.link("set", index=index, state="up")
            self._set("gro_flush_timeout", FLUSH_NS)
            self._set("napi_defer_hard_irqs", 0)
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._tap = stack.enter_context(tap)
            tap.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            tap.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            tap.setblocking(False)
            tap.bind((name, ETH_P_ALL))
            self._poll = select.poll()
            self._poll.register(tap, select.POLLIN)
            self._stack = stack.pop_all()

    def _set(self, attribute: str, value: int) -> None:
        Path("/sys/class/net", self.name, attribute).write_text(str(value), encoding="ascii")

    def write(self, sequence: Sequence[bytes]) -> bool:
        """Feed one sequence; whether it surely was one GRO round."""
        while time.monotonic_ns() < self._quiet_at:
            pass  # a timer that the sequence before left behind would flush this one
        tun, write = self._tun, os.write
        self._written = 0
        jiffy = self._jiffies.read()
        start = time.monotonic_ns()
        for packet in sequence:
            write(tun, packet)
            self._written += 1
        end = time.monotonic_ns()
        self._quiet_at = end + FLUSH_NS + FLUSH_NS // 2
        return end - start < FLUSH_NS and self._jiffies.read() == jiffy

    def collect(self) -> list[Delivered]:
        """All that became of the written sequence, in order of delivery."""
        delivered: list[Delivered] = []
        missing = self._written
        while missing > 0:
            try:
                data = self._tap.recv(VNET.size + LARGEST)
            except BlockingIOError:
                if not self._poll.poll(PATIENCE_S * 1000):
                    raise Lost(f"{missing} of {self._written} packets never arrived") from None
                continue
            delivered.append((data[: VNET.size], data[VNET.size :]))
            missing -= inputs(data)
        if missing < 0:
            raise Lost(f"{-missing} packets more than were written arrived")
        return delivered

    def close(self) -> None:
        self._stack.close()


def inputs(data: bytes) -> int:
    """How many written packets a delivered one, behind its virtio_net_hdr, stands for."""
    _flags, gso_type, _length, gso_size, transport, _offset = VNET.unpack_from(data)
    if gso_type == 0:
        return 1
    transport += VNET.size
    header = 8 if gso_type == GSO_UDP_L4 else data[transport + 12] >> 4 << 2
    count: int = -(-(len(data) - transport - header) // gso_size)
    return count


def run(devices: Sequence[Device], sequences: Sequence[Sequence[bytes]]) -> list[list[Delivered]]:
    """What the kernel delivered for each of the sequences."""
    results: list[list[Delivered]] = [[] for _ in sequences]
    waiting = deque((number, 1) for number in range(len(sequences)))
    while waiting:
        started = []
        for device in devices[: len(waiting)]:
            number, attempt = waiting.popleft()
            started.append((device, number, attempt, device.write(sequences[number])))
        for device, number, attempt, whole in started:
            results[number] = device.collect()
            if not whole:
                if attempt == ATTEMPTS:
                    raise Lost(f"sequence {number} never fitted one GRO round, tried {attempt} x")
                waiting.append((number, attempt + 1))
    return results


def serve(connection: Connection, kind: int, device_count: int, udp_ports: Sequence[int]) -> None:
    """Set up devices of a ``kind`` (IFF_TUN, IFF_TAP), then answer until the other side leaves.

    The first message sent is None once all is set up, or the text of the OSError that prevented
    it. Then each list of sequences received is answered by its results, or by a text on failure.
    """
    with ExitStack() as stack:
        try:
            namespaces.enter_private_network()
            route = stack.enter_context(IPRoute())
            jiffies = Jiffies()
            stack.callback(jiffies.close)
            for port in udp_ports:
                for family in (socket.AF_INET, socket.AF_INET6):
                    sink = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                    if family == socket.AF_INET6:
                        sink.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    sink.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
                    sink.bind(("", port))
            devices = []
            for number in range(device_count):
                device = Device(f"gro{number}", kind, route, jiffies)
                stack.callback(device.close)
                devices.append(device)
        except OSError as error:
            connection.send(str(error))
            return
        connection.send(None)
        while True:
            try:
                sequences = connection.recv()
            except EOFError:
                return
            try:
                connection.send(run(devices, sequences))
            except (Lost, OSError) as error:
                connection.send(f"{type(error).__name__}: {error}")
                return  # packets may still be under way: this worker cannot be trusted again


def main(arguments: Sequence[str]) -> None:
    descriptor, device_count, *ports = map(int, arguments[1:])
    kind = {"ip": IFF_TUN, "ethernet": IFF_TAP}[arguments[0]]
    namespaces.die_with_parent()
    with Connection(descriptor) as connection:
        serve(connection, kind, device_count, ports)


if __name__ == "__main__":
    main(sys.argv[1:])
