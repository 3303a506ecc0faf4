"""A run of several parts: each in turn, its tables printed, all figures written to one file."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import netstack_gro
from benchmarks.io.results import Results
from benchmarks.report import Row, write

__all__ = ["Part", "run"]

QUICK = 3


class Part(NamedTuple):
    """measure: takes the number of rounds. lacks: why it cannot run here, or None."""

    measure: Callable[..., Results]
    lacks: Callable[[], str | None]
    rounds: int


def run(
    parts: Mapping[str, Part],
    arguments: list[str] | None,
    *,
    name: str,
    description: str,
    file: Path,
) -> int:
    """Measure and print; 0 when something was measured."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--quick", action="store_true", help="few short rounds: does it work?")
    parser.add_argument("--only", choices=parts, action="append", help="this part (repeatable)")
    parser.add_argument("--json", type=Path, default=file, help="where results are written")
    options = parser.parse_args(arguments)
    kind = "compiled" if netstack_gro.__compiled__ else "interpreted"
    print(f"netstack-gro {netstack_gro.__version__}, {kind}", flush=True)
    rows: list[Row] = []
    for part_name in options.only or parts:
        part = parts[part_name]
        missing = part.lacks()
        if missing is not None:
            print(f"\nskipped: {part_name}: {missing}", flush=True)
            continue
        results = part.measure(QUICK if options.quick else part.rounds, quick=options.quick)
        print(f"\n{results.text()}", flush=True)
        rows += [row | {"build": kind} for row in results.rows()]
    if not rows:
        print("nothing could be measured", file=sys.stderr)
        return 1
    write(options.json, rows)
    return 0
