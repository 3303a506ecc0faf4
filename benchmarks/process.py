"""A process that answers each line of its input by one line."""

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import netstack_gro

__all__ = ["LineProcess"]

ENGINE = Path(netstack_gro.__file__).resolve().parents[1]  # the same one here and there
ROOT = Path(__file__).resolve().parents[1]


class LineProcess:
    """LineProcess(name, command, **environment): runs until it is closed.

    A Python in it finds the package that runs here, and `benchmarks`.
    """

    def __init__(self, name: str, command: list[str], **environment: str) -> None:
        self.name = name
        path = [str(ENGINE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def exchange(self, line: str) -> str:
        """The answer to a line, empty where the process has ended; OSError where it hears none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the process, by ending its input."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
