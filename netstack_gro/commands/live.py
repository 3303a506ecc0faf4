"""``netstack-gro live``: packets of a running system through the engine, shown as it happens."""

import argparse
import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Protocol

from netstack_gro.commands import live_tables
from netstack_gro.commands.terminal import (
    DONE,
    UNREADABLE,
    complain,
    integer,
    interface_name,
    rich_module,
    say,
)
from netstack_gro.config import MAX_CAPACITY
from netstack_gro.dispatchers.ring import DEFAULT_CAPACITY
from netstack_gro.dispatchers.slab import LIVE_CAPACITY
from netstack_gro.errors import DeviceError, NotPermittedError
from netstack_gro.live import Live, observe_interface, observe_tun, observe_udp
from netstack_gro.probe.interface import describe
from netstack_gro.probe.rights import advice
from netstack_gro.replay import engine_name
from netstack_gro.samples import Sample, TrainSample

__all__ = ["add"]

_MAX_TRAINS = 1024  # what `UdpDispatcher` reads at once, at most

_EPILOG = """\
examples:
  sudo netstack-gro live --interface eth0
  sudo netstack-gro live --tun tun0 --duration 60
  netstack-gro live --udp '[::1]:4433' --json

The packets are only counted:
  --interface  sees copies of what the interface receives; the traffic goes its way. It takes
               CAP_NET_RAW. Where the kernel's own GRO is on, TCP comes merged already
               (already_aggregated): ethtool -K IF gro off has it come as it was on the wire. Over
               a veth and over lo it comes as the sender made it, uncut: ethtool -K PEER tso off
               gso off tx-udp-segmentation off, where PEER is the other end of the veth, or lo.
  --tun        consumes what the system sends into the device: nobody answers. The device is made
               unless it exists, and is gone afterwards unless it is persistent. Its addresses
               are yours to give: ip address add 192.0.2.1/24 dev NAME; ip link set NAME up.
               It takes CAP_NET_ADMIN, but for a device that belongs to the user.
  --udp        consumes the datagrams sent to ADDR:PORT, as [::1]:4433 or 127.0.0.1:4433; without
               an address, :4433, those to any. The kernel merges these; no right is needed.

exit status:
  0  done: interrupted (SIGINT, SIGTERM) or --duration was over; the summary has been printed
  1  standard output takes no more (a full disk)
  2  it could not begin (a right is missing: the message says which), the device is gone, or the
     command line is wrong

--json prints an object every second ("event": "sample"; the last is of what was left of one), and
in the end one for all of it ("event": "summary"). Both have the same keys:
  event, source, dispatcher, elapsed, interval, reads, dropped_by_kernel, losses
  --interface, --tun: packets_in, wire_packets_in, bytes_in, packets_out, bytes_out,
    super_packets, segments, segments_per_super_packet, largest_super_packet, verdicts, closed,
    packets_per_second_in, bits_per_second_in, packets_per_second_out, bits_per_second_out
  --udp: datagrams, bytes, trains, largest_train, sizes, datagrams_per_read,
    datagrams_per_second, bits_per_second
In losses, verdicts and closed, what is 0 is left out.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    command = commands.add_parser(
        "live",
        help="merge what an interface, a TUN device or a UDP socket receives, and show it",
        description="Run a dispatcher on a live source, and show once a second what it merges.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sources = command.add_mutually_exclusive_group(required=True)
    sources.add_argument(
        "--interface", metavar="IF", type=interface_name, help="copies of what IF receives"
    )
    sources.add_argument(
        "--tun", metavar="NAME", type=interface_name, help="what is sent into the TUN device NAME"
    )
    sources.add_argument(
        "--udp", metavar="ADDR:PORT", type=_address, help="what is sent to this UDP address"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object a second")
    command.add_argument(
        "--batch",
        type=_batch,
        metavar="N",
        help=f"read and merge up to N packets at once (default: {LIVE_CAPACITY}, with --ring "
        f"{DEFAULT_CAPACITY}); with --udp N trains (default: 8)",
    )
    command.add_argument(
        "--ring",
        action="store_true",
        help="read the interface through a memory-mapped ring: less work for each packet, and the "
        "kernel keeps a lone one back for about a millisecond",
    )
    command.add_argument(
        "--udp-merge",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="merge UDP as well (on unless --no-udp-merge is given)",
    )
    command.add_argument(
        "--offloads",
        action="store_true",
        help="have the kernel send its own super-packets and unfinished checksums into the TUN "
        "device; a persistent one keeps that setting",
    )
    command.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        default=1.0,
        help="show what came every SECONDS (default: 1)",
    )
    command.add_argument(
        "--duration", type=_seconds, metavar="SECONDS", help="end after so many seconds"
    )
    command.set_defaults(run=_live, check=partial(_check, command))


def _batch(text: str) -> int:
    return integer(text, 1, MAX_CAPACITY)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0.01 or more")
    return value


def _address(text: str) -> tuple[str, int]:
    """ADDR:PORT, with an IPv6 address in brackets (RFC 3986 section 3.2.2)."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDR:PORT, such as [::1]:4433")
    try:
        number = integer(port, 0, 65535)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: the port {error}") from error
    return host[1:-1] if bracketed else host.replace("*", ""), number


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name, source in (("ring", "interface"), ("offloads", "tun")):
        if getattr(options, name) and getattr(options, source) is None:
            parser.error(f"--{name} goes with --{source} only")
    if options.udp is not None and options.batch is not None and options.batch > _MAX_TRAINS:
        parser.error(
            f"argument --batch: '{options.batch}' is not an integer from 1 to {_MAX_TRAINS}, "
            "which is what --udp takes"
        )


