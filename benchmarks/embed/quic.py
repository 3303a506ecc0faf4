"""aioquic: a download with its own endpoints, and with endpoints and connections of trains."""

import asyncio
import hashlib
import subprocess
import time

from benchmarks.io.results import Ratio, Results, WrongResultError
from tests import lab, quic
from tests.requirements import lacks_root

__all__ = ["lacks", "measure"]

MTUS = (1280, 1499, 1500)
SIZE, QUICK_SIZE = 256 << 20, 2 << 20
NEAR, FAR = "192.0.2.1", "192.0.2.2"
WALL, CPU = "ns/byte, wall", "ns/byte, client's CPU"
CLIENT, SERVER = "us/datagram, client's CPU", "us/datagram, server's CPU"
STOCK, TRAINS = quic.STOCK, quic.TRAINS
# What is compared follows each other: the two at one MTU, and ours at 1499 and at 1500.
TURNS = (
    (1280, STOCK),
    (1280, TRAINS),
    (1499, STOCK),
    (1499, TRAINS),
    (1500, TRAINS),
    (1500, STOCK),
)
CPUCLOCK_SCHED = 2  # include/linux/posix-timers_types.h: the low bits of a process's CPU clock
LEAST = 1.18  # quinn's gain
WITHIN = 0.05

SETUP = (
    f"aioquic downloads {SIZE >> 20} MiB over one stream, from a server in a namespace of its own, "
    "over a veth of each MTU, which datagrams fill. Client and server have a process each, and "
    "both use aioquic's own endpoints (asyncio's), or both ours: UDP_GRO and UDP_SEGMENT, and "
    "connections that process events and transmit once a train. Timed is the download, by the "
    "clock, and what each of the two processes took of a processor. Each is held to its SHA-256."
)


def lacks() -> str | None:
    """Why this cannot be measured here."""
    try:
        import aioquic  # noqa: F401
    except ImportError:
        return "aioquic is not installed"
    return lacks_root()


def measure(rounds: int, *, quick: bool) -> Results:
    """Downloads by the two in turn, at each MTU."""
    results = Results([SETUP])
    size = QUICK_SIZE if quick else SIZE
    whole = hashlib.sha256()
    for _ in range(size // len(quic.BLOCK)):
        whole.update(quic.BLOCK)
    for _ in range(rounds):
        for mtu, endpoint in TURNS:
            done, count, served = _download(endpoint, mtu, size)
            if (done.size, done.digest, done.bad) != (size, whole.digest(), 0):
                raise WrongResultError(f"{endpoint}: {done.size} of {size} bytes came whole")
            results.add(_case(mtu), endpoint, WALL, done.seconds / size * 1e9, size)
            results.add(_case(mtu), endpoint, CPU, done.cpu / size * 1e9, size)
            results.add(_case(mtu), endpoint, CLIENT, done.cpu / count * 1e6, count)
            results.add(_case(mtu), endpoint, SERVER, served / count * 1e6, count)
            if done.trains:
                per_train = done.datagrams / done.trains
                results.count(_case(mtu), endpoint, datagrams_a_train=round(per_train, 1))
    for mtu in MTUS:
        results.times(_case(mtu), TRAINS, STOCK, WALL, LEAST if mtu == 1500 else None)
        results.times(_case(mtu), TRAINS, STOCK, CLIENT)
        results.times(_case(mtu), TRAINS, STOCK, SERVER)
    at, beside = (results.rounds(_case(mtu), TRAINS, WALL) for mtu in (1500, 1499))
    ratios = [one / other for one, other in zip(at, beside, strict=True)]
    case = f"{_case(1499)}, {WALL}"
    results.ratios.append(Ratio(case, TRAINS, "MTU 1500", "times", ratios, 1 - WITHIN, 1 + WITHIN))
    return results


def _case(mtu: int) -> str:
    return f"download, MTU {mtu}"


def _download(endpoint: str, mtu: int, size: int) -> tuple[quic.Download, int, float]:
    """The download, how many datagrams the client got, and the server's seconds of CPU for it."""
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "eth0", there, "eth0", mtu=mtu)
        here.address("eth0", f"{NEAR}/24")
        there.address("eth0", f"{FAR}/24")
        child = net.start(there, "tests.quic", endpoint, FAR, mtu, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        before = _cpu(child.pid)
        with here:
            done = asyncio.run(quic.download(endpoint, FAR, mtu, size))
        served = _cpu(child.pid) - before
        return done, done.datagrams or here.counters()["UdpInDatagrams"], served


def _cpu(process: int) -> float:
    """Seconds of CPU that a process has taken (clock_getcpuclockid(3))."""
    return time.clock_gettime(~process << 3 | CPUCLOCK_SCHED)
