"""The figures of one run: rounds of what was measured, what was counted, and ratios of both."""

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.results import Figures, WrongResultError
from benchmarks.report import Row, figure_row, table

__all__ = ["Ratio", "Results", "WrongResultError"]

WIDTH = 96


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of an engine over another's, of each round for itself.

    unit: ``times``: what the other takes over what the engine takes. ``ratio``: the reverse.
    at_least, at_most: what the median shall be.
    """

    case: str
    engine: str
    against: str
    unit: str
    rounds: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """``met`` or ``missed``, by the median; nothing without a target."""
        if self.at_least is None and self.at_most is None:
            return ""
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return "met" if low <= self.median <= high else "missed"

    @property
    def target(self) -> str:
        """The target in words."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def row(self) -> Row:
        """For programs."""
        targets = {"at_least": self.at_least, "at_most": self.at_most}
        given = {name: value for name, value in targets.items() if value is not None}
        return figure_row(
            self.case, self.engine, self.unit, self.rounds, against=self.against, **given
        )


class Results:
    """What one part of the run has measured, in the order in which it was first measured.

    setup: paragraphs on what was sent how, by whom, and what was timed.
    """

    def __init__(self, setup: Sequence[str]) -> None:
        self.setup = list(setup)
        self.ratios: list[Ratio] = []
        self._figures: dict[tuple[str, str, str], Figures] = {}
        self._counters: dict[tuple[str, str], dict[str, float]] = {}

    def add(self, case: str, engine: str, unit: str, value: float, delivered: int) -> None:
        """One round. ``delivered``: how many objects the consumer was given in it."""
        figures = self._figures.setdefault((case, engine, unit), Figures())
        figures.rounds.append(value)
        figures.out = delivered

    def count(self, case: str, engine: str, **counters: float) -> None:
        """What happened meanwhile, such as ``dropped=0``; the last call holds."""
        self._counters[case, engine] = counters

    def rounds(self, case: str, engine: str, unit: str) -> list[float]:
        """One value for each round."""
        return self._figures[case, engine, unit].rounds

    def times(
        self, case: str, engine: str, against: str, unit: str, at_least: float | None = None
    ) -> None:
        """How many times as long ``against`` takes, unless one of them was not measured."""
        mine = self._figures.get((case, engine, unit), Figures()).rounds
        other = self._figures.get((case, against, unit), Figures()).rounds
        if mine and other:
            rounds = [its / ours for ours, its in zip(mine, other, strict=True)]
            self.ratios.append(Ratio(f"{case}, {unit}", engine, against, "times", rounds, at_least))

    def rows(self) -> list[Row]:
        """Figures, then ratios, for programs."""
        rows = [
            figure_row(case, engine, unit, figures.rounds, delivered=figures.out)
            | self._counters.get((case, engine), {})
            for (case, engine, unit), figures in self._figures.items()
        ]
        return rows + [ratio.row() for ratio in self.ratios]

    def text(self) -> str:
        """All of it, for people."""
        parts = [textwrap.fill(paragraph, WIDTH) for paragraph in self.setup]
        for case in dict.fromkeys(case for case, _engine, _unit in self._figures):
            found = [
                (
                    engine,
                    unit,
                    f"{figures.median:,.1f}",
                    f"{min(figures.rounds):,.1f}",
                    _words(self._counters.get((case, engine), {})),
                )
                for (name, engine, unit), figures in self._figures.items()
                if name == case
            ]
            parts.append(table((case, "", "median", "least", "counted"), found, (2, 3)))
        compared = [
            (
                ratio.case,
                f"{ratio.median:,.3g}",
                f"{min(ratio.rounds):,.3g}",
                ratio.unit,
                ratio.target,
                ratio.verdict,
                f"{ratio.engine} : {ratio.against}",
            )
            for ratio in self.ratios
        ]
        head = ("ratio", "median", "least", "", "target", "", "of")
        parts.append(table(head, compared, (1, 2)))
        return "\n\n".join(parts)


def _words(counters: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,g}" for name, value in counters.items())
