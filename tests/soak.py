"""Full load for ten minutes, and memory that stays flat: `make soak`, or python -m tests.soak.

    python -m tests.soak [--seconds N]

TCP goes from a kernel through a veth, recvmmsg, the engine and a TUN to another kernel, transfer
after transfer, each held to its SHA-256; trains of UDP go over loopback, each held to its
numbers. One JSON object at the end says how much that was; the exit status is 1 where something
was lost or memory grew. Needs root and /dev/net/tun.
"""

import argparse
import json
import resource
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forwarder, lab, transfer
from tests.engines import ENGINES, Engine, load
from tests.requirements import lacks_tun

__all__ = ["Report", "judge_memory", "run"]

MTU = 1500
NEAR, FAR = "10.0.0.1/24", "10.0.0.2/24"
BYTES_AT_ONCE = {"compiled": 256 << 20, "interpreted": 16 << 20}
DATAGRAM, DATAGRAMS = 1200, 40
UNREAD_TRAINS = 16  # fewer than the socket is asked to hold, so that none is dropped
CAPACITY = 64
WARM_S = 1.0
SAMPLE_S = 0.1

FIRST_TOUCHED = (2 * CAPACITY + 8) * (1 << 16)
"""Bytes that were allocated at the start, and that the kernel gives when they are first written to:
two slabs of a place for each packet of a batch, and the buffers of eight trains. How far into
them a burst reaches is chance."""

ALLOCATORS = 1 << 20
"""Bytes by which malloc and Python's own allocator may come to differ from one minute to another.
At tens of thousands of batches a second, a single byte left by each is found within two minutes."""


@dataclass(slots=True)
class Report:
    """What a run came to; sizes are bytes."""

    engine: str
    seconds: float = 0.0
    transfers: int = 0
    tcp_bytes: int = 0
    packets: int = 0
    bytes: int = 0
    super_packets: int = 0
    datagrams: int = 0
    datagram_bytes: int = 0
    trains: int = 0
    resident_start: int = 0
    resident_largest: int = 0
    growth: int = 0
    faults: list[str] = field(default_factory=list)


class Memory:
    """Samples how much memory this process occupies (VmRSS), in a thread, until `stop`."""

    def __init__(self) -> None:
        self.samples = array("Q")  # 8 bytes each: what measures growth should not grow itself
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> Sequence[int]:
        self._stopped.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        page = resource.getpagesize()
        while not self._stopped.wait(SAMPLE_S):
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
            self.samples.append(int(pages) * page)


def judge_memory(report: Report, samples: Sequence[int]) -> None:
    """Flat after the first second, and flatter in the second half than in the first.

    samples: bytes, one for every `SAMPLE_S`.
    """
    warm = samples[round(WARM_S / SAMPLE_S) :]
    half = len(warm) // 2
    if not half:
        report.faults.append("too short a time to say anything about memory")
        return
    report.resident_start = warm[0]
    report.resident_largest = max(warm)
    report.growth = max(warm[half:]) - max(warm[:half])
    if report.resident_largest - warm[0] > FIRST_TOUCHED + ALLOCATORS:
        report.faults.append("memory grew by more than was allocated at the start")
    if report.growth > ALLOCATORS:
        report.faults.append("memory grew in the second half")


