"""A report, and progress, on a terminal: needs rich (the extra ``cli``), and is imported late."""

from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from netstack_gro.commands import replay_tables
from netstack_gro.commands.terminal import printable
from netstack_gro.replay import Report

__all__ = ["Bar", "show"]


def show(report: Report, stream: IO[str]) -> None:
    """Print the report to a terminal."""
    console = Console(file=stream, highlight=False)
    console.print(Text(replay_tables.title(report), style="bold"))
    grid = Table.grid(padding=(0, 2))
    for name, text in replay_tables.facts(report):
        wrong = name == "verified" and not report.verified
        grid.add_row(Text(f"  {name}", style="cyan"), Text(text, style="bold red" if wrong else ""))
    console.print(grid)
    for heading, rows in replay_tables.sections(report):
        table = Table(title=Text(heading, style="bold"), title_justify="left", box=None)
        table.add_column(
            "packets" if heading == replay_tables.NOT_MERGED else "times", justify="right"
        )
        table.add_column("what", no_wrap=True)
        table.add_column("meaning")
        for count, name, text in rows:
            table.add_row(f"{count:,}", Text(name, style="cyan"), text)
        console.print()
        console.print(table)
    console.print()


class Bar:
    """A progress bar over the ``total`` bytes of a file, gone when it is closed."""

    def __init__(self, stream: IO[str], name: str, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(file=stream),
            transient=True,
        )
        self._task = self._progress.add_task(escape(printable(name)), total=total)
        self._progress.start()

    def update(self, done: int) -> None:
        """``done`` bytes of the file were read."""
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
