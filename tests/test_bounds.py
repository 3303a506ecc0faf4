"""No read and no write outside a packet: next to pages that may not be touched, at both engines.

The compiled engine would end with SIGSEGV, so each link has a process of its own; the test shows
the packet. What the interpreted engine reads outside an exact buffer raises IndexError.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netstack_gro._speed import INTERPRETED_VARIABLE
from tests.engines import Engine
from tests.traffic import LINKS

ROOT = Path(__file__).resolve().parent.parent
STRIDES = {"compiled": 12, "interpreted": 300}

needs_mprotect = pytest.mark.skipif(os.name != "posix", reason="needs mmap and mprotect")


def run(engine: Engine, notes: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    forced = "1" if engine.name == "interpreted" else "0"
    environment = os.environ | {
        INTERPRETED_VARIABLE: forced,
        "PYTHONPATH": os.pathsep.join(path for path in (str(ROOT), *sys.path) if path),
    }
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.bounds_worker", notes, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def last_noted(notes: Path) -> str:
    """What was being done when the process ended."""
    return notes.read_text().split("\n\n")[0]


@needs_mprotect
@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_nothing_outside_a_packet_is_read_or_written(
    engine: Engine, link: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    done = run(engine, notes, link, str(STRIDES[engine.name]))
    assert done.returncode == 0, f"{last_noted(notes)}\n{done.stderr}"
    assert int(done.stdout.split()[0]) > 3000


@needs_mprotect
def test_a_read_beyond_the_fence_would_be_seen() -> None:
    code = (
        "from tests.bounds_worker import Fenced; import ctypes;"
        "view = Fenced().at_end(b'abc');"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(view));"
        "assert ctypes.string_at(address, 3) == b'abc';"
        "print('inside', flush=True); ctypes.string_at(address + 3, 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "inside\n"
    assert done.returncode < 0
