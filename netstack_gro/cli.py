"""The command ``netstack-gro``. No traceback reaches its user, whatever happens."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import netstack_gro
from netstack_gro.commands import live, probe, replay
from netstack_gro.commands.terminal import (
    CLOSED_PIPE,
    FAILED,
    INTERRUPTED,
    PROGRAM,
    UNREADABLE,
    UNWRITABLE,
    complain,
)
from netstack_gro.errors import GroError
from netstack_gro.replay import engine_name

__all__ = ["main"]

_EPILOG = """\
examples:
  netstack-gro replay capture.pcapng
  sudo netstack-gro live --interface eth0
  netstack-gro probe

exit status:
  0    done
  1    replay: verification failed, or a warning under --strict; or the output is full
  2    something could not be read or begun, or the command line is wrong
  130  interrupted (live ends with 0)
  141  whoever read the output closed it

COMMAND --help has the rest: what it takes, and the keys of --json.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    try:
        status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        complain("interrupted")
        status = INTERRUPTED
    except BrokenPipeError:
        status = CLOSED_PIPE
    except GroError as error:
        complain(str(error))
        status = UNREADABLE
    except OSError as error:
        if error.errno == errno.EPIPE:
            status = CLOSED_PIPE
        elif error.errno in UNWRITABLE:
            complain(f"standard output: cannot be written: {error.strerror}")
            status = FAILED
        else:
            complain(str(error))
            status = UNREADABLE
    except MemoryError:
        complain("out of memory")
        status = UNREADABLE
    except Exception as error:  # noqa: BLE001 - a fault of ours; still no traceback
        complain(_internal(error))
        status = UNREADABLE
    _let_go_of_output()
    return status


def _run(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        if options.check is not None:
            options.check(options)
    except SystemExit as error:  # --help and --version too, whose output may meet a closed pipe
        return error.code if isinstance(error.code, int) else UNREADABLE
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Receive offload (GRO) for network stacks in user space.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"{PROGRAM} {netstack_gro.__version__} ({engine_name()} engine)"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (replay, live, probe):
        command.add(commands)
    return parser


def _internal(error: Exception) -> str:
    """What to say of a fault of ours: what it is and where, in one line."""
    trace = error.__traceback__
    where = ""
    while trace is not None:
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"internal error: {type(error).__name__}: {error} ({where}); please report it"


def _let_go_of_output() -> None:
    """Where standard output no longer takes what is buffered, keep the exit from trying again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
