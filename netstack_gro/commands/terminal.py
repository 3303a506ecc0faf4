"""What all commands say and how: standard error, rich where there is a terminal, exit status."""

import argparse
import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType

__all__ = [
    "CLOSED_PIPE",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "PROGRAM",
    "UNREADABLE",
    "UNWRITABLE",
    "complain",
    "integer",
    "interface_name",
    "printable",
    "rich_module",
    "say",
]

PROGRAM = "netstack-gro"

DONE = 0
FAILED = 1
UNREADABLE = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
CLOSED_PIPE = 141  # 128 + SIGPIPE

UNWRITABLE = frozenset(
    getattr(errno, name, errno.EIO) for name in ("EDQUOT", "EFBIG", "EIO", "ENOSPC")
)
"""The errno of a write to an output that takes no more."""

_LONGEST_NAME = 15  # IFNAMSIZ - 1, include/uapi/linux/if.h


def integer(text: str, low: int, high: int) -> int:
    """The number that an argument is; the error that argparse reports where it is none."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {low} to {high}")
    return value


def interface_name(text: str) -> str:
    """The name of an interface that an argument is (dev_valid_name in net/core/dev.c)."""
    length = len(os.fsencode(text))
    if not 1 <= length <= _LONGEST_NAME or "/" in text or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of an interface, which has 1 to {_LONGEST_NAME} bytes and no '/'"
        )
    return text


def rich_module(name: str) -> ModuleType | None:
    """A module of ours that prints with rich, where that is installed and there is a terminal."""
    streams = (sys.stdout, sys.stderr)
    if not any(stream is not None and stream.isatty() for stream in streams):
        return None
    try:
        return import_module(name)  # rich is optional, and slow to import
    except ImportError:
        return None


def printable(text: str) -> str:
    """``text`` with what a terminal could act upon, or not print, as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def say(text: str) -> None:
    """A line on standard error, where there is one."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()


def complain(text: str) -> None:
    """A line on standard error that names the program."""
    say(f"{PROGRAM}: {text}")
