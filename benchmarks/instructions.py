"""Instructions a packet, counted by callgrind: they repeat where times do not.

    python -m benchmarks.instructions [--record]

A worker dispatches each case a number of times, then twice as often; the difference is what the
dispatches cost, without start and warming up. The figures are compared with those recorded in
instructions.json, and the exit status is 1 where one is more than 3 percent above. Another
compiler, Cython, libc, CPU or build of Python makes other instructions of the same source: each
such combination has a record of its own, and where there is none, only a rise of more than
20 percent above the closest one counts. ``--record`` writes the figures down instead.

Needs valgrind and the compiled engine. Without them it says so and passes, unless CI=true.
"""

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path

import netstack_gro
from benchmarks.building import Missing
from benchmarks.engine.settings import BASE, LONE, MANY, Setting
from benchmarks.report import table
from benchmarks.timing import Loop

__all__ = ["CASES", "Counts", "compare", "differences", "main", "with_record"]

RECORDED = Path(__file__).with_name("instructions.json")
ROOT = Path(__file__).resolve().parents[1]
SAME, OTHER = 1.03, 1.20
SAME_PYTHON = 0.02  # what calls may differ by in one build of Python
SECONDS = 300
MARK = "ctermid"  # of libc: os.ctermid calls it, Python nothing else, and it does nothing

CASES: dict[str, Setting] = {
    "1 flow, trusted": BASE,
    "1 flow, verified": replace(BASE, verify=True),
    "64 flows, nothing merges": MANY,
    "batch of one": LONE,
    "IPv6": replace(BASE, version=6),
    "UDP": replace(BASE, udp=True),
    "list of bytes": replace(BASE, listed=True),
}
DISPATCHES = 40  # of a batch of 64; in proportion of others
WARM = 4


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions a packet, by case, and what they depend on beside the source.

    reference: instructions for one step of a loop in Python and one call of a Python function
    from C, which every dispatch has too; of this build of Python.
    """

    made_with: Mapping[str, str]
    reference: float
    cases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A case beside what was recorded, and the most that it may be."""

    case: str
    found: float
    recorded: float | None
    bound: float | None

    @property
    def risen(self) -> bool:
        """Whether it is above its bound."""
        return self.bound is not None and self.found > self.bound


def differences(found: Counts, recorded: Counts) -> list[str]:
    """What the counts depend on and have not in common, beside the source."""
    names = sorted(found.made_with.keys() | recorded.made_with.keys())
    differing = [
        f"{name} {found.made_with.get(name)}, not {recorded.made_with.get(name)}"
        for name in names
        if found.made_with.get(name) != recorded.made_with.get(name)
    ]
    if abs(found.reference - recorded.reference) > SAME_PYTHON * recorded.reference:
        differing.append(
            f"another build of Python: {found.reference:.0f} instructions for a call, "
            f"not {recorded.reference:.0f}"
        )
    return differing


def compare(found: Counts, records: Sequence[Counts]) -> tuple[list[str], list[Verdict]]:
    """How the closest of the records differs, and each case's verdict by it.

    A case that was never recorded has no bound. One that was recorded and not found is a
    ValueError, as is having no record at all.
    """
    if not records:
        raise ValueError("nothing was ever recorded")

    def distance(record: Counts) -> tuple[int, float]:
        return len(differences(found, record)), abs(found.reference - record.reference)

    recorded = min(records, key=distance)
    lost = recorded.cases.keys() - found.cases.keys()
    if lost:
        raise ValueError(f"recorded, and not counted: {', '.join(sorted(lost))}")
    differing = differences(found, recorded)
    # Twice: a call of the engine, and its call of the hook. They are not the engine's.
    dearer = 2 * max(found.reference - recorded.reference, 0.0)
    verdicts = []
    for case, count in found.cases.items():
        known = recorded.cases.get(case)
        bound = None
        if known is not None:
            bound = known * (OTHER if differing else SAME)
            if differing and case in CASES:
                bound += dearer / CASES[case].packets
        verdicts.append(Verdict(case, count, known, bound))
    return differing, verdicts


def with_record(records: Sequence[Counts], found: Counts) -> list[Counts]:
    """The records with this one in place of the one that differs in the source alone."""
    return [*(each for each in records if differences(found, each)), found]


# --- counting ----------------------------------------------------------------------------------


