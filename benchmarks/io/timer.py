"""Merging that holds nothing after a read, against a table that holds packets until a timer."""

import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from select import select

from benchmarks.io.results import Results, WrongResultError
from benchmarks.io.sender import ETH_P_IP, Sender, stream
from netstack_gro import GroConfig, GroDispatcher, Packet
from tests import lab

__all__ = ["TIMER_S", "Merging", "measure"]

TIMER_S = 0.001
PAYLOAD = 1448  # an Ethernet MTU of 1500 less IPv4, TCP and timestamps
CAPACITY = 44  # segments in a super-packet, with which a full table is flushed
WINDOW = 44  # segments on the way: 64 KiB, what TCP may send without window scaling
READ = 64  # packets before a flush where more are waiting
REPEAT = 440  # segments, after which the sender begins again
STREAM, WAITING, LONE = 4400, 2200, 25  # in a round: segments, segments, packets
SLOT = 2048
NOBODY = bytes.fromhex("020000000001")  # a station, so that the kernel behind drops the packet
RECEIVE_BUFFER = 1 << 26
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
SOL_PACKET = 263  # include/linux/socket.h
PACKET_STATISTICS = 6  # include/uapi/linux/if_packet.h
PATIENCE_S = 5.0
LEAST = 100  # times as long is the delay by the timer
OURS, HELD = "netstack-gro, no timer", "held by a timer of 1 ms"
WALL, CPU, DELAY = "ns/packet, wall", "ns/packet, CPU", "us"
CLOCKED = f"TCP-like stream, window of {WINDOW} segments"
OPEN, ALONE = "TCP-like stream that waits in the socket", "delay of a lone packet"

SETUP = (
    f"Merging without a timer against a table held by one. TCP segments of {PAYLOAD:,} bytes of "
    "payload, sent by a process of its own over a veth, received by a packet socket. Both "
    "receivers are the same loop around our engine (recv, enqueue), verify checksums, and merge "
    f"up to {CAPACITY} segments, 64 KiB. One flushes when it has read what was there, {READ} "
    f"packets at most; the other {TIMER_S * 1000:g} ms after the first packet that it holds, or "
    "when it is full, as gVisor did."
)
STREAMS = (
    f"With a window of {WINDOW} segments the sender waits for what was delivered, as TCP does; "
    "else all waits in the socket beforehand. The delay of a lone packet is from the end of recv "
    "to the call of the hook."
)


class Merging:
    """A receive loop around an engine, which flushes when it has read, or after ``hold`` seconds.

    delivered: segments that the hook was given. packets: in how many. sender: is told of them,
    unless it is None. delays: at each call of the hook, nanoseconds since the last recv ended.
    """

    def __init__(self, source: socket.socket, hold: float = 0.0) -> None:
        self.delivered = self.packets = 0
        self.sender: Sender | None = None
        self.delays: list[int] = []
        self._arrived = 0
        self._source = source
        self._hold = hold
        self._due: float | None = None
        self._gro = GroDispatcher(self._hook, GroConfig(capacity=CAPACITY))

    def run(self, count: int) -> None:
        """Until ``count`` more segments were delivered. WrongResultError where none come."""
        until = self.delivered + count
        while self.delivered < until:
            if not self.turn():
                raise WrongResultError(f"{until - self.delivered} of {count} segments are missing")
        if self.delivered != until:
            raise WrongResultError(f"{self.delivered - until} segments too many")

    def turn(self) -> bool:
        """Wait, read what is there, and flush if it is time; whether anything happened."""
        left = PATIENCE_S if self._due is None else max(0.0, self._due - time.monotonic())
        ready, _, _ = select([self._source], [], [], left)
        if not ready and self._due is None:
            return False
        enqueue, recv = self._gro.enqueue, self._source.recv
        for _ in range(READ if ready else 0):
            try:
                packet = recv(SLOT)
            except BlockingIOError:
                break
            self._arrived = time.perf_counter_ns()
            enqueue(packet)
        if not self._hold:
            self._gro.flush()
            return True
        now = time.monotonic()
        if self._due is None:
            self._due = now + self._hold
        elif now >= self._due:
            self._gro.flush()
        if not self._gro.pending:
            self._due = None
        return True

    def _hook(self, packets: list[Packet]) -> None:
        self.delays.append(time.perf_counter_ns() - self._arrived)
        segments = sum(packet.packets for packet in packets)
        self.delivered += segments
        self.packets += len(packets)
        if self.sender is not None:
            self.sender.credit(segments)


