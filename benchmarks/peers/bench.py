"""The run: every engine in turn, round after round, on the same packets."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import netstack_gro
from benchmarks.building import Missing
from benchmarks.report import RESULTS, ratio_table, table
from benchmarks.report import write as report
from benchmarks.traffic import write

from .cases import CHECKS, CRITERIA, SERIES, TRAFFIC
from .programs import PeerError, Program, build, version
from .results import Figures, check, figure_row, ratio_row

__all__ = ["main"]

PEERS = ("dpdk", "gvisor", "wireguard", "dpkt")
NAMES = {"dpdk": "DPDK", "gvisor": "gVisor", "wireguard": "wireguard-go", "dpkt": "dpkt"}
BUILD = Path("build/peers")


def start(peers: list[str], files: list[Path], stack: ExitStack) -> dict[str, Program]:
    """Our engine and those peers that can be had, running. Says what is left out."""
    kind = "compiled" if netstack_gro.__compiled__ else "interpreted"
    print(f"netstack-gro {netstack_gro.__version__}, {kind}", flush=True)
    programs = {"ours": stack.enter_context(Program("netstack-gro", build("ours", BUILD)))}
    first = {series.peer: series.mode for series in reversed(SERIES)}
    for peer in peers:
        for kind in ("dpdk", "dpdk-native") if peer == "dpdk" else (peer,):
            try:
                program = stack.enter_context(Program(kind, build(kind, BUILD)))
                program.ask(files[0], first[kind], 0.001)
            except (Missing, PeerError) as error:
                print(f"skipped: {NAMES[peer]} ({kind}): {error}", flush=True)
                break
            programs[kind] = program
        else:
            print(f"{NAMES[peer]} {version(peer)}", flush=True)
    return programs


def measure(
    programs: dict[str, Program], files: list[Path], rounds: int, seconds: float
) -> dict[tuple[str, str], Figures]:
    """The figures, by names of traffic and engine."""
    figures: dict[tuple[str, str], Figures] = {}
    for number in range(rounds):
        for traffic, path in zip(TRAFFIC, files, strict=True):
            for series in SERIES:
                if series.peer not in programs or not series.takes(traffic):
                    continue
                answer = programs[series.peer].ask(path, series.mode, seconds)
                if series.merges:
                    check(series.engine, traffic, answer)
                found = figures.setdefault((traffic.name, series.engine), Figures())
                found.out = answer.out
                found.rounds.append(answer.ns)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return figures


def show(figures: dict[tuple[str, str], Figures], ratios: list[dict[str, Any]]) -> None:
    """Print the tables."""
    for traffic in TRAFFIC:
        rows = [
            (engine, f"{found.median:,.1f}", f"{min(found.rounds):,.1f}", f"{found.out:,}")
            for (name, engine), found in figures.items()
            if name == traffic.name
        ]
        print()
        print(table((traffic.name, "median", "least", "packets out"), rows, (1, 2, 3)))
    print(
        "\nNanoseconds a packet. DPDK: Debian builds its library for any CPU; `native` is our own"
    )
    print("part of the program, with rte's inline checksum, built with -march=native.\n")
    print(ratio_table("ratio, to the fastest of its kind", ratios))
    for who, verifies, compares, copies, measured in CHECKS:
        print(f"\n{who}\n  verifies  {verifies}\n  compares  {compares}")
        print(f"  copies    {copies}\n  measured  {measured}")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 when something was measured."""
    parser = argparse.ArgumentParser(
        prog="peers", description="Measure engines of others in turn with ours."
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it work?")
    parser.add_argument("--only", choices=PEERS, action="append", help="this peer (repeatable)")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "peers.json", help="where results are written"
    )
    options = parser.parse_args(arguments)
    rounds, seconds = (2, 0.003) if options.quick else (11, 0.03)
    folder = BUILD.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"traffic-{number}.bin" for number in range(len(TRAFFIC))]
    for traffic, path in zip(TRAFFIC, files, strict=True):
        write(path, traffic.build())
    with ExitStack() as stack:
        programs = start(options.only or list(PEERS), files, stack)
        figures = measure(programs, files, rounds, seconds)
    ratios = [row for criterion in CRITERIA if (row := ratio_row(criterion, figures))]
    rows = [figure_row(case, engine, found) for (case, engine), found in figures.items()]
    report(options.json, rows + ratios)
    show(figures, ratios)
    return 0