def plan() -> list[tuple[str, int]]:
    """The worker's measurements: each case, and last the reference; and how many dispatches."""
    counted = [
        (name, DISPATCHES * BASE.packets // max(each.packets, 8)) for name, each in CASES.items()
    ]
    return [*counted, ("", 500)]


def work() -> None:
    """The worker: calls MARK between its measurements, each of which has two parts."""
    gc.disable()
    for name, count in plan():
        loop = CASES[name].prepare() if name else _reference
        _parts(loop, count, os.ctermid)


def _parts(loop: Loop, count: int, mark: Callable[[], object]) -> None:
    loop(WARM)
    mark()
    loop(count)
    mark()
    loop(2 * count)
    mark()


def _reference(count: int) -> None:
    step = map(_hook, repeat([])).__next__  # C that calls Python
    for _ in repeat(None, count):
        step()


def _hook(packets: list[object]) -> None:
    """As short as the hook of the cases."""


def counts_of(totals: Sequence[int]) -> Counts:
    """The counts, from what the worker spent before each mark."""
    measured = plan()
    if len(totals) < 3 * len(measured):
        raise Missing(f"callgrind saw {len(totals)} marks of {3 * len(measured)}: no {MARK}?")
    cases = {}
    for number, (name, count) in enumerate(measured):
        once, twice = totals[3 * number + 1 : 3 * number + 3]
        cases[name] = (twice - once) / count / (CASES[name].packets if name else 1)
    reference = cases.pop("")
    return Counts(made_with(), round(reference, 1), {k: round(v, 1) for k, v in cases.items()})


def count() -> Counts:
    """Run the worker under callgrind; `Missing` where that cannot be done."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Missing("no valgrind: apt install valgrind")
    if not netstack_gro.__compiled__:
        raise Missing("the engine is interpreted: install a C compiler, and the package again")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        command = [valgrind, "--tool=callgrind", f"--dump-before={MARK}"]
        command += [f"--callgrind-out-file={out}", sys.executable, "-m", "benchmarks.instructions"]
        package = Path(netstack_gro.__file__).resolve().parents[1]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": os.pathsep.join(map(str, (package, ROOT))),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [*command, "--worker"],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        if done.returncode:
            raise Missing(f"callgrind failed: {done.stderr.strip().splitlines()[-1]}")
        dumps = sorted(out.parent.glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        return counts_of([total(path.read_text()) for path in dumps])


def total(dump: str) -> int:
    """The instructions in a dump of callgrind."""
    found = re.search(r"^(?:totals|summary): (\d+)", dump, re.MULTILINE)
    if found is None:
        raise ValueError("a dump of callgrind without its total")
    return int(found[1])


def made_with() -> dict[str, str]:
    """What decides on the instructions beside the source; of compiler and Cython, as built."""
    package = Path(netstack_gro.__file__).parent
    built = b"".join(path.read_bytes() for path in sorted(package.glob("engine.*.so")))
    compiler = re.search(rb"GCC: \([^)]*\) (\d+)|(clang version \d+)", built)
    cython = re.search(rb"_cython_(\d+_\d+)", built)
    return {
        "compiler": _text(compiler and ((compiler[1] and b"gcc " + compiler[1]) or compiler[2])),
        "cython": _text(cython and cython[1]).replace("_", "."),
        "python": f"{sys.implementation.name} {platform.python_version().rpartition('.')[0]}",
        "libc": " ".join(platform.libc_ver()),
        "cpu": platform.machine() + (" with avx2" if _has_avx2() else ""),
    }


def _text(found: bytes | None) -> str:
    return found.decode() if found else "unknown"


def _has_avx2() -> bool:
    """Whether valgrind offers AVX2, as it does where the CPU has it; AVX-512 it never does."""
    try:
        known = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(r"^flags\b.*\bavx2\b", known, re.MULTILINE) is not None


# --- the command -------------------------------------------------------------------------------


def show(differing: list[str], verdicts: list[Verdict]) -> None:
    """Print the table, and what was made of it."""
    cells = []
    for each in verdicts:
        if each.recorded is None or each.bound is None:
            cells.append((each.case, f"{each.found:,.1f}", "", "", "not recorded"))
            continue
        change = f"{100 * (each.found / each.recorded - 1):+.1f} %"
        fallen = each.found < each.recorded / SAME
        word = "RISEN" if each.risen else "fallen: record it" if fallen else ""
        cells.append((each.case, f"{each.found:,.1f}", f"{each.recorded:,.1f}", change, word))
    print(table(("instructions a packet", "found", "recorded", "change", ""), cells, (1, 2, 3)))
    for line in differing:
        print(f"recorded elsewhere: {line}")
    if differing:
        print(f"so the bound is {100 * (OTHER - 1):.0f} percent, not {100 * (SAME - 1):.0f}")


def main(arguments: list[str] | None = None) -> int:
    """Count and compare; 1 where a case costs more than its bound."""
    parser = argparse.ArgumentParser(
        prog="instructions", description="Instructions a packet, beside those recorded."
    )
    parser.add_argument("--record", action="store_true", help="write the figures down")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work()
        return 0
    try:
        found = count()
    except Missing as error:
        print(f"skipped: instructions a packet: {error}")
        return int(os.environ.get("CI") == "true")
    records = [Counts(**each) for each in json.loads(RECORDED.read_text())]
    if options.record:
        kept = [asdict(each) for each in with_record(records, found)]
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"recorded in {RECORDED}")
        return 0
    differing, verdicts = compare(found, records)
    show(differing, verdicts)
    return int(any(each.risen for each in verdicts))


if __name__ == "__main__":
    sys.exit(main())
