"""Writes this folder's README.md from `manifest.json`: `python -m pcaps.page`.

What `replay` reports of each capture is put into the manifest first. `python -m pcaps.record`
does all this too, after it replaced the captures.
"""

import json
from pathlib import Path
from typing import Any

from netstack_gro.replay import ReplayOptions, replay

__all__ = ["render", "reported", "write"]

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

`manifest.json` has the counts of each file as "facts". They were made while recording, without
the engine, and the tests make them again with dpkt.

| file | packets | data | IP bytes at most | what it shows |
|---|---:|---:|---:|---|
"""


REPLAY = """
## What replay must report

`netstack-gro replay --verify FILE`, in batches of 64, must end with 0 and give these figures; the
tests hold it to them at both engines, and the verdicts to the counts that dpkt makes. The manifest
has them all as "replay". Segments are the packets in super-packets; not merged are the five most
frequent verdicts of the others.

| file | delivered | super-packets | segments | most in one | checksums to fill in | not merged |
|---|---:|---:|---:|---:|---:|---|
"""

REPORTED = (
    "packets_in",
    "packets_out",
    "super_packets",
    "segments",
    "largest_segments",
    "verdicts",
    "closed",
    "truncated",
    "already_aggregated",
    "checksum_offload",
    "verified",
)
"""What the manifest holds of a `Report`."""


def reported(path: Path) -> dict[str, Any]:
    """What replay says of a capture, in batches of 64."""
    report = json.loads(replay(path, ReplayOptions(batch=64, verify=True)).to_json())
    return {name: report[name] for name in REPORTED}


def render(manifest: dict[str, Any]) -> str:
    """The page as Markdown."""
    rows = "".join(_row(name, entry) for name, entry in manifest.items())
    reports = "".join(_replay_row(name, entry["replay"]) for name, entry in manifest.items())
    return HEAD + rows + REPLAY + reports


def _replay_row(name: str, report: dict[str, Any]) -> str:
    rest = {key: count for key, count in report["verdicts"].items() if key != "merged"}
    most = sorted(rest.items(), key=lambda item: (-item[1], item[0]))[:5]
    numbers = (
        report["packets_out"],
        report["super_packets"],
        report["segments"],
        report["largest_segments"],
        report["checksum_offload"]["transport"],
    )
    cells = " | ".join(map(str, numbers))
    return f"| `{name}` | {cells} | {', '.join(f'{count} {key}' for key, count in most)} |\n"


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
    """Write README.md anew, and what replay reports into the manifest."""
    path = FOLDER / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, entry in manifest.items():
        entry["replay"] = reported(FOLDER / name)
    path.write_text(json.dumps(manifest, indent=1) + "\n")
    (FOLDER / "README.md").write_text(render(manifest))


if __name__ == "__main__":
    write()
