"""Captures made in memory, for what stands behind the reader: dispatcher, replay, verifier."""

import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from netstack_gro.capture import PcapngWriter
from netstack_gro.config import GroConfig
from tests.builders import ACK, ethernet, tcp4
from tests.engines import Engine

RAW, ETHERNET = 101, 1


class Shot(NamedTuple):
    """One record to be written."""

    data: bytes
    timestamp_ns: int = 0
    interface: int = 0
    wire_length: int | None = None


def capture(shots: Iterable[Shot | bytes], link_types: Sequence[int] = (RAW,)) -> bytes:
    """A pcapng file with an interface (``if0``, ``if1``, ...) for each link type."""
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    for number, link_type in enumerate(link_types):
        writer.add_interface(link_type, name=f"if{number}")
    for shot in shots:
        data, time, interface, wire_length = shot if isinstance(shot, Shot) else Shot(shot)
        writer.write(data, time, interface, wire_length=wire_length)
    return stream.getvalue()


def segments(count: int, *, size: int = 100, **fields: Any) -> list[bytes]:
    """Consecutive TCP segments over IPv4, whose IDs count up and whose payloads differ."""
    first = fields.pop("seq", 1)
    ident = fields.pop("ident", 1)
    return [
        tcp4(
            bytes([number & 0xFF]) * size,
            seq=(first + number * size) % 2**32,
            ident=(ident + number) % 2**16,
            **{"flags": ACK, **fields},
        )
        for number in range(count)
    ]


def frames(packets: Iterable[bytes]) -> list[bytes]:
    """The packets behind Ethernet headers."""
    return [ethernet(packet) for packet in packets]


def payloads(packets: Iterable[Any]) -> list[int]:
    """Inputs in each delivered packet."""
    return [packet.packets for packet in packets]


class Collector:
    """A hook that keeps what it gets, flush by flush."""

    def __init__(self) -> None:
        self.flushes: list[list[Any]] = []

    def __call__(self, packets: list[Any]) -> None:
        self.flushes.append([packet.detach() for packet in packets])

    @property
    def packets(self) -> list[Any]:
        return [packet for flush in self.flushes for packet in flush]

    @property
    def shapes(self) -> list[tuple[int, list[int]]]:
        """Of each flush, its interface and the inputs in each packet."""
        return [(flush[0].interface, payloads(flush)) for flush in self.flushes]


def run(engine: Engine, content: bytes, **options: Any) -> tuple[Collector, Any]:
    """Dispatch a whole capture; what the hook got, and the stats."""
    collector = Collector()
    config = options.pop("config", GroConfig(udp=True))
    make = engine.module("dispatchers").CaptureDispatcher
    with make(io.BytesIO(content), collector, config, **options) as dispatcher:
        dispatcher.run()
        return collector, dispatcher.stats
