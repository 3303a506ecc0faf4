"""``netstack-gro replay``: captures through the engine, and a report of each."""

import argparse
import errno
import os
import stat
import sys
import time
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from netstack_gro.capture import CaptureReader
from netstack_gro.commands import replay_tables
from netstack_gro.commands.terminal import (
    CLOSED_PIPE,
    DONE,
    FAILED,
    UNREADABLE,
    UNWRITABLE,
    complain,
    integer,
    rich_module,
    say,
)
from netstack_gro.config import MAX_CAPACITY
from netstack_gro.dispatchers.capture import DEFAULT_BATCH, MIN_MTU
from netstack_gro.errors import CaptureError
from netstack_gro.hooks.capture_file import CaptureFileSink
from netstack_gro.replay import OutputError, ReplayOptions, Report, engine_name, replay

__all__ = ["add"]

STANDARD = "-"
_BAR_AFTER = 1.0  # seconds
_BAR_EVERY = 0.1

_EPILOG = """\
examples:
  netstack-gro replay capture.pcapng
  netstack-gro replay --verify --json a.pcap b.pcap.gz
  tcpdump -w - | netstack-gro replay --window 0.001 -

exit status:
  0  done
  1  verification failed, there was a warning and --strict, or the output takes no more (a full
     disk)
  2  a capture could not be read (what came before the damage is replayed), the output could not
     be made, or the command line is wrong; the highest of all files counts

--json prints one object for each FILE, always with these keys:
  file, engine, batch, window_ns, link_types, interfaces, packets_in, packets_out, super_packets,
  segments, largest_segments, largest_bytes, bytes_in, bytes_out, verdicts, closed, truncated,
  already_aggregated, checksum_offload, verified, faults, warnings, error
Verdicts, and closed (why heads were closed), have lower-case names; those that are 0 are left out.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    command = commands.add_parser(
        "replay",
        help="merge the packets of a capture and say what became of them",
        description="Merge the packets of capture files (pcap or pcapng, gzip too), and print "
        "what was merged and why the rest was not. Each interface has its own engine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="a capture; - is standard input")
    batches = command.add_mutually_exclusive_group()
    batches.add_argument(
        "--batch",
        type=_batch,
        metavar="N",
        help="merge within N consecutive packets of the file, 64 MiB at most "
        f"(default: {DEFAULT_BATCH})",
    )
    batches.add_argument(
        "--window",
        type=_window,
        metavar="SECONDS",
        help="merge within a time, on each interface: a window opens at its first packet and "
        "takes what arrives less than SECONDS later",
    )
    command.add_argument(
        "-o",
        dest="output",
        metavar="OUT",
        help="write what is delivered to OUT, as pcapng; of several FILEs all, one after the "
        "other, with the interfaces of each; - is standard output (reports go to standard error)",
    )
    command.add_argument(
        "--verify",
        action="store_true",
        help="cut every super-packet again and compare with the file, byte for byte",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object for each FILE")
    command.add_argument(
        "--strict", action="store_true", help="exit with 1 where there was a warning"
    )
    command.add_argument(
        "--udp",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="merge UDP as well (on unless --no-udp is given)",
    )
    command.add_argument(
        "--mtu",
        type=_mtu,
        metavar="N",
        help="bytes of the largest IP packet on the wire: larger ones hold several packets "
        "already. Without it, the MSS of a connection's SYN tells, or else 9,216 bytes",
    )
    command.set_defaults(run=_replay, check=partial(_check, command))


def _batch(text: str) -> int:
    return integer(text, 1, MAX_CAPACITY)


def _mtu(text: str) -> int:
    return integer(text, MIN_MTU, 65535)


def _window(text: str) -> int:
    """Seconds as integer nanoseconds, exactly."""
    try:
        nanoseconds = Decimal(text).scaleb(9)
        if 1 <= nanoseconds < 2**63:
            return int(nanoseconds)
    except ArithmeticError:  # no number, or one beyond all bounds
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1e-9 to 9e9")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to write over a file that is to be read."""
    output = options.output
    if output is None or output == STANDARD:
        return
    try:
        target = os.stat(output)  # noqa: PTH116 - and fstat below
    except (OSError, ValueError):
        return
    for name in options.files:
        try:
            source = os.fstat(0) if name == STANDARD else os.stat(name)  # noqa: PTH116
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(source.st_mode) and os.path.samestat(source, target):
            parser.error(f"-o {output}: that is the capture {name} itself")


