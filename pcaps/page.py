"""Writes this folder's README.md from `manifest.json`: `python -m pcaps.page`.

`python -m pcaps.record` does so too, after it replaced the captures.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["render", "write"]

FOLDER = Path(__file__).resolve().parent

HEAD = """\
# Captures of our own

Recorded from the Linux kernel's own TCP and UDP, between two network namespaces made with
pyroute2; these are from Linux 6.18. `make pcaps` (Linux, root) records them anew within seconds,
and replaces them only when every recording has shown what this page says of it. Times, sequence
numbers, IDs and the exact course of a connection differ from one recording to the next; addresses
(RFC 5737, RFC 3849), ports and payload do not.

All offloads are off, so each packet is one that a wire would have carried: none is larger than
its link's MTU, and every checksum is complete but in `sender-checksum-offload.pcap`. Captures are
taken where the data arrive, and hold both directions. Where a capture is said to come through a
forwarder, that is a program in user space between two veth pairs, which drops, swaps, duplicates
or marks some frames by a seeded generator; VLAN tags are put in the same way. So neither netem nor
VLAN devices are needed.

`manifest.json` has the counts of each file. They were made while recording, without the engine,
and the tests make them again with dpkt.

| file | packets | data | IP bytes at most | what it shows |
|---|---:|---:|---:|---|
"""


def render(manifest: dict[str, Any]) -> str:
    """The page as Markdown."""
    return HEAD + "".join(_row(name, entry) for name, entry in manifest.items())


def _row(name: str, entry: dict[str, Any]) -> str:
    facts = entry["facts"]
    data = facts.get("data", 0) + facts.get("udp", 0)
    shows = entry["shows"] + _cable(entry.get("cable", {}))
    return f"| `{name}` | {facts['packets']} | {data} | {facts['largest_ip']} | {shows} |\n"


def _cable(done: dict[str, int]) -> str:
    if not done:
        return ""
    return " Here: " + ", ".join(f"{number} {what}" for what, number in done.items()) + "."


def write() -> None:
    """Write README.md anew."""
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    (FOLDER / "README.md").write_text(render(manifest))


if __name__ == "__main__":
    write()
