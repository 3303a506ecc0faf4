"""Building programs that benchmarks need. Nothing is installed here."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

__all__ = ["HEADERS", "Missing", "compiler", "python_headers", "run"]

HEADERS = Path(__file__).resolve().parents[1] / "netstack_gro"
BUILD_SECONDS = 600


class Missing(Exception):
    """Something cannot be had on this machine; the message says what to install."""


def compiler() -> str:
    """The C compiler; Missing where there is none."""
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        raise Missing("no C compiler: apt install gcc")
    return found


def python_headers() -> str:
    """The folder of Python.h, which our own headers include; Missing where there is none."""
    folder = sysconfig.get_paths()["include"]
    if not Path(folder, "Python.h").exists():
        raise Missing("no Python.h, which our checksum includes: apt install python3-dev")
    return folder


def run(command: list[str], folder: Path | None = None) -> str:
    """The output of a command; Missing, with the last line of its complaints, where it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        complaints = [line for line in error.stderr.splitlines() if line.strip()]
        said = complaints[-1].strip() if complaints else f"exit status {error.returncode}"
        raise Missing(f"{command[0]} failed: {said}") from error
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} took more than {BUILD_SECONDS} seconds") from None
    return done.stdout
