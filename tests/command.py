"""The command in a process of its own, with the engine that the tests run with."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import netstack_gro

ENGINE = "compiled" if netstack_gro.__compiled__ else "interpreted"

PACKAGE_PARENT = str(Path(netstack_gro.__file__).resolve().parent.parent)

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and descriptors")


def environment() -> dict[str, str]:
    """The tests' own environment, in which the package is found from any folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    places = [PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, places))}


COMMAND = (sys.executable, "-W", "error", "-m", "netstack_gro")


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; fails where a traceback or a warning shows."""
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        check=False,
        **{"capture_output": True, "timeout": 60, "env": environment(), **options},
    )
    texts = [
        (part or b"").decode(errors="surrogateescape") for part in (result.stdout, result.stderr)
    ]
    assert_clean(texts[1])
    return subprocess.CompletedProcess(result.args, result.returncode, texts[0], texts[1])


def assert_clean(errors: str) -> None:
    for word in ("Traceback", "Exception ignored", "Warning:", "internal error"):
        assert word not in errors, errors


def objects(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]
