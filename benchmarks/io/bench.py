"""The run: each part in turn, its tables printed, all figures written to one file."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import netstack_gro
from benchmarks.io import datagrams, sizes, timer, tunnel
from benchmarks.io.results import Results
from benchmarks.report import RESULTS, Row, write
from tests.requirements import lacks_root, lacks_tun

__all__ = ["PARTS", "main"]


class Part(NamedTuple):
    """measure: takes the number of rounds. lacks: why it cannot run here, or None."""

    measure: Callable[..., Results]
    lacks: Callable[[], str | None]
    rounds: int


PARTS = {
    "udp": Part(datagrams.measure, lacks_root, 31),
    "mtu": Part(sizes.measure, lacks_root, 101),
    "tun": Part(tunnel.measure, lacks_tun, 15),
    "timer": Part(timer.measure, lacks_root, 15),
}
QUICK = 3


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 when something was measured."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.io", description="Measure receiving from and writing to a running kernel."
    )
    parser.add_argument("--quick", action="store_true", help="few short rounds: does it work?")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "io.json", help="where results are written"
    )
    options = parser.parse_args(arguments)
    kind = "compiled" if netstack_gro.__compiled__ else "interpreted"
    print(f"netstack-gro {netstack_gro.__version__}, {kind}", flush=True)
    rows: list[Row] = []
    for name in options.only or PARTS:
        part = PARTS[name]
        missing = part.lacks()
        if missing is not None:
            print(f"\nskipped: {name}: {missing}", flush=True)
            continue
        results = part.measure(QUICK if options.quick else part.rounds, quick=options.quick)
        print(f"\n{results.text()}", flush=True)
        rows += [row | {"build": kind} for row in results.rows()]
    if not rows:
        print("nothing could be measured", file=sys.stderr)
        return 1
    write(options.json, rows)
    return 0
