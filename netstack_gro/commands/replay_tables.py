"""A report for people: its words, and their layout as plain text (`replay_rich` has another)."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from netstack_gro.capture import LINK_NAMES
from netstack_gro.commands.terminal import printable
from netstack_gro.explain import CLOSE_REASONS, VERDICTS
from netstack_gro.replay import Report
from netstack_gro.verdicts import Verdict

__all__ = ["NOT_MERGED", "Counted", "facts", "plain", "sections", "title"]

NOT_MERGED = "why the rest was not merged"
_ENDED = "why nothing more was appended to what could be merged"


def plain(report: Report) -> str:
    """The report as lines of text, all within the width that their words need."""
    lines = [title(report)]
    known = list(facts(report))
    width = max(len(name) for name, _ in known)
    lines += [f"  {name:<{width}}  {text}" for name, text in known]
    for heading, rows in sections(report):
        lines += ["", f"  {heading}"]
        numbers = max(len(f"{count:,}") for count, _, _ in rows)
        names = max(len(name) for _, name, _ in rows)
        lines += [f"  {count:>{numbers},}  {name:<{names}}  {text}" for count, name, text in rows]
    return "\n".join(lines) + "\n"


def title(report: Report) -> str:
    """The file, what is in it, and how it was replayed."""
    links = ", ".join(
        f"{LINK_NAMES[number]} ({number})" if number in LINK_NAMES else f"link type {number}"
        for number in report.link_types
    )
    if report.window_ns is None:
        batches = f"batches of {report.batch:,}"
    else:
        batches = f"windows of {report.window_ns / 1e9:g} s"
    return f"{printable(report.file)}: {links or 'no interface'}, {batches}"


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What happened, as names and sentences."""
    yield "read", f"{_count(report.packets_in, 'packet')}, {_count(report.bytes_in, 'byte')}"
    fewer = 100 - 100 * report.packets_out / report.packets_in if report.packets_in else 0
    text = f"{_count(report.packets_out, 'packet')}, {_count(report.bytes_out, 'byte')}"
    yield "delivered", f"{text} ({fewer:.0f} % fewer packets)"
    yield "merged", _merged(report)
    if report.already_aggregated:
        text = _count(report.already_aggregated, "packet")
        yield "aggregated", f"{text} held several when captured, and were passed on as they are"
    transport, header = report.checksum_offload.values()
    early = "captured before their checksum was filled in"
    if transport:
        yield "checksums", f"{_count(transport, 'packet')} {early} (TCP, UDP), merged as partial"
    if header:
        yield "checksums", f"{_count(header, 'packet')} {early} (IPv4 header)"
    if report.truncated:
        yield "truncated", f"{_count(report.truncated, 'packet')} only partly in the file"
    used = sum(1 for each in report.interfaces if each["packets"])
    if used > 1:
        yield "interfaces", f"{used:,}, each merged by an engine of its own"
    if report.verified:
        yield "verified", "yes: cut again, every packet is as in the file, once and in order"
    elif report.verified is not None:
        yield "verified", f"NO: {_count(len(report.faults), 'fault')}"


def _merged(report: Report) -> str:
    if not report.super_packets:
        return "nothing"
    each = report.segments / report.super_packets
    packets = _count(report.segments, "packet")
    return (
        f"{packets} into {_count(report.super_packets, 'super-packet')}: {each:.1f} in each, "
        f"at most {report.largest_segments:,}; the largest has {report.largest_bytes:,} bytes"
    )


class Counted(Protocol):
    """Packets by verdict and heads by the reason that closed them, as `Report` has them."""

    @property
    def verdicts(self) -> Mapping[str, int]:
        """Packets by the lower-case name of their `Verdict`."""

    @property
    def closed(self) -> Mapping[str, int]:
        """Heads by the lower-case name of their `CloseReason`."""


def sections(report: Counted) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """Headings, each with its rows of a count, a name and its meaning."""
    verdicts = dict(report.verdicts)
    verdicts.pop(Verdict.MERGED.name.lower(), None)
    rows = _rows(verdicts, {each.name.lower(): text for each, text in VERDICTS.items()})
    if rows:
        yield NOT_MERGED, rows
    reasons = {each.name.lower(): text for each, text in CLOSE_REASONS.items()}
    rows = _rows(report.closed, reasons)
    if rows:
        yield _ENDED, rows


def _rows(counts: Mapping[str, int], meanings: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """The counts, the largest first, each with its name and meaning."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [(count, name, meanings[name]) for name, count in ordered]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
