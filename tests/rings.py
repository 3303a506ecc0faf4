"""Packet rings on a cable, and hooks that note or keep what they are given."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.virtio import VirtioHeader
from tests.cables import Cable
from tests.engines import Engine

PATIENCE_S = 10.0
AT_LEISURE_MS = 200
"""A block timer within which everything that a test sends at once is in one block."""


@dataclass(frozen=True)
class Seen:
    """What is known of a packet of its own; ``virtio`` only of what has something to be done."""

    data: bytes
    wire_length: int
    timestamp_ns: int
    vlan: int | None
    vlan_tpid: int
    checksum: ChecksumState
    virtio: VirtioHeader

    @classmethod
    def of(cls, packet: Any) -> "Seen":
        return cls(
            bytes(packet),
            packet.wire_length,
            packet.timestamp_ns,
            packet.vlan,
            packet.vlan_tpid,
            ChecksumState(packet.checksum),
            packet.virtio_header() if packet.gso_type else VirtioHeader(),
        )


class Hook:
    """Notes each flush, and then does what the test wants."""

    def __init__(self, after: Callable[[list[Any]], object] = len) -> None:
        self.flushes: list[list[Seen]] = []
        self._after = after

    def __call__(self, packets: list[Any]) -> None:
        self.flushes.append([Seen.of(packet) for packet in packets])
        self._after(packets)

    @property
    def data(self) -> list[bytes]:
        return [seen.data for flush in self.flushes for seen in flush]


def ring(engine: Engine, cable: Cable, hook: Any, *, merge: bool = False, **options: Any) -> Any:
    """A ring that reads the near end of a cable, each packet for itself unless it may merge."""
    options = {"blocks": 4, "timeout_ms": 1} | options
    capacity = options.pop("capacity", 1024)
    config = GroConfig(
        capacity=capacity,
        delivered_checksums="partial",
        max_slabs=options.pop("max_slabs", 8),
    )
    with cable.near:
        made = engine.module("dispatchers.ring").PacketRingDispatcher(
            "eth0", hook, config, **options
        )
    made.gro.enabled = merge
    return made


def drain(dispatcher: Any, packets: int) -> int:
    """Dispatch until so many packets have come."""
    count = 0
    until = time.monotonic() + PATIENCE_S
    while count < packets:
        count += dispatcher.dispatch_once(timeout=1)
        assert time.monotonic() < until, f"{packets - count} of {packets} never came"
    return count


def numbered(cable: Cable, numbers: range) -> list[bytes]:
    return [cable.frame(b"number %d" % number) for number in numbers]


def send(cable: Cable, frames: list[bytes]) -> None:
    for frame in frames:
        cable.sender.send(frame)


class Keeper:
    """Keeps views of packets, and what they showed."""

    def __init__(self) -> None:
        self.kept: list[tuple[memoryview, bytes]] = []
        self.keeping = True

    def __call__(self, packets: list[Any]) -> None:
        for packet in packets if self.keeping else ():
            for view in packet.buffers():
                self.kept.append((view, bytes(view)))

    def assert_unchanged(self) -> None:
        assert all(view == data for view, data in self.kept)
