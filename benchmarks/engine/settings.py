"""What the engine is given: a base, from which the settings differ in one thing at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice, repeat
from typing import Any

from benchmarks.batches import SLOT, batch_of, ignore, ring_of
from benchmarks.timing import Loop
from benchmarks.traffic import Traffic
from netstack_gro import Batch, GroConfig, GroDispatcher

__all__ = ["BASE", "LONE", "MANY", "MANY_LARGE", "ONE_LARGE", "RUNS", "Setting", "settings"]

RING = 16 << 20  # bytes of slab, beyond a core's own caches
PAYLOAD = 1448  # an Ethernet MTU of 1500 less IPv4, TCP and timestamps


@dataclass(frozen=True, slots=True)
class Setting:
    """A batch and how it is dispatched.

    packets, flows, payload, version, udp: as in `Traffic`. verify: checksums are verified, not
    trusted. listed: a list of bytes, not a `Batch` over a slab. ring: batch after batch of a ring
    of RING bytes, so that the caches miss, not one batch again and again.
    """

    packets: int = 64
    flows: int = 1
    verify: bool = False
    payload: int = PAYLOAD
    version: int = 4
    udp: bool = False
    listed: bool = False
    ring: bool = False

    @property
    def name(self) -> str:
        """In words."""
        words = [
            "1 flow" if self.flows == 1 else f"{self.flows:,} flows",
            f"batch {self.packets:,}",
            "verified" if self.verify else "trusted",
        ]
        if self.udp:
            words.append("UDP")
        if self.version == 6:
            words.append("IPv6")
        if self.payload != PAYLOAD:
            words.append(f"payload {self.payload}")
        if self.listed:
            words.append("list of bytes")
        if self.ring:
            words.append("16 MiB ring")
        return ", ".join(words)

    @property
    def batches(self) -> int:
        """How many are dispatched before the first one is again."""
        return RING // (SLOT * self.packets) if self.ring else 1

    def prepare(self) -> Loop:
        """What dispatches so many batches into a hook that does nothing."""
        config = GroConfig(received_checksums="verify" if self.verify else "trust", udp=self.udp)
        dispatch = GroDispatcher(ignore, config).dispatch
        inputs = self.inputs()
        if len(inputs) == 1:
            (only,) = inputs

            def again(count: int) -> None:
                for each in repeat(only, count):
                    dispatch(each)

            return again
        endless = cycle(inputs)

        def around(count: int) -> None:
            for each in islice(endless, count):
                dispatch(each)

        return around

    def inputs(self) -> list[Any]:
        """What is dispatched in turn: each a whole batch."""
        packets = _packets(
            Traffic(self.name, self.packets, self.flows, self.payload, self.version, self.udp)
        )
        if self.listed:
            # Copies, as every packet has memory of its own.
            return [[bytes(bytearray(each)) for each in packets] for _ in range(self.batches)]
        return _ring(packets) if self.ring else [batch_of(packets)]


@cache
def _packets(traffic: Traffic) -> tuple[bytes, ...]:
    return tuple(traffic.build())


@cache
def _ring(packets: tuple[bytes, ...]) -> list[Batch]:
    return ring_of(packets, RING)


BASE = Setting()
LONE = Setting(packets=1)
MANY = Setting(flows=64)
MANY_LARGE = Setting(packets=1024, flows=1024)
ONE_LARGE = Setting(packets=1024)
RUNS = Setting(packets=1024, flows=64)

BATCHES = (1, 2, 8, 32, 64, 128, 1024)
FLOWS = {64: (1, 8, 64), 1024: (1, 8, 64, 1024)}
PROTOCOLS: tuple[dict[str, Any], ...] = ({"version": 6}, {"udp": True}, {"udp": True, "version": 6})
INPUTS = ({"listed": True}, {"ring": True}, {"listed": True, "ring": True})


def settings() -> dict[str, list[Setting]]:
    """By what varies in them. One that belongs to several groups is in each."""
    return {group: list(dict.fromkeys(found)) for group, found in _groups()}


def _groups() -> Iterator[tuple[str, list[Setting]]]:
    bases = (BASE, replace(BASE, verify=True))
    yield "batch", [replace(base, packets=count) for base in bases for count in BATCHES]
    flows = [
        replace(base, packets=packets, flows=count)
        for base in bases
        for packets, counts in FLOWS.items()
        for count in counts
    ]
    yield "flows, in equal runs", flows
    yield "protocol", [replace(base, **each) for base in bases for each in ({}, *PROTOCOLS)]
    small: list[dict[str, Any]] = [{}, {"payload": 100}, {"payload": 100, "udp": True}]
    yield "payload", [replace(base, **each) for base in bases for each in small]
    found = [replace(base, **each) for base in (*bases, MANY) for each in ({}, *INPUTS)]
    yield "input and memory", [*found, LONE, replace(LONE, listed=True)]
