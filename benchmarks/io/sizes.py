"""UDP download at several MTUs: does a datagram cost what its bytes let one expect?"""

from contextlib import ExitStack

from benchmarks.io.datagrams import UNIT, checked, timed
from benchmarks.io.receivers import KINDS, Receiver, bound
from benchmarks.io.results import Ratio, Results
from benchmarks.io.sender import Sender
from tests import lab

__all__ = ["MTUS", "measure", "predicted", "train_length"]

MTUS = (1280, 1400, 1499, 1500, 4000, 9000)
BASE = 1500
HEADERS = 28  # IPv4 and UDP
MOST = 65507  # bytes of payload in a train: 65,535 less the headers
ROUND = 2_000_000  # bytes, about, at every MTU: as much as the caches hold of it at any other
WITHIN = 0.1

OURS, TRAINS = "netstack-gro, UDP_GRO", "netstack-gro, UDP_GRO, trains only"

SETUP = (
    "UDP download by MTU. Over a veth of each MTU, datagrams that fill it, sent by a process of "
    "its own in trains of as many as {most:,} bytes hold; {volume:g} MB a round, which wait in the "
    "socket's buffer. Timed is the receiver's CPU time for a datagram, as an object. Of rounds "
    "before, each datagram was compared with what was sent, the last of a train being shorter."
)
PREDICTION = (
    f"Prediction from MTU {BASE}, in the same round: time(MTU) = r * payload(MTU) / "
    f"payload({BASE}) + o, where r is what it takes to read the trains ('trains only'), which goes "
    f"with the bytes, and o = time({BASE}) - r what it takes to make the objects and go through "
    "them, which goes with their number. 'Bytes alone' is "
    f"time({BASE}) * payload(MTU) / payload({BASE}), which expects too much of large datagrams."
)


def train_length(size: int) -> int:
    """Datagrams of ``size`` bytes in the longest train."""
    return MOST // size


def predicted(read: float, whole: float, size: int, base: int) -> float:
    """The time of a datagram of ``size`` bytes, by those of ``base`` bytes.

    read: their time without making objects. whole: with it.
    """
    return read * size / base + max(0.0, whole - read)


def measure(rounds: int, *, quick: bool) -> Results:
    """Each MTU in turn."""
    volume = ROUND // 8 if quick else ROUND
    results = Results([SETUP.format(most=MOST, volume=volume / 1e6), PREDICTION])
    with lab.Lab() as net, ExitStack() as stack:
        far, near = net.namespace(ipv6=False), net.namespace(ipv6=False)
        sender = stack.enter_context(Sender(net, far))
        receivers: list[tuple[int, str, Receiver]] = []
        for number, mtu in enumerate(MTUS):
            link, address = f"mtu{mtu}", f"10.0.{number}.2"
            net.veth(far, link, near, link, mtu=mtu)
            far.address(link, f"10.0.{number}.1/24")
            near.address(link, f"{address}/24")
            size = mtu - HEADERS
            for kind in ("UDP_GRO", "trains") if mtu == BASE else ("UDP_GRO",):
                opened = stack.enter_context(bound(near, address))
                receiver = stack.enter_context(KINDS[kind](opened, size))
                receivers.append((mtu, address, receiver))
                checked(sender, receiver, address, size, train_length(size), 3)
        for _ in range(rounds):
            for mtu, address, receiver in receivers:
                size = mtu - HEADERS
                segments = train_length(size)
                sent = sender.datagrams(
                    address,
                    receiver.port,
                    size=size,
                    segments=segments,
                    trains=volume // (segments * size),
                    last=size,
                )
                results.add(_case(mtu), receiver.name, UNIT, timed(receiver, sent), sent)
        for mtu, _address, receiver in receivers:
            counters = {"dropped": receiver.dropped, "wrong": 0} | receiver.counters()
            results.count(_case(mtu), receiver.name, **counters)
    _compare(results)
    return results


def _case(mtu: int) -> str:
    return f"UDP download, MTU {mtu}"


def _compare(results: Results) -> None:
    base = BASE - HEADERS
    whole = results.rounds(_case(BASE), OURS, UNIT)
    read = results.rounds(_case(BASE), TRAINS, UNIT)
    for mtu in MTUS:
        if mtu == BASE:
            continue
        size = mtu - HEADERS
        found = results.rounds(_case(mtu), OURS, UNIT)
        ratios = [
            time / predicted(r, w, size, base)
            for time, r, w in zip(found, read, whole, strict=True)
        ]
        bytes_alone = [time / (w * size / base) for time, w in zip(found, whole, strict=True)]
        results.ratios.append(
            Ratio(_case(mtu), OURS, "prediction", "ratio", ratios, 1 - WITHIN, 1 + WITHIN)
        )
        results.ratios.append(
            Ratio(_case(mtu), OURS, "bytes alone", "ratio", bytes_alone, None, 1 + WITHIN)
        )