@dataclass(slots=True)
class _Wire:
    """A receiver and what sends to it: an interface of the same name at either end."""

    interface: str
    opened: socket.socket
    table: Merging
    sender: Sender
    out: socket.socket
    dropped: int = 0

    def ask(self, count: int, window: int) -> None:
        """Have the sender send a stream."""
        self.sender.ask(
            kind="stream",
            interface=self.interface,
            mac=NOBODY.hex(),
            payload=PAYLOAD,
            repeat=REPEAT,
            count=count,
            window=window,
        )

    def send(self, packet: bytes) -> None:
        """Send one packet from here."""
        self.out.sendto(packet, (self.interface, ETH_P_IP, 0, 0, NOBODY))

    def statistics(self) -> int:
        """Packets that the kernel has dropped in all."""
        told = self.opened.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.dropped += struct.unpack("=II", told)[1]
        return self.dropped


def _clocked(wire: _Wire, count: int) -> float:
    """Nanoseconds a segment of a stream that is sent as fast as it is delivered."""
    wire.table.sender = wire.sender
    start = time.perf_counter_ns()
    wire.ask(count, WINDOW)
    wire.table.run(count)
    taken = time.perf_counter_ns() - start
    wire.table.sender = None
    wire.sender.wait()
    return taken / count


def _waiting(wire: _Wire, count: int) -> float:
    """CPU nanoseconds a segment of a stream that was sent before."""
    wire.ask(count, 0)
    wire.sender.wait()
    start = time.thread_time_ns()
    wire.table.run(count)
    return (time.thread_time_ns() - start) / count


def _alone(wire: _Wire, packets: list[bytes]) -> float:
    """The median delay in microseconds."""
    wire.table.delays.clear()
    for packet in packets:
        wire.send(packet)
        wire.table.run(1)
    return statistics.median(wire.table.delays) / 1000


def _round(results: Results, name: str, wire: _Wire, lone: list[bytes], scale: int) -> None:
    table = wire.table
    cases: tuple[tuple[str, str, int, Callable[[int], float]], ...] = (
        (CLOCKED, WALL, STREAM // scale, lambda count: _clocked(wire, count)),
        (OPEN, CPU, WAITING // scale, lambda count: _waiting(wire, count)),
        (ALONE, DELAY, len(lone), lambda _count: _alone(wire, lone)),
    )
    for case, unit, count, run in cases:
        packets = table.packets
        results.add(case, name, unit, run(count), count)
        merged = round(count / (table.packets - packets), 1)
        results.count(case, name, segments_a_packet=merged, dropped=wire.statistics())


def measure(rounds: int, *, quick: bool) -> Results:
    """Both in turn."""
    results = Results([SETUP, STREAMS])
    scale = 5 if quick else 1
    lone = stream(PAYLOAD, LONE // scale).build()
    with lab.Lab() as net, ExitStack() as stack:
        far, near = net.namespace(ipv6=False), net.namespace(ipv6=False)
        sender = stack.enter_context(Sender(net, far))
        out = stack.enter_context(far.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
        wires = {}
        for number, (name, hold) in enumerate(((OURS, 0.0), (HELD, TIMER_S))):
            interface = f"eth{number}"
            net.veth(far, interface, near, interface, mtu=1500)
            opened = stack.enter_context(near.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            opened.setblocking(False)
            with near:
                opened.bind((interface, ETH_P_IP))
            wires[name] = _Wire(interface, opened, Merging(opened, hold), sender, out)
        for wire in wires.values():  # the sender makes its packets when it is first asked
            _clocked(wire, WINDOW)
        for _ in range(rounds):
            for name, wire in wires.items():
                _round(results, name, wire, lone, scale)
    results.times(CLOCKED, OURS, HELD, WALL)
    results.times(OPEN, OURS, HELD, CPU)
    results.times(ALONE, OURS, HELD, DELAY, LEAST)
    return results
