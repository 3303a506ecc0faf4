"""What a live dispatcher did within a time: hooks that count, and the samples they give.

A meter is the hook of one dispatcher. It looks at numbers only and keeps nothing; `sample` says
what came since the last sample, `total` what came since the beginning.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from netstack_gro.dispatchers.base import DispatcherStats
from netstack_gro.dispatchers.trains import Train
from netstack_gro.dispatchers.udp import UdpStats
from netstack_gro.packet import Packet
from netstack_gro.verdicts import Verdict

__all__ = ["Meter", "PacketMeter", "PacketSample", "Sample", "TrainMeter", "TrainSample"]

SIZES = 8
"""Sizes of datagrams that a sample names; there may be thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What came within a time.

    source, dispatcher: the device's name, and "recvmmsg", "ring", "tun" or "udp".
    summary: whether it is of the whole run. elapsed: seconds since the beginning, at its end.
    interval: seconds that it is of.
    dropped_by_kernel: what the kernel lost before it was read. losses: what else went wrong, by
    name, without those that are 0.
    """

    source: str
    dispatcher: str
    elapsed: float
    interval: float
    summary: bool = False
    dropped_by_kernel: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Packets or datagrams that did not get through as they were."""
        return self.dropped_by_kernel + sum(
            count for name, count in self.losses.items() if name != "freezes"
        )

    def rate(self, count: int) -> float:
        """``count`` a second."""
        return count / self.interval if self.interval else 0.0

    def values(self) -> dict[str, Any]:
        """The sample as JSON has it."""
        result: dict[str, Any] = {"event": "summary" if self.summary else "sample"}
        for each in fields(self):
            if each.name != "summary":
                value = getattr(self, each.name)
                result[each.name] = dict(value) if isinstance(value, Mapping) else value
        for name in ("elapsed", "interval"):
            result[name] = round(result[name], 6)
        return result

    def to_json(self) -> str:
        """The sample as one line of JSON, in ASCII."""
        return json.dumps(self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketSample(Sample):
    """What a packet dispatcher read and delivered.

    reads: batches. packets_in, bytes_in: what was read; wire_packets_in: the packets on the wire
    that these stand for, as some come merged already. packets_out, bytes_out: what was delivered.
    super_packets: delivered packets made of at least two; segments: the packets in them;
    largest_super_packet: the most in one. verdicts: packets read, by `Verdict`; closed: heads, by
    `CloseReason`; names in lower case, without those that are 0. A super-packet of the kernel that
    was alone in its batch counts as already_aggregated here; the engine, which does not look at
    it, calls it alone.
    """

    reads: int = 0
    packets_in: int = 0
    wire_packets_in: int = 0
    bytes_in: int = 0
    packets_out: int = 0
    bytes_out: int = 0
    super_packets: int = 0
    segments: int = 0
    largest_super_packet: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, int] = field(default_factory=dict)

    @property
    def segments_per_super_packet(self) -> float | None:
        """The mean; None where nothing was merged."""
        return self.segments / self.super_packets if self.super_packets else None

    def values(self) -> dict[str, Any]:
        """The sample as JSON has it."""
        each = self.segments_per_super_packet
        return {
            **Sample.values(self),
            "segments_per_super_packet": None if each is None else round(each, 3),
            "packets_per_second_in": round(self.rate(self.packets_in), 1),
            "bits_per_second_in": round(self.rate(8 * self.bytes_in), 1),
            "packets_per_second_out": round(self.rate(self.packets_out), 1),
            "bits_per_second_out": round(self.rate(8 * self.bytes_out), 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSample(Sample):
    """What a UDP dispatcher read.

    reads: buffers, each of one datagram or a train. datagrams, bytes: what was in them. trains:
    those of at least two datagrams; largest_train: the most in one. sizes: datagrams by their
    payload in bytes; of the sizes that are frequent, `SIZES` at most.
    """

    reads: int = 0
    datagrams: int = 0
    bytes: int = 0
    trains: int = 0
    largest_train: int = 0
    sizes: Mapping[int, int] = field(default_factory=dict)

    @property
    def datagrams_per_read(self) -> float | None:
        """The mean; None where nothing came."""
        return self.datagrams / self.reads if self.reads else None

    def values(self) -> dict[str, Any]:
        """The sample as JSON has it."""
        each = self.datagrams_per_read
        return {
            **Sample.values(self),
            "datagrams_per_read": None if each is None else round(each, 3),
            "datagrams_per_second": round(self.rate(self.datagrams), 1),
            "bits_per_second": round(self.rate(8 * self.bytes), 1),
        }


class Meter(Protocol):
    """A hook that counts what one dispatcher delivers."""

    def sample(self, stats: Any, **about: Any) -> Sample:
        """What came since the last sample. stats: the dispatcher's; about: fields of `Sample`."""

    def total(self, stats: Any, **about: Any) -> Sample:
        """What came since the beginning."""


_AGGREGATED = Verdict.ALREADY_AGGREGATED
_ALONE = Verdict.ALONE


class PacketMeter:
    """The hook of a packet dispatcher.

    dropped: what the kernel has lost of its packets, where the dispatcher itself cannot tell.
    """

    def __init__(self, dropped: Callable[[], int] | None = None) -> None:
        self._dropped = dropped
        self._wire = 0
        self._lone_aggregates = 0
        self._largest = 0
        self._largest_ever = 0
        self._before: _Counts = {}

    def __call__(self, packets: list[Packet], /) -> None:
        """Count one flush."""
        wire = 0
        largest = 0
        for packet in packets:
            inputs = packet.packets
            if inputs > 1:
                if inputs > largest:  # noqa: PLR1730 - max() costs more than all the rest
                    largest = inputs
            else:
                # A batch of one is not looked at; else the engine has told what is aggregated.
                verdict = packet.verdict
                if verdict is _AGGREGATED or verdict is _ALONE:
                    inputs = packet.gso_segs or 1
                    if inputs > 1 and verdict is _ALONE:
                        self._lone_aggregates += 1
            wire += inputs
        self._wire += wire
        self._largest = max(self._largest, largest)

    def sample(self, stats: DispatcherStats, **about: Any) -> PacketSample:
        """What came since the last sample."""
        now = self._count(stats)
        before, self._before = self._before, now
        largest, self._largest = self._largest, 0
        self._largest_ever = max(self._largest_ever, largest)
        return _packet_sample(now, before, largest, about)

    def total(self, stats: DispatcherStats, **about: Any) -> PacketSample:
        """What came since the beginning."""
        largest = max(self._largest_ever, self._largest)
        return _packet_sample(self._count(stats), {}, largest, about)

    def _count(self, stats: DispatcherStats) -> "_Counts":
        engine = stats.engine
        counts: _Counts = {
            ("", "reads"): engine.batches,
            ("", "packets_in"): engine.packets_in,
            ("", "wire_packets_in"): self._wire,
            ("", "bytes_in"): engine.bytes_in,
            ("", "packets_out"): engine.packets_out,
            ("", "bytes_out"): engine.bytes_out,
            ("", "super_packets"): engine.super_packets,
            ("", "segments"): engine.segments,
            ("", "dropped_by_kernel"): stats.dropped,
        }
        if self._dropped is not None:
            counts["", "dropped_by_kernel"] += self._dropped()
        counts |= {("verdicts", key.name.lower()): count for key, count in engine.verdicts.items()}
        lone = self._lone_aggregates
        counts["verdicts", _ALONE.name.lower()] -= lone
        counts["verdicts", _AGGREGATED.name.lower()] += lone
        counts |= {("closed", key.name.lower()): count for key, count in engine.closed.items()}
        return counts | _losses(stats)


class TrainMeter:
    """The hook of a UDP dispatcher; its trains are not kept."""

    def __init__(self) -> None:
        self._now = _Trains()
        self._ever = _Trains()
        self._before: _Counts = {}

    def __call__(self, trains: list[Train], /) -> None:
        """Count one read."""
        self._now.add(trains)

    def sample(self, stats: UdpStats, **about: Any) -> TrainSample:
        """What came since the last sample."""
        counts = _udp_counts(stats)
        before, self._before = self._before, counts
        now, self._now = self._now, _Trains()
        self._ever.join(now)
        return now.sample(_difference(counts, before), about)

    def total(self, stats: UdpStats, **about: Any) -> TrainSample:
        """What came since the beginning."""
        ever = _Trains()
        ever.join(self._ever)
        ever.join(self._now)
        return ever.sample(_difference(_udp_counts(stats), {}), about)


class _Trains:
    """What a dispatcher does not count of its trains."""

    def __init__(self) -> None:
        self.trains = 0
        self.largest = 0
        self.sizes: Counter[int] = Counter()

    def add(self, trains: list[Train]) -> None:
        sizes = self.sizes
        for train in trains:
            last = train.length
            count = len(train)
            if count > 1:
                self.trains += 1
                self.largest = max(self.largest, count)
                size = train.segment_size
                sizes[size] += count - 1
                last -= size * (count - 1)
            sizes[last] += 1

    def join(self, other: "_Trains") -> None:
        self.trains += other.trains
        self.largest = max(self.largest, other.largest)
        self.sizes.update(other.sizes)

    def sample(self, counts: Mapping[str, Any], about: Mapping[str, Any]) -> TrainSample:
        return TrainSample(
            **about,
            **counts,
            trains=self.trains,
            largest_train=self.largest,
            sizes=dict(self.sizes.most_common(SIZES)),
        )


def _udp_counts(stats: UdpStats) -> "_Counts":
    return {
        ("", "reads"): stats.trains,
        ("", "datagrams"): stats.datagrams,
        ("", "bytes"): stats.bytes,
        ("", "dropped_by_kernel"): stats.dropped,
    } | _losses(stats)


_LOSSES = ("truncated", "runts", "damaged", "freezes", "control_truncated", "malformed")
"""Fields of the dispatchers' statistics that tell of something amiss."""

_Counts = dict[tuple[str, str], int]
"""Counters by the field of a sample that maps names to them, or "", and their name."""


def _losses(stats: object) -> _Counts:
    return {("losses", name): getattr(stats, name) for name in _LOSSES if hasattr(stats, name)}


def _packet_sample(
    now: _Counts, before: _Counts, largest: int, about: Mapping[str, Any]
) -> PacketSample:
    return PacketSample(**about, **_difference(now, before), largest_super_packet=largest)


def _difference(now: _Counts, before: _Counts) -> dict[str, Any]:
    """The fields of a sample that counters have grown by; in mappings, what has not is left out."""
    result: dict[str, Any] = {}
    for (group, name), count in now.items():
        grown = count - before.get((group, name), 0)
        if not group:
            result[name] = grown
        elif grown:
            result.setdefault(group, {})[name] = grown
    return result
