"""From measurements to the rows of the report."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import report
from benchmarks.traffic import Traffic

from .cases import Criterion
from .programs import Answer

__all__ = ["Figures", "WrongResultError", "check", "figure_row", "ratio_row"]

MERGED = 8  # packets to a super-packet at least, where all can merge


class WrongResultError(Exception):
    """An engine did not do what its time is compared for."""


@dataclass(slots=True)
class Figures:
    """One engine on one traffic: nanoseconds a packet of each round, and what came out."""

    out: int = 0
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)


def check(engine: str, traffic: Traffic, answer: Answer) -> None:
    """Raise WrongResultError where payload was lost, or packets were not merged that should be."""
    where = f"{engine}, {traffic.name}"
    if answer.payload != traffic.payload_bytes:
        raise WrongResultError(
            f"{where}: {answer.payload} bytes of {traffic.payload_bytes} came out"
        )
    most = traffic.packets if traffic.run == 1 else traffic.packets // min(MERGED, traffic.run)
    least = traffic.packets if traffic.run == 1 else traffic.flows
    if not least <= answer.out <= most:
        raise WrongResultError(f"{where}: {answer.out} packets came out, not {least} to {most}")


def figure_row(case: str, engine: str, figures: Figures) -> dict[str, Any]:
    """The row of an engine on one traffic."""
    return report.figure_row(case, engine, "ns/packet", figures.rounds, packets_out=figures.out)


def ratio_row(
    criterion: Criterion, figures: Mapping[tuple[str, str], Figures]
) -> dict[str, Any] | None:
    """The row of a ratio, each round's for itself; None where one side was not measured.

    figures: by names of traffic and engine.
    """

    def find(engine: str) -> Figures | None:
        return figures.get((criterion.traffic.name, engine))

    ours = find(criterion.engine)
    others = [(found.median, name) for name in criterion.against if (found := find(name))]
    if ours is None or not others:
        return None
    _, against = min(others)
    other = find(against)
    assert other is not None
    off = 0.0
    if criterion.without is not None:
        less = find(criterion.without)
        if less is None:
            return None
        off = less.median  # one figure for both sides: a difference of two rounds would be noise
    ratios = [
        (mine - off) / (its - off)
        for mine, its in zip(ours.rounds, other.rounds, strict=True)
        if its > off
    ]
    if not ratios:
        return None
    without = {} if criterion.without is None else {"without": criterion.without}
    return report.ratio_row(
        criterion.case, criterion.engine, ratios, against, criterion.target, **without
    )
