"""A VPN's receive path: decrypted packets are written to a TUN, and leave through a veth."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.batches import batch_of
from benchmarks.building import Missing
from benchmarks.io import wireguard
from benchmarks.io.results import Results, WrongResultError
from benchmarks.io.sender import stream
from benchmarks.peers.programs import PeerError, Program
from benchmarks.traffic import write
from netstack_gro import GroConfig, GroDispatcher
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.hooks.tun import TunWriter
from tests import lab

__all__ = ["measure"]

PACKET = 1428  # bytes of IP
HEADERS = 52  # IPv4, TCP and timestamps
PAYLOAD = PACKET - HEADERS
BATCHES = (64, 128)
EGRESSES = {"egress keeps GSO": True, "egress cuts": False}
TARGETS = {"egress keeps GSO": 10.0, "egress cuts": 3.5}
SECONDS = 0.03  # of writing in a round
WALL, CPU = "ns/packet, wall", "ns/packet, CPU"
MERGED, PLAIN = "netstack-gro, merging", "netstack-gro, not merging"
WRITES, WIREGUARD = "os.write loop", "wireguard-go"
NOBODY = bytes.fromhex("020000000001")  # a station beyond the veth
BUILD = Path("build/peers")

SETUP = (
    f"A VPN's receive path. TCP segments of one flow, {PACKET:,} bytes of IP each with right "
    "checksums, as decrypted: in memory, in batches of 64 and of 128. Each engine writes them to a "
    "TUN of its own, in one namespace, which forwards them to a veth of MTU 1500. There a station "
    "is addressed that is not the veth's other end, which drops them. Either the veth takes "
    "super-packets (TSO), or it does not, and the kernel cuts them; it leaves checksums to the "
    "veth in either case."
)
TIMED = (
    "Timed is the writer, in which the kernel does all that follows as well: by the clock, and its "
    "thread's CPU time. Checksums are verified where packets are merged."
)


@dataclass(slots=True)
class _Writer:
    """An engine and its TUN.

    interface: the TUN's name. measure: writes for so many seconds, and gives the nanoseconds of a
    packet by the clock and of CPU time.
    """

    engine: str
    interface: str
    measure: Callable[[float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Counted:
    """What went in at a TUN and came out at the far end, from one time to another.

    written: frames. segments: of TCP in them, by their bytes. arrived: frames. dropped: anywhere.
    """

    written: int
    segments: int
    arrived: int
    dropped: int


class _Egress:
    """A namespace that forwards what TUNs are given to a veth that keeps super-packets, or not."""

    def __init__(self, net: lab.Lab, *, keeps: bool) -> None:
        self.middle, self.far = net.namespace(ipv6=False), net.namespace(ipv6=False)
        self.keeps = keeps
        net.veth(self.middle, "eth0", self.far, "eth0", mtu=1500)
        for key in ("all", "default"):
            self.middle.sysctl(f"ipv4/conf/{key}/rp_filter", 0)
        self.middle.sysctl("ipv4/ip_forward", 1)
        self.middle.offloads("eth0", tso=keeps, uso=keeps, gso=keeps)
        self.middle.address("eth0", "10.8.0.1/24")
        self.middle.route("198.51.100.0/24", via="10.8.0.2")
        self.middle.neighbour("eth0", "10.8.0.2", NOBODY)
        self._tuns = 0

    def ready(self, interface: str) -> None:
        """Set a TUN up."""
        self._tuns += 1
        self.middle.mtu(interface, PACKET)
        self.middle.up(interface)
        self.middle.address(interface, f"10.9.{self._tuns}.1/32")

    def device(self, interface: str, stack: ExitStack, **options: Any) -> TunDevice:
        """A TUN, up."""
        with self.middle:
            device = stack.enter_context(TunDevice(interface, **options))
        self.ready(interface)
        return device

    def traffic(self, interface: str) -> dict[str, int]:
        """Counters of a TUN, and what arrives behind the veth, so far."""
        tun, out = self.middle.traffic(interface), self.middle.traffic("eth0")
        end = self.far.traffic("eth0")
        drops = ("rx_dropped", "rx_errors", "tx_dropped", "tx_errors")
        return {
            "written": tun["rx_packets"],
            "bytes": tun["rx_bytes"],
            "arrived": end["rx_packets"],
            "dropped": sum(device[name] for device in (tun, out, end) for name in drops),
        }

    def counted(self, interface: str, before: dict[str, int]) -> _Counted:
        """Since ``before``. WrongResultError where something was lost, or not cut as it should."""
        now = self.traffic(interface)
        written, octets, arrived, dropped = (now[name] - before[name] for name in now)
        segments = (octets - written * HEADERS) // PAYLOAD
        if dropped or not written or arrived != (written if self.keeps else segments):
            raise WrongResultError(
                f"{interface}: of {written} frames with {segments} segments, {arrived} frames "
                f"arrived, and {dropped} were dropped"
            )
        return _Counted(written, segments, arrived, dropped)


def _writers(egress: _Egress, stack: ExitStack, packets: list[bytes]) -> list[_Writer]:
    """Those in Python, for one batch."""
    size = len(packets)
    batch = batch_of(packets)
    found = []
    for engine, tcp in ((MERGED, True), (PLAIN, False)):
        interface = f"{'merge' if tcp else 'plain'}{size}"
        writer = TunWriter(egress.device(interface, stack))
        config = GroConfig(tcp=tcp, capacity=size, delivered_checksums="partial")
        gro = stack.enter_context(GroDispatcher(writer, config))
        once = partial(gro.dispatch, batch)
        found.append(_Writer(engine, interface, partial(_timed, once, size)))
    device = egress.device(f"write{size}", stack, offloads=TunOffloads.none())
    header = bytes(device.vnet_size)
    frames = [header + packet for packet in packets]
    descriptor = device.fileno()

    def write_all() -> None:
        for frame in frames:
            os.write(descriptor, frame)

    found.append(_Writer(WRITES, f"write{size}", partial(_timed, write_all, size)))
    return found


def _timed(once: Callable[[], object], packets: int, seconds: float) -> tuple[float, float]:
    """Nanoseconds a packet by the clock and of CPU time; ``once`` writes that many packets."""
    batches = 0
    cpu = time.thread_time_ns()
    now = start = time.perf_counter_ns()
    until = start + seconds * 1e9
    while now < until:
        once()
        batches += 1
        now = time.perf_counter_ns()
    cpu = time.thread_time_ns() - cpu
    return (now - start) / batches / packets, cpu / batches / packets


def _wireguard(
    egress: _Egress, stack: ExitStack, command: list[str], path: Path, size: int
) -> _Writer:
    """wireguard-go, running, with the batch in a file. Raises PeerError where it does not run."""
    interface = f"wg{size}"
    with egress.middle:
        program = stack.enter_context(Program(WIREGUARD, [*command, interface, str(PACKET)]))
    program.ask(path, "create", 0.001)
    egress.ready(interface)

    def measure(seconds: float) -> tuple[float, float]:
        wall, cpu = (program.ask(path, mode, seconds) for mode in ("wall", "cpu"))
        return wall.ns, cpu.ns

    return _Writer(WIREGUARD, interface, measure)


def _add_wireguard(
    writers: dict[tuple[str, int], list[_Writer]],
    egresses: dict[str, _Egress],
    stack: ExitStack,
    batches: dict[int, list[bytes]],
) -> str:
    """Add it to the writers; or the reason why it is left out."""
    try:
        command = wireguard.build(BUILD)
        found = {}
        for size, packets in batches.items():
            path = BUILD.resolve() / f"tunnel-{size}.bin"
            write(path, packets)
            for name, egress in egresses.items():
                found[name, size] = _wireguard(egress, stack, command, path, size)
    except (Missing, PeerError) as error:
        return str(error)
    for key, writer in found.items():
        writers[key].append(writer)
    return ""


def measure(rounds: int, *, quick: bool) -> Results:
    """Each egress, batch and engine in turn."""
    results = Results([SETUP, TIMED])
    seconds = SECONDS / 6 if quick else SECONDS
    batches = {size: stream(PAYLOAD, size).build() for size in BATCHES}
    with lab.Lab() as net, ExitStack() as stack:
        egresses = {name: _Egress(net, keeps=keeps) for name, keeps in EGRESSES.items()}
        writers = {
            (name, size): _writers(egress, stack, packets)
            for name, egress in egresses.items()
            for size, packets in batches.items()
        }
        missing = _add_wireguard(writers, egresses, stack, batches)
        if missing:
            results.setup.append(f"skipped: {WIREGUARD}: {missing}")
        for _ in range(rounds):
            for (name, size), found in writers.items():
                for writer in found:
                    before = egresses[name].traffic(writer.interface)
                    wall, cpu = writer.measure(seconds)
                    counted = egresses[name].counted(writer.interface, before)
                    case = _case(name, size)
                    results.add(case, writer.engine, WALL, wall, counted.segments)
                    results.add(case, writer.engine, CPU, cpu, counted.segments)
                    results.count(
                        case,
                        writer.engine,
                        segments_a_write=round(counted.segments / counted.written, 1),
                        segments_a_frame=round(counted.segments / counted.arrived, 1),
                        dropped=counted.dropped,
                    )
    for name in EGRESSES:
        for size in BATCHES:
            for unit, target in ((WALL, None), (CPU, TARGETS[name])):
                results.times(_case(name, size), MERGED, PLAIN, unit, target)
                results.times(_case(name, size), MERGED, WRITES, unit)
                results.times(_case(name, size), MERGED, WIREGUARD, unit)
    return results


def _case(egress: str, size: int) -> str:
    return f"TUN, {egress}, batch {size}"
