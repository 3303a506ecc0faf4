"""The command with pipes, terminals and signals: whatever they do, no traceback."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import tcp4, udp4
from tests.capture_files import records_of
from tests.captures import capture, segments
from tests.command import COMMAND, ENGINE, assert_clean, environment, run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX pipes and signals")


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """A capture of five packets that merge and one that does not."""
    path = tmp_path / "some.pcapng"
    path.write_bytes(capture([*segments(5), udp4(b"lone")]))
    return path


@pytest.mark.parametrize("arguments", [["replay", "-o", "-"], ["replay"], ["replay", "--json"]])
@pytest.mark.parametrize("added", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_closed_pipe_ends_it_quietly(
    some: Path, arguments: list[str], added: dict[str, str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run(
            *arguments,
            some,
            capture_output=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**environment(), **added},
        )
    finally:
        os.close(writing)
    assert result.returncode == 141
    assert "Broken pipe" not in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["replay", "--help"]])
def test_help_into_a_closed_pipe_is_quiet_too(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert result.returncode == 141


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_closed_standard_streams_are_no_error(some: Path, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "replay", "--verify", str(some)]
    result = subprocess.run(
        shell, capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert result.returncode == 0
    assert_clean(result.stderr)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command while it waits for the rest of a capture in a FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    out = tmp_path / "out.pcapng"
    with subprocess.Popen(
        [*COMMAND, "replay", "--batch", "2", "-o", str(out), str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # A shell lets what it runs in the background ignore the signal, and children inherit that.
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - this process has one thread
    ) as process:
        with fifo.open("wb", buffering=0) as stream:
            stream.write(capture([tcp4(b"x", dport=number) for number in range(9)]))
            deadline = time.monotonic() + 30
            while not out.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.2)  # by now it has read what there is, and waits for more
            yield process
        if process.poll() is None:
            process.kill()


def test_an_interrupt_ends_it_with_130_and_one_line(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert_clean(errors.decode())
    assert errors.decode().splitlines() == [f"engine: {ENGINE}", "netstack-gro: interrupted"]
    assert len(records_of((tmp_path / "out.pcapng").read_bytes())) == 8


@pytest.mark.parametrize("terminal", [1, 2])
def test_on_a_terminal_it_works_as_well(some: Path, terminal: int) -> None:
    import pty

    master, slave = pty.openpty()
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options["stdout" if terminal == 1 else "stderr"] = slave
    with subprocess.Popen(
        [*COMMAND, "replay", "--verify", str(some)],
        env={**environment(), "TERM": "xterm", "COLUMNS": "150"},
        **options,
    ) as process:
        os.close(slave)
        out, errors = process.communicate(timeout=60)
        shown = os.read(master, 100_000).decode()
    os.close(master)
    assert process.returncode == 0
    assert_clean((errors or b"").decode() + shown)
    assert "could be merged" in (shown if terminal == 1 else out.decode())
