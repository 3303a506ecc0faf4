"""UDP download: what a datagram costs its receiver, by four ways of receiving."""

import time
from contextlib import ExitStack

from benchmarks.io.receivers import KINDS, Check, Receiver, bound, drain
from benchmarks.io.results import Results
from benchmarks.io.sender import Sender
from tests import lab

__all__ = ["SIZE", "UNIT", "checked", "measure", "timed"]

UNIT = "ns/datagram"
SIZE = 1200  # what QUIC sends until it knows more (RFC 9000 section 14)
SEGMENTS = 50  # in a train of 60,000 bytes
TRAINS = 80
FAR, NEAR, LOOPBACK = "10.0.0.1", "10.0.0.2", "127.0.0.1"

RECVFROM, ASYNCIO = 6, 12
"""How many times as long these take at least."""

SETUP = (
    "UDP download. Datagrams of {size:,} bytes, {count:,} a round, sent by a process of its own in "
    "trains of {segments} (UDP_SEGMENT), over a veth of MTU 1500 and over loopback. They wait in "
    "the socket's buffer before it is read. Timed is the receiver's CPU time (that of its thread, "
    "with the kernel's copying) until its consumer has had each datagram as an object."
)


def timed(receiver: Receiver, expected: int) -> float:
    """CPU nanoseconds a datagram."""
    start = time.thread_time_ns()
    drain(receiver, expected)
    return (time.thread_time_ns() - start) / expected


def checked(
    sender: Sender, receiver: Receiver, address: str, size: int, segments: int, trains: int
) -> None:
    """A round with short last datagrams in which each is compared with what was sent."""
    last = max(8, size // 3)
    sent = sender.datagrams(
        address, receiver.port, size=size, segments=segments, trains=trains, last=last
    )
    receiver.check = Check(size, segments, last)
    drain(receiver, sent)
    receiver.check = None


def measure(rounds: int, *, quick: bool) -> Results:
    """Each way in turn, over each link in turn."""
    trains = TRAINS // 8 if quick else TRAINS
    setup = SETUP.format(size=SIZE, count=trains * SEGMENTS, segments=SEGMENTS)
    results = Results([setup])
    with lab.Lab() as net, ExitStack() as stack:
        far, near = net.namespace(ipv6=False), net.namespace(ipv6=False)
        net.veth(far, "eth0", near, "eth0", mtu=1500)
        far.address("eth0", f"{FAR}/24")
        near.address("eth0", f"{NEAR}/24")
        senders = {
            "veth": (stack.enter_context(Sender(net, far)), NEAR),
            "loopback": (stack.enter_context(Sender(net, near)), LOOPBACK),
        }
        receivers: dict[str, list[Receiver]] = {}
        for link, (sender, address) in senders.items():
            for kind in ("UDP_GRO", "recvmmsg", "recvfrom", "asyncio"):
                opened = stack.enter_context(bound(near, address))
                receiver = stack.enter_context(KINDS[kind](opened, SIZE))
                receivers.setdefault(link, []).append(receiver)
                checked(sender, receiver, address, SIZE, SEGMENTS, 3)
        for _ in range(rounds):
            for link, (sender, address) in senders.items():
                for receiver in receivers[link]:
                    sent = sender.datagrams(
                        address,
                        receiver.port,
                        size=SIZE,
                        segments=SEGMENTS,
                        trains=trains,
                        last=SIZE,
                    )
                    case = f"UDP download, {link}"
                    results.add(case, receiver.name, UNIT, timed(receiver, sent), sent)
        for link, found in receivers.items():
            case = f"UDP download, {link}"
            for receiver in found:
                counters = {"dropped": receiver.dropped} | receiver.counters()
                results.count(case, receiver.name, **counters)
            ours, plain, loop, asynchronous = (receiver.name for receiver in found)
            results.times(case, ours, loop, UNIT, RECVFROM)
            results.times(case, ours, asynchronous, UNIT, ASYNCIO)
            results.times(case, ours, plain, UNIT)
    return results
