"""A probe's report on a terminal: needs rich (the extra ``cli``), and is imported late."""

from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from netstack_gro.commands import probe_tables
from netstack_gro.probe import Answer, Report

__all__ = ["show"]

_STYLES = {
    Answer.YES: "green",
    Answer.UNVERIFIABLE: "yellow",
    Answer.NO: "red",
    Answer.UNKNOWN: "yellow",
}


def show(report: Report, stream: IO[str]) -> None:
    """Print the report to a terminal."""
    console = Console(file=stream, highlight=False)
    console.print(Text(probe_tables.title(report), style="bold"))
    if report.problem:
        console.print(Text(report.problem, style="red"))
        return
    for heading, rows in probe_tables.sections(report):
        console.print()
        console.print(Text(heading, style="bold"))
        grid = Table.grid(padding=(0, 2))
        for answer, name, since, meaning in rows:
            style = _STYLES[Answer(answer)] if answer in _STYLES else ""
            grid.add_row(Text(answer, style=style), Text(name, style="cyan"), since, Text(meaning))
        console.print(grid)
    console.print()
    console.print(Text(probe_tables.TO_DO, style="bold"))
    for name, text in probe_tables.advice(report) or [("", probe_tables.NOTHING)]:
        console.print(Text(f"{name}: {text}" if name else text))
