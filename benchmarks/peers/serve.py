"""The answering side for engines in Python."""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

from benchmarks.traffic import read

__all__ = ["Ready", "serve"]

WARM = 1.0  # of the time asked for
AWAY = 10  # a batch this many times the shortest one was off the CPU: not counted


@dataclass(frozen=True, slots=True)
class Ready:
    """An engine with a batch before it.

    work: what is timed, one batch each call. outcome: one more batch, of which it returns how
    many packets came out and how many bytes of TCP payload are in them.
    """

    work: Callable[[], object]
    outcome: Callable[[], tuple[int, int]]


def serve(prepare: Callable[[list[bytes], str], Ready]) -> None:
    """Answer requests until the input ends. ``prepare`` is given packets and a mode."""
    for line in sys.stdin:
        path, mode, seconds = line.rstrip("\n").split("\t")
        packets = read(Path(path))
        ready = prepare(packets, mode)
        out, payload = ready.outcome()
        nanoseconds = measure(ready.work, float(seconds)) / len(packets)
        print(json.dumps({"ns": nanoseconds, "out": out, "payload": payload}), flush=True)


def measure(work: Callable[[], object], seconds: float) -> float:
    """The nanoseconds of one batch: the mean of those that kept the CPU.

    The same is done in C (dpdk_gro.c) and in Go (harness.go).
    """
    want = seconds * 1e9
    spent = 0
    while spent < WARM * want:
        spent += _time(work)
    own = min(_time(_nothing) for _ in range(1000))
    samples = []
    spent = 0
    while not samples or spent < want:
        taken = _time(work) - own
        samples.append(taken)
        spent += taken
    least = min(samples)
    return statistics.fmean(taken for taken in samples if taken <= AWAY * least)


def _time(work: Callable[[], object]) -> int:
    start = perf_counter_ns()
    work()
    return perf_counter_ns() - start


def _nothing() -> None:
    pass
