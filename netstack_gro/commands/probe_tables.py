"""A probe's report for people: its words, and their layout as plain text."""

from collections.abc import Iterable, Iterator, Sequence

from netstack_gro.commands.terminal import printable
from netstack_gro.probe import Ability, Answer, InterfaceReport, ReceiveBuffer, Report

__all__ = ["NOTHING", "TO_DO", "advice", "aligned", "plain", "sections", "title"]

NOTHING = "everything works here"
TO_DO = "what to do"

_GROUPS = {
    "dispatchers": "dispatchers, with the Linux release that has what they need",
    "udp": "UDP sockets",
    "packet": "packet sockets",
    "tun": "TUN and TAP devices",
}

Row = tuple[str, ...]


def plain(report: Report) -> str:
    """The report as lines of text."""
    lines = [title(report)]
    if report.problem:
        lines += ["", f"  {report.problem}"]
        return "\n".join(lines) + "\n"
    for heading, rows in sections(report):
        lines += ["", f"  {heading}", *(f"    {line}" for line in aligned(rows))]
    lines += ["", f"  {TO_DO}"]
    lines += [f"    {name}: {text}" for name, text in advice(report)] or [f"    {NOTHING}"]
    return "\n".join(lines) + "\n"


def title(report: Report) -> str:
    """What the report is of."""
    user = "" if report.user is None else f", user {report.user}"
    system = printable(f"{report.system} {report.release}")
    return f"netstack-gro {report.version}, {report.engine} engine, {system}{user}"


def sections(report: Report) -> Iterator[tuple[str, list[Row]]]:
    """Headings, each with its rows: an answer, a name, a release, and what it is about."""
    rows: list[Row] = [
        ("yes" if right.effective else "no", right.name, "", right.meaning)
        for right in report.rights
    ]
    yield "rights", rows
    for group, heading in _GROUPS.items():
        rows = [_row(each) for each in report.abilities if each.group == group]
        if group == "udp" and report.receive_buffer is not None:
            buffer = report.receive_buffer
            answer = "yes" if buffer.enough else "no"
            rows.append((answer, "SO_RCVBUF", "", _buffer(buffer)))
        yield heading, rows
    if report.interface is not None:
        yield _interface(report.interface), _features(report.interface)


def advice(report: Report) -> list[tuple[str, str]]:
    """What to do, each once, with the first name that it is about."""
    wanted: dict[str, str] = {}
    for name, text in _all_advice(report):
        if text:
            wanted.setdefault(text, name)
    return [(name, text) for text, name in wanted.items()]


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The rows as lines whose columns stand under each other, without those that are empty."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True) if width]
        yield "  ".join(cells).rstrip()


def _row(ability: Ability) -> Row:
    meaning = ability.meaning
    if ability.detail:
        meaning += f": {ability.detail}"
    return ability.answer, ability.name, ability.since, meaning


def _buffer(buffer: ReceiveBuffer) -> str:
    limit = "unknown" if buffer.limit is None else f"{buffer.limit:,}"
    return (
        f"room for {buffer.trains:,} unread trains of 64 KiB, {buffer.wanted_trains:,} wanted "
        f"(net.core.rmem_max: {limit} bytes)"
    )


def _interface(found: InterfaceReport) -> str:
    if not found.index:
        return f"{printable(found.name)}: {found.problem}"
    words = [f"{found.link or 'no link layer that is understood'} (ARPHRD {found.hardware})"]
    words += list(dict.fromkeys(each for each in (found.kind, found.driver) if each))
    if found.peer_index:
        words.append(f"other end {found.peer or f'interface {found.peer_index} elsewhere'}")
    words += ["up" if found.up else "down", *(["no carrier"] if found.up > found.running else [])]
    words.append(f"MTU {found.mtu:,}")
    if found.problem:
        words.append(found.problem)
    return f"{printable(found.name)}: {', '.join(words)}"


def _features(found: InterfaceReport) -> list[Row]:
    rows: list[Row] = []
    for each in found.features:
        state = "none" if each.on is None else "on" if each.on else "off"
        fixed = " (fixed)" if each.fixed else ""
        rows.append((state, each.name, each.since or "", each.meaning + fixed))
    for name, since, size, meaning in (
        ("gro_max_size", "5.19", found.gro_max_size, "what the kernel merges over IPv6"),
        ("gro_ipv4_max_size", "6.3", found.gro_ipv4_max_size, "what the kernel merges over IPv4"),
        ("gso_max_size", "", found.gso_max_size, "a super-packet that is sent"),
    ):
        text = "unknown" if size is None else f"{size:,} bytes"
        rows.append(("", name, since, f"the size of {meaning}, at most: {text}"))
    return rows if found.index else []


def _all_advice(report: Report) -> Iterator[tuple[str, str]]:
    for right in report.rights:
        yield right.name, right.advice
    for ability in report.abilities:
        if ability.answer is not Answer.YES:
            yield ability.name, ability.advice
    buffer = report.receive_buffer
    if buffer is not None and not buffer.enough:
        yield "SO_RCVBUF", f"sysctl -w net.core.rmem_max={buffer.wanted_bytes}"
    found = report.interface
    if found is None:
        return
    if not found.index:
        yield found.name, "ip link shows which interfaces there are"
    for text in found.merged_before:
        yield found.name, text
