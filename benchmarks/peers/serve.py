"""The answering side for engines in Python."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path

from benchmarks.timing import measure
from benchmarks.traffic import read

__all__ = ["Ready", "serve"]


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
        nanoseconds = measure(partial(_work, ready.work), float(seconds)) / len(packets)
        print(json.dumps({"ns": nanoseconds, "out": out, "payload": payload}), flush=True)


def _work(work: Callable[[], object], count: int) -> None:
    for _ in repeat(None, count):
        work()
