"""What `live` shows on a terminal: needs rich (the extra ``cli``), and is imported late."""

from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from netstack_gro.commands import live_tables
from netstack_gro.samples import PacketSample, Sample

__all__ = ["Screen", "can_draw"]


def can_draw(stream: IO[str]) -> bool:
    """Whether a table can be drawn again in its place; not where TERM is dumb, for example."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


class Screen:
    """A table of the last second and of all of them, drawn again at every sample.

    It draws in the thread that calls, and at no other time.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, sample: Sample, total: Sample) -> None:
        """Draw the table again."""
        parts: list[Table | Text] = [Text(live_tables.title(total), style="bold"), Text()]
        numbers = _table("", "this second", "in all")
        for name, now, ever in live_tables.rows(sample, total):
            numbers.add_row(Text(name, style="cyan"), now, ever)
        parts.append(numbers)
        if isinstance(sample, PacketSample) and isinstance(total, PacketSample):
            verdicts = _table("verdict", "this second", "in all", "meaning")
            for name, now, ever, meaning in live_tables.verdicts(sample, total):
                verdicts.add_row(Text(name, style="cyan"), now, ever, meaning)
            parts += [Text(), verdicts]
        self._live.update(Group(*parts), refresh=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()

    def end(self, total: Sample) -> None:
        """Print the summary."""
        self._console.print(Text(live_tables.summary(total)), end="")


def _table(*headings: str) -> Table:
    """A table of a name, two numbers and perhaps a text."""
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in {1, 2} else "left", no_wrap=place < 3)
    return table