def _live(options: argparse.Namespace) -> int:
    say(f"engine: {engine_name()}")
    with _signals() as signals:
        try:
            live = _open(options)
        except DeviceError as error:
            complain(str(error))
            if isinstance(error, NotPermittedError):
                _say_how(error)
            return UNREADABLE
        with live:
            signals.stops(live)
            printer = _printer(options)
            try:
                total = live.run(
                    printer.show,
                    every=options.interval,
                    duration=options.duration,
                    notice=complain,
                )
            finally:
                printer.close()
        printer.end(total)
        _explain_lone(options, total)
        if live.failure is not None:
            complain(str(live.failure))
            return UNREADABLE
    return DONE


def _open(options: argparse.Namespace) -> Live:
    """The source that was asked for. Raises DeviceError."""
    if options.interface is not None:
        live = observe_interface(
            options.interface, batch=options.batch, udp=options.udp_merge, ring=options.ring
        )
        _explain_interface(options.interface)
        return live
    if options.tun is not None:
        existed = bool(describe(options.tun).index)
        live = observe_tun(
            options.tun, batch=options.batch, udp=options.udp_merge, offloads=options.offloads
        )
        _explain_tun(live.name, existed)
        return live
    live = observe_udp(options.udp, batch=options.batch, gro=options.udp_merge)
    say(f"{live.name}: reading the datagrams that are sent to it")
    return live


def _explain_interface(name: str) -> None:
    say(f"{name}: reading copies of what it receives")
    found = describe(name)
    if not found.up:
        say(f"{name}: it is down; its packets come when it is up")
    for text in found.merged_before:
        say(f"{name}: {text}")


def _explain_tun(name: str, existed: bool) -> None:
    found = describe(name)
    say(f"{name}: {'attached' if existed else 'made'}; what is sent into it ends here")
    if not found.up:
        say("it has no packets before it is up; in another terminal, with addresses of yours:")
        say(f"  ip address add 192.0.2.1/24 dev {name}")
        say(f"  ip link set {name} up")
        if found.link == "ethernet":  # nobody answers who has the address
            say(f"  ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev {name}")
        say("  dd if=/dev/zero bs=1000 count=400 >/dev/udp/192.0.2.2/9    # bash")


def _explain_lone(options: argparse.Namespace, total: Sample) -> None:
    """What would make trains, where nothing but lone datagrams came."""
    if isinstance(total, TrainSample) and total.datagrams and not total.trains:
        if options.udp_merge:
            say(
                "each datagram came alone: trains come of a sender that uses UDP_SEGMENT (over "
                "loopback or a veth), or of an interface whose GRO merges UDP"
            )
        else:
            say("each datagram came alone: that is what --no-udp-merge asks for")


def _say_how(error: NotPermittedError) -> None:
    """How to come by the right that is missing."""
    if error.right is not None:
        say(advice(error.right))


class _Signals:
    """SIGINT and SIGTERM: the first ends the run, a second one whatever goes on after it."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._came = False

    def stops(self, live: Live) -> None:
        """The run to end; at once, if a signal has come."""
        self._live = live
        if self._came:
            live.stop()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        if self._live is not None:
            self._live.stop()


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Heed the signals; one that is ignored, as in the background of a shell, stays so."""
    handler = _Signals()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class _Printer(Protocol):
    """Shows samples."""

    def show(self, sample: Sample, total: Sample) -> None:
        """Show what came last."""

    def close(self) -> None:
        """Nothing comes any more."""

    def end(self, total: Sample) -> None:
        """Show what came in all."""


class _Objects:
    """Samples as JSON."""

    def show(self, sample: Sample, total: Sample) -> None:
        del total
        self._write(sample)

    def close(self) -> None:
        pass

    def end(self, total: Sample) -> None:
        self._write(total)

    @staticmethod
    def _write(sample: Sample) -> None:
        _write(sample.to_json() + "\n")


class _Lines:
    """Samples as lines of text."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, sample: Sample, total: Sample) -> None:
        del total
        text = live_tables.line(sample) + "\n"
        if self._shown % live_tables.HEADINGS_EVERY == 0:
            text = live_tables.headings(sample) + "\n" + text
        self._shown += 1
        _write(text)

    def close(self) -> None:
        pass

    def end(self, total: Sample) -> None:
        _write("\n" + live_tables.summary(total))


def _printer(options: argparse.Namespace) -> _Printer:
    if options.json:
        return _Objects()
    rich = None
    if sys.stdout is not None and sys.stdout.isatty():
        rich = rich_module("netstack_gro.commands.live_rich")
    if rich is None or not rich.can_draw(sys.stdout):
        return _Lines()
    screen: _Printer = rich.Screen(sys.stdout)
    return screen


def _write(text: str) -> None:
    """To standard output, where there is one, at once."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()
