"""The run: every case in turn, round after round."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import netstack_gro
from benchmarks.building import Missing
from benchmarks.process import LineProcess
from benchmarks.report import RESULTS, Row, figure_row, ratio_table, table, write
from benchmarks.timing import measure
from netstack_gro._speed import INTERPRETED_VARIABLE

from .cases import OTHER, Case, Figures, all_cases, ratio_rows
from .limits import Limits, build
from .plot import draw

__all__ = ["main"]

BUILD = Path("build/bench")
PASSES = 4  # through a ring, which the cases before have put out of the caches


def run(
    cases: list[Case], other: LineProcess | None, rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Nanoseconds a packet of every round, by case: of the engine here, and of the other one."""
    loops = [(case, case.prepare()) for case in cases]
    figures: dict[str, list[float]] = {case.name: [] for case in cases}
    others: dict[str, list[float]] = {each.name: [] for each in OTHER} if other else {}
    for number in range(rounds):
        for case, loop in loops:
            figures[case.name].append(measure(loop, seconds, PASSES * case.batches) / case.packets)
        if other is not None:
            answer = json.loads(other.exchange(str(seconds)) or "null")
            if answer is None:
                raise RuntimeError(f"the {other.name} engine has ended")
            for each, found in zip(OTHER, answer, strict=True):
                others[each.name].append(found)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return figures, others


def show(cases: list[Case], figures: Figures, others: Figures, ratios: list[Row]) -> None:
    """Print the tables."""
    for group in dict.fromkeys(group for case in cases for group in case.groups):
        found = [(case.name, figures[case.name]) for case in cases if group in case.groups]
        print(f"\n{_figures(group, found)}")
    if others:
        print(f"\n{_figures('interpreted', others.items())}")
    print("\nNanoseconds of CPU time a packet.")
    if ratios:
        print(f"\n{ratio_table('held to', ratios)}")


def _figures(head: str, found: Iterable[tuple[str, Sequence[float]]]) -> str:
    cells = [
        (name, f"{statistics.median(rounds):,.1f}", f"{min(rounds):,.1f}") for name, rounds in found
    ]
    return table((head.ljust(60), "median", " least"), cells, (1, 2))


def _limits() -> Limits | None:
    try:
        return build(BUILD)
    except Missing as error:
        print(f"skipped: the limits in C: {error}", flush=True)
        return None


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 when it measured, whatever it measured."""
    parser = argparse.ArgumentParser(
        prog="engine", description="What the engine costs a packet, beside what memory allows."
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it work?")
    parser.add_argument("--only", metavar="WORDS", help="cases with this in their name")
    parser.add_argument("--seconds", type=float, help="for each case in each of 11 rounds")
    parser.add_argument("--json", type=Path, default=RESULTS / "engine.json")
    options = parser.parse_args(arguments)
    rounds, seconds = (2, 0.001) if options.quick else (11, options.seconds or 0.02)
    kind = "compiled" if netstack_gro.__compiled__ else "interpreted"
    print(f"netstack-gro {netstack_gro.__version__}, {kind}", flush=True)
    cases = [case for case in all_cases(_limits()) if (options.only or "") in case.name]
    if not cases:
        parser.error(f"no case has {options.only!r} in its name")
    with ExitStack() as stack:
        other = None
        if netstack_gro.__compiled__ and not options.only:
            command = [sys.executable, "-m", "benchmarks.engine.other"]
            other = LineProcess("interpreted", command, **{INTERPRETED_VARIABLE: "1"})
            stack.enter_context(other)
        figures, others = run(cases, other, rounds, seconds)
    ratios = ratio_rows(figures, kind)
    rows = [
        figure_row(case.name, case.engine or kind, "ns/packet", figures[case.name])
        for case in cases
    ]
    rows += [figure_row(name, "interpreted", "ns/packet", found) for name, found in others.items()]
    write(options.json, rows + ratios)
    show(cases, figures, others, ratios)
    try:
        draw(rows, options.json.with_suffix(".svg"))
    except Missing as error:
        print(f"\nskipped: the plot: {error}")
    return 0
