"""``netstack-gro probe``: what this kernel, user and interface can do."""

import argparse
import sys

from netstack_gro.commands import probe_tables
from netstack_gro.commands.terminal import DONE, rich_module
from netstack_gro.probe import probe

__all__ = ["add"]

_EPILOG = """\
examples:
  netstack-gro probe
  netstack-gro probe --interface eth0
  netstack-gro probe --json

Everything is tried on a throw-away object, and no right is needed.

exit status:
  0  done, whatever is found
  1  standard output takes no more (a full disk)
  2  the command line is wrong

--json prints one object: version, engine, system, release, user, problem, rights, abilities,
receive_buffer, interface (null without --interface). Rights, abilities and an interface's features
are objects by name. An ability has group, answer, since, meaning, detail and advice; its answer is
yes, unverifiable (the kernel took it and cannot tell), no, or unknown (it could not be tried).
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    command = commands.add_parser(
        "probe",
        help="say what this kernel, user and interface can do, and what to do where they cannot",
        description="Find out what live dispatchers and sinks can use here: since which Linux "
        "release there is each of these things, and what to do where it does not work.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--interface", metavar="IF", help="describe this interface as well")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=_probe, check=None)


def _probe(options: argparse.Namespace) -> int:
    report = probe(options.interface)
    stream = sys.stdout
    if stream is None:
        return DONE
    if options.json:
        stream.write(report.to_json() + "\n")
        return DONE
    rich = rich_module("netstack_gro.commands.probe_rich") if stream.isatty() else None
    if rich is not None:
        rich.show(report, stream)
    else:
        stream.write(probe_tables.plain(report))
    return DONE
