"""What a capture holds, counted from its frames without the engine.

The counts go into `manifest.json`; the tests count again with dpkt. Each recording also checks
them against what its file promises to show.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pcaps.recorder.dissect import ECN_CE, Layers, dissect

__all__ = ["BrokenPromiseError", "Promise", "at_least", "at_most", "check", "count", "exactly"]

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, AE = (1 << bit for bit in range(9))
FLAGS = {"syn": SYN, "fin": FIN, "rst": RST, "psh": PSH, "urg": URG, "ae": AE}


class BrokenPromiseError(Exception):
    """A recording does not hold what its file is said to show."""


@dataclass(frozen=True, slots=True)
class Promise:
    fact: str
    least: int
    most: int | None

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.fact} >= {self.least}"
        return f"{self.least} <= {self.fact} <= {self.most}"


def at_least(fact: str, least: int) -> Promise:
    return Promise(fact, least, None)


def at_most(fact: str, most: int) -> Promise:
    return Promise(fact, 0, most)


def exactly(fact: str, value: int) -> Promise:
    return Promise(fact, value, value)


def check(facts: Mapping[str, int], promises: Iterable[Promise]) -> None:
    """Raises `BrokenPromiseError`, which names each promise that does not hold."""
    broken = [
        f"{promise}, found {facts.get(promise.fact, 0)}"
        for promise in promises
        if facts.get(promise.fact, 0) < promise.least
        or (promise.most is not None and facts.get(promise.fact, 0) > promise.most)
    ]
    if broken:
        raise BrokenPromiseError("; ".join(broken))


class _Stream:
    """One direction of a TCP connection or of a UDP exchange, seen from one interface."""

    def __init__(self) -> None:
        self.begins: set[int] = set()
        self.end: int | None = None
        self.run_size = self.run_length = 0


def count(frames: Iterable[tuple[int, int, bytes]]) -> dict[str, int]:
    """Facts of a capture, given as (interface, link type, frame). Those that are 0 are left out.

    `late` counts data segments that begin before the highest byte seen of their stream, for the
    first time; `repeated` those whose first byte was seen as a first byte before. `longest_run`
    is the highest number of data packets of one stream that followed each other without a gap,
    all of one size and without PSH but the last, which may be shorter and have it.
    """
    facts: Counter[str] = Counter()
    streams: dict[tuple[int, tuple[bytes, int, int]], _Stream] = {}
    connections = set()
    for interface, link_type, frame in frames:
        layers = dissect(link_type, frame)
        facts["packets"] += 1
        facts["bytes"] += len(frame)
        facts["largest_ip"] = max(facts["largest_ip"], layers.ip_length)
        facts[layers.protocol] += 1
        facts["tagged"] += len(layers.tags) == 1
        facts["double_tagged"] += len(layers.tags) == 2
        if layers.version:
            facts[f"ipv{layers.version}"] += 1
            facts["ect"] += layers.ecn in (1, 2)
            facts["ce"] += layers.ecn == ECN_CE
            facts["ip_options"] += layers.ip_options
            facts[f"checksum_{layers.checksum}"] += layers.checksum != "none"
        if layers.protocol in ("tcp", "udp"):
            stream = streams.setdefault((interface, layers.flow), _Stream())
            facts["longest_run"] = max(facts["longest_run"], _extend_run(stream, layers))
            addresses, source, destination = layers.flow
            connections.add((layers.protocol, addresses, source, destination))
        if layers.protocol == "tcp":
            _count_tcp(facts, stream, layers)
        elif layers.protocol == "udp":
            facts["udp_without_checksum"] += layers.checksum == "none"
            facts["udp_empty"] += not layers.payload_length
    facts["streams"] = len(connections)
    return {name: number for name, number in sorted(facts.items()) if number}


def _count_tcp(facts: Counter[str], stream: _Stream, layers: Layers) -> None:
    for name, bit in FLAGS.items():
        facts[name] += bool(layers.flags & bit)
    facts["syn_ack"] += layers.flags & (SYN | ACK) == SYN | ACK
    if not layers.flags & SYN:
        facts["ece"] += bool(layers.flags & ECE)
        facts["cwr"] += bool(layers.flags & CWR)
    facts["tcp_timestamps"] += layers.timestamps
    if not layers.payload_length:
        facts["pure_ack"] += not layers.flags & (SYN | FIN | RST)
        return
    facts["data"] += 1
    begin = layers.sequence
    if begin in stream.begins:
        facts["repeated"] += 1
    elif stream.end is not None and _before(begin, stream.end):
        facts["late"] += 1
    stream.begins.add(begin)
    end = (begin + layers.payload_length) & 0xFFFFFFFF
    if stream.end is None or _before(stream.end, end):
        stream.end = end


def _extend_run(stream: _Stream, layers: Layers) -> int:
    """The number of packets in the stream's run with this one."""
    size = layers.payload_length
    extends = (
        0 < size <= stream.run_size
        and (layers.protocol == "udp" or layers.sequence == stream.end)
        and not layers.flags & (SYN | RST | URG)
    )
    stream.run_length = stream.run_length + 1 if extends else int(size > 0)
    length = stream.run_length
    if not extends:
        stream.run_size = size
    if size < stream.run_size or layers.flags & PSH:
        stream.run_size = 0
    return length


def _before(left: int, right: int) -> bool:
    """Sequence space, RFC 9293, section 3.4."""
    return 0 < (right - left) & 0xFFFFFFFF < 1 << 31