class Trains:
    """Trains of numbered datagrams over loopback, as fast as they are read."""

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        make = engine.module("dispatchers.udp").UdpDispatcher
        self.dispatcher = stack.enter_context(make(("127.0.0.1", 0), self._take))
        sender = engine.module("hooks.udp").UdpTrainSender
        self._sender = stack.enter_context(
            sender(("127.0.0.1", 0), self.dispatcher.address, gso=True)
        )
        self.sent = self.taken = self.trains = 0
        self._room = threading.Semaphore(UNREAD_TRAINS)
        self._over = threading.Event()

    def send(self) -> None:
        """Until `stop`."""
        train = bytearray(DATAGRAM * DATAGRAMS)
        while not self._over.is_set():
            if not self._room.acquire(timeout=10):
                raise TimeoutError(f"{self.sent - self.taken} datagrams did not arrive")
            for place in range(DATAGRAMS):
                struct.pack_into("=Q", train, place * DATAGRAM, self.sent + place)
            self._sender.send_train(train, DATAGRAM, self.dispatcher.address)
            self.sent += DATAGRAMS

    def stop(self) -> None:
        self._over.set()

    def _take(self, trains: list[Any]) -> None:
        before = self.taken
        for train in trains:
            count = len(train)
            numbers = [struct.unpack_from("=Q", train[place])[0] for place in (0, -1)]
            if numbers != [self.taken, self.taken + count - 1]:
                raise ValueError(f"datagrams {numbers} where {self.taken} should be next")
            if train.length != count * DATAGRAM:
                raise ValueError(f"{count} datagrams of {train.length} bytes")
            self.taken += count
        self.trains += len(trains)
        for _ in range(self.taken // DATAGRAMS - before // DATAGRAMS):
            self._room.release()


def run(seconds: float, engine: Engine) -> Report:
    """Load everything for about so long; what came of it."""
    report = Report(engine.name)
    with lab.Lab() as net, ExitStack() as stack:
        way = forwarder.Forwarder(engine, net, stack)
        net.veth(way.near, "eth0", way.middle, "in", mtu=MTU)
        way.near.no_offloads("eth0")
        way.near.address("eth0", NEAR)
        far_address = FAR.partition("/")[0]
        way.near.neighbour("eth0", far_address, way.middle.mac("in"))
        far = way.tun(way.far, FAR, MTU)
        reader = way.read_interface("in", way.writer(far))
        out = stack.enter_context(way.middle.socket(socket.AF_PACKET, socket.SOCK_RAW))
        with way.middle:
            out.bind(("in", 0))
        back = forwarder.FrameSender(
            out, way.near.mac("eth0"), way.middle.mac("in"), engine.Limits()
        )
        way.read_tun(far, back)
        with way.middle:
            trains = Trains(engine, stack)
        way.run(trains.dispatcher)
        sending = net.thread(way.middle, trains.send)
        memory = Memory()
        started = time.monotonic()
        try:
            while time.monotonic() - started < seconds:
                size = BYTES_AT_ONCE[engine.name]
                done = transfer.run(
                    net, way.near, way.far, far_address, size, seed=report.transfers
                )
                report.transfers += 1
                report.tcp_bytes += done.received
                if done.digest_received != done.digest_sent:
                    report.faults.append(f"transfer {report.transfers} arrived changed")
        finally:
            samples = memory.stop()
            trains.stop()
            sending.result()
        report.seconds = time.monotonic() - started
        judge_memory(report, samples)
        _await(trains)
        _judge(report, way, reader, trains)
    return report


def _await(trains: Trains) -> None:
    """Until all that was sent has been read, or surely never will be."""
    until = time.monotonic() + 10
    while trains.taken < trains.sent and time.monotonic() < until:
        time.sleep(SAMPLE_S)


def _judge(report: Report, way: forwarder.Forwarder, reader: Any, trains: Trains) -> None:
    stats = reader.stats.engine
    report.packets = stats.packets_in
    report.bytes = stats.bytes_in
    report.super_packets = stats.super_packets
    report.datagrams = trains.taken
    report.datagram_bytes = trains.taken * DATAGRAM
    report.trains = trains.trains
    if not stats.super_packets:
        report.faults.append("no super-packet was made")
    if trains.taken != trains.sent:
        report.faults.append(f"{trains.sent - trains.taken} datagrams did not arrive")
    for namespace in (way.near, way.middle, way.far):
        for name, count in namespace.counters().items():
            if count and name.endswith(("InCsumErrors", "InHdrErrors")):
                report.faults.append(f"{name}: {count}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.soak", description="Full load for a while.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: 600)")
    asked = parser.parse_args(arguments)
    reason = lacks_tun()
    if reason is not None:
        print(f"soak: {reason}", file=sys.stderr)
        return 1
    report = run(asked.seconds, load(ENGINES[0]))
    print(json.dumps({name: getattr(report, name) for name in Report.__dataclass_fields__}))
    for fault in report.faults:
        print(f"soak: {fault}", file=sys.stderr)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