def _replay(options: argparse.Namespace) -> int:
    say(f"engine: {engine_name()}")
    status = DONE
    settings = ReplayOptions(
        batch=options.batch,
        window_ns=options.window,
        udp=options.udp,
        mtu=options.mtu,
        verify=options.verify,
    )
    rich = rich_module("netstack_gro.commands.replay_rich")
    printer = _Printer(options, rich)
    output = _Output(options.output)
    try:
        for name in options.files:
            progress = _Progress(name, rich)
            try:
                report = _replay_one(name, settings, output, progress)
            finally:
                progress.close()
            printer.show(report)
            status = max(status, _status(report, options.strict))
        output.close()
    except OutputError as error:
        if error.errno == errno.EPIPE:
            return CLOSED_PIPE
        complain(f"{output.name}: cannot be written: {error}")
        return FAILED if error.errno in UNWRITABLE else UNREADABLE
    finally:
        output.abandon()
    return status


def _replay_one(
    name: str, settings: ReplayOptions, output: "_Output", progress: "_Progress"
) -> Report:
    try:
        reader = CaptureReader(name)
    except CaptureError as error:
        report = Report.begin("standard input" if name == STANDARD else name, settings)
        report.error = str(error)
        return report
    with reader:
        return replay(reader, settings, sink=output.sink(), progress=progress)


def _status(report: Report, strict: bool) -> int:
    """The exit status that one file asks for; says on standard error why."""
    status = DONE
    for warning in report.warnings:
        complain(f"{report.file}: warning: {warning}")
        if strict:
            status = FAILED
    for fault in report.faults:
        complain(f"{report.file}: {fault}")
    if report.verified is False:
        status = FAILED
    if report.error is not None:
        complain(report.error)
        status = UNREADABLE
    return status


class _Output:
    """The file that ``-o`` names. It is made when the first capture could be opened."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._stream: IO[bytes] | None = None
        self._sink: CaptureFileSink | None = None

    @property
    def name(self) -> str:
        return "standard output" if self._path == STANDARD else str(self._path)

    def sink(self) -> CaptureFileSink | None:
        """What to replay into, or None without ``-o``. OutputError where it cannot be made."""
        if self._path is None or self._sink is not None:
            return self._sink
        try:
            if self._path == STANDARD:
                self._stream = os.fdopen(os.dup(1), "wb")
            else:
                self._stream = Path(self._path).open("wb")  # noqa: SIM115 - `close` does
            self._sink = CaptureFileSink(self._stream)
        except (OSError, ValueError) as error:
            raise _output_error(error) from error
        return self._sink

    def close(self) -> None:
        """Write what is buffered. OutputError where that fails."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            stream.close()
        except OSError as error:
            raise _output_error(error) from error

    def abandon(self) -> None:
        """Close after an error, which is what counts."""
        with suppress(OutputError):
            self.close()


def _output_error(error: OSError | ValueError) -> OutputError:
    result = OutputError(getattr(error, "strerror", None) or str(error))
    result.errno = getattr(error, "errno", None)
    return result


class _Printer:
    """Prints reports, in one of three ways."""

    def __init__(self, options: argparse.Namespace, rich: ModuleType | None) -> None:
        self._json = options.json
        self._stream = sys.stderr if options.output == STANDARD else sys.stdout
        # Elsewhere than on a terminal, rich would break lines at a width that nobody has.
        self._rich = rich if self._stream is not None and self._stream.isatty() else None
        self._first = True

    def show(self, report: Report) -> None:
        """Print one report, at once."""
        if self._stream is None:
            return
        if self._json:
            self._stream.write(report.to_json() + "\n")
        elif report.error is None or report.packets_in:
            if self._rich is not None:
                self._rich.show(report, self._stream)
            else:
                self._stream.write(("" if self._first else "\n") + replay_tables.plain(report))
            self._first = False
        self._stream.flush()


class _Progress:
    """A bar on the terminal of standard error, once a file has taken a second."""

    def __init__(self, name: str, rich: ModuleType | None) -> None:
        self._name = name
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._rich = rich if terminal else None
        self._next = time.monotonic() + _BAR_AFTER
        self._bar: Any = None

    def __call__(self, reader: CaptureReader) -> None:
        if self._rich is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BAR_EVERY
        if self._bar is None:
            if not reader.size:  # a pipe
                return
            self._bar = self._rich.Bar(sys.stderr, self._name, reader.size)
        self._bar.update(reader.bytes_read)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
