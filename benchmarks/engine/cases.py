"""All that is measured, and which figures are set in relation."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from benchmarks.batches import SLOT, batch_of
from benchmarks.report import Row, figure_row, ratio_row
from benchmarks.timing import Loop
from benchmarks.traffic import HEADERS, Traffic
from netstack_gro import GroConfig, GroDispatcher, Packet, segment

from .limits import Limits
from .settings import BASE, LONE, MANY, MANY_LARGE, ONE_LARGE, RUNS, Setting, settings

__all__ = ["OTHER", "Case", "Figures", "all_cases", "ratio_rows"]

Figures = Mapping[str, Sequence[float]]
"""Nanoseconds a packet of each round, by the name of the case."""

SUPER = Traffic("one super-packet", 45, 1)  # as many as 65,535 bytes hold
WIRE = HEADERS[4] + SUPER.payload  # bytes of a packet
LENGTH = HEADERS[4] + SUPER.payload_bytes  # bytes of the super-packet
SUMMED = WIRE - 20  # bytes of a packet that its TCP checksum covers, without the pseudo-header

LINEARISE = ("copy_into(), 45 segments", "bytes(), 45 segments")
SEGMENT = "segment(), 45 segments"
COPIES = ("memcpy, as one piece", "memcpy, as 45 pieces")
CUT = "memcpy, 45 packets"
VERIFIED = replace(BASE, verify=True)

OTHER = (BASE, VERIFIED, MANY, LONE, replace(BASE, udp=True), replace(BASE, listed=True))
"""The settings that the interpreted engine is measured in."""


@dataclass(frozen=True, slots=True)
class Case:
    """A figure. prepare gives what is timed; ``packets`` of them are one piece of its work.

    groups: the tables that it is in. engine: None for the one that runs here, or what it is
    instead. batches: how many pieces of work are done before the first one is again.
    """

    name: str
    groups: Sequence[str]
    packets: int
    prepare: Callable[[], Loop]
    engine: str | None = None
    batches: int = 1


def all_cases(limits: Limits | None) -> list[Case]:
    """Every case, each once; without the limits where they could not be built."""
    groups: dict[Setting, list[str]] = {}
    for group, found in settings().items():
        for each in found:
            groups.setdefault(each, []).append(group)
    cases = [
        Case(each.name, names, each.packets, each.prepare, batches=each.batches)
        for each, names in groups.items()
    ]
    parts = ["whole super-packets"]
    whole = [
        Case(LINEARISE[0], parts, SUPER.packets, lambda: _linearise(into=True)),
        Case(LINEARISE[1], parts, SUPER.packets, lambda: _linearise(into=False)),
        Case(SEGMENT, parts, SUPER.packets, _segment),
    ]
    return [*cases, *whole, *([] if limits is None else _limits(limits))]


def sum_name(kind: str, *, ring: bool = False) -> str:
    """The name of a case that sums the bytes which VERIFIED verifies."""
    return f"sum, {kind}" + (", 16 MiB ring" if ring else "")


def _limits(limits: Limits) -> list[Case]:
    groups = ["limits: the same bytes in C"]
    shapes = {COPIES[0]: (LENGTH, LENGTH, 1), COPIES[1]: (SLOT, LENGTH // 45, 45)}
    shapes[CUT] = (WIRE, WIRE, 45)
    cases = []
    for name, shape in shapes.items():
        stride, length, count = shape

        def copy(stride: int = stride, length: int = length, count: int = count) -> Loop:
            memory = bytearray(b"\1" * (stride * count))  # zeros need not be memory
            return limits.copying(bytearray(length * count), memory, stride, length, count)

        cases.append(Case(name, groups, SUPER.packets, copy))
    for ring in (False, True):
        setting = replace(VERIFIED, ring=ring)
        slab = setting.inputs()[0].slab  # of a ring, the very one that the engine goes round
        for kind in limits.sums:

            def prepare(kind: str = kind, slab: bytearray = slab, n: int = setting.batches) -> Loop:
                return limits.summing(kind, slab, 20, SUMMED, BASE.packets, n)

            name = sum_name(kind, ring=ring)
            cases.append(Case(name, groups, BASE.packets, prepare, batches=setting.batches))
    return [replace(case, engine="C") for case in cases]


def _linearise(*, into: bool) -> Loop:
    batch = batch_of(SUPER.build())
    target = bytearray(LENGTH)
    left = [0]

    def hook(packets: list[Packet]) -> None:
        (packet,) = packets
        if into:
            for _ in repeat(None, left[0]):
                packet.copy_into(target)
        else:
            for _ in repeat(None, left[0]):
                bytes(packet)

    engine = GroDispatcher(hook, GroConfig(received_checksums="trust"))

    def loop(count: int) -> None:
        left[0] = count
        engine.dispatch(batch)

    return loop


def _segment() -> Loop:
    found: list[Packet] = []
    with GroDispatcher(
        lambda packets: found.extend(packet.detach() for packet in packets)
    ) as engine:
        engine.dispatch(batch_of(SUPER.build()))
    (packet,) = found
    data, header, mode = bytes(packet), packet.virtio_header(), packet.ip_id_mode

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            deque(segment(data, header, mode), maxlen=0)  # takes each, and lets it go

    return loop


def ratio_rows(figures: Figures, engine: str) -> list[Row]:
    """What the engine is held to: ratios, each round's for itself, and one time.

    A ratio of which a side was not measured is left out.
    """
    rows = [
        _ratio("1,024 flows in 1,024 to 64 in 64, nothing merges", MANY_LARGE, MANY, 1.3),
        _ratio("runs of 16: 64 flows to 1 flow, batch 1,024", RUNS, ONE_LARGE, 1.5),
    ]
    for setting in (BASE, VERIFIED, MANY):
        case = f"list of bytes to slab: {setting.name}"
        rows.append(_ratio(case, replace(setting, listed=True), setting, 1.3))
    found = [row for make in rows if (row := make(figures, engine))]
    if LONE.name in figures:
        row = figure_row(LONE.name, engine, "ns/packet", figures[LONE.name])
        found.insert(0, row | {"case": "a batch of one, to the hook", "target": 180})
    for ring in (False, True):
        row = _verification(figures, engine, ring=ring)
        if row:
            found.append(row)
    if (copy := _least(figures, COPIES)) is not None:
        for case in LINEARISE:
            if case in figures:
                ratios = _over(figures[case], figures[copy])
                found.append(ratio_row(f"{case}, to memcpy", engine, ratios, copy, 1.3))
    best = _least_sum(figures)
    if best and SEGMENT in figures and CUT in figures:
        limit = [copy + total for copy, total in zip(figures[CUT], figures[best], strict=True)]
        ratios = _over(figures[SEGMENT], limit)
        case = f"{SEGMENT}, to copy + sum"
        found.append(ratio_row(case, engine, ratios, f"{CUT} + {best}", 1.5))
    return found


def _ratio(
    case: str, ours: Setting, other: Setting, target: float
) -> Callable[[Figures, str], Row | None]:
    def make(figures: Figures, engine: str) -> Row | None:
        if ours.name not in figures or other.name not in figures:
            return None
        ratios = _over(figures[ours.name], figures[other.name])
        return ratio_row(case, engine, ratios, other.name, target)

    return make


def _verification(figures: Figures, engine: str, *, ring: bool) -> Row | None:
    """What verifying adds, to the fastest sum of the same bytes."""
    verified, trusted = (replace(each, ring=ring).name for each in (VERIFIED, BASE))
    best = _least_sum(figures, ring=ring)
    if best is None or verified not in figures or trusted not in figures:
        return None
    # One figure for what is taken off: a difference of two rounds would be noise.
    off = statistics.median(figures[trusted])
    added = [each - off for each in figures[verified]]
    case = "verification to the best sum" + (", 16 MiB ring" if ring else "")
    return ratio_row(case, engine, _over(added, figures[best]), best, 1.3, without=trusted)


def _over(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    return [mine / its for mine, its in zip(ours, others, strict=True)]


def _least(figures: Figures, names: Sequence[str]) -> str | None:
    found = [(statistics.median(figures[name]), name) for name in names if name in figures]
    return min(found)[1] if found else None


def _least_sum(figures: Figures, *, ring: bool = False) -> str | None:
    names = [name for name in figures if name.startswith("sum, ")]
    return _least(figures, [name for name in names if name.endswith("ring") == ring])
