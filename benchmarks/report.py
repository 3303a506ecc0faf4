"""What every benchmark reports: rows for programs, in build/bench, and tables for people."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Row", "figure_row", "ratio_row", "ratio_table", "table", "write"]

RESULTS = Path("build/bench")

Row = dict[str, Any]
"""``case``, ``engine``, ``unit``, ``min``, ``median`` and ``runs``; of a ratio also ``against``.

Where the figure is held to one, ``target`` is what its median shall be at most.
"""


def figure_row(case: str, engine: str, unit: str, rounds: Sequence[float], **more: Any) -> Row:
    """The row of what was measured once a round."""
    return _row(case, engine, unit, rounds, 3) | more


def ratio_row(
    case: str, engine: str, rounds: Sequence[float], against: str, target: float, **more: Any
) -> Row:
    """The row of a ratio, of which there is one a round."""
    row = _row(case, engine, "ratio", rounds, 4)
    return row | {"against": against, "target": target} | more


def _row(case: str, engine: str, unit: str, rounds: Sequence[float], digits: int) -> Row:
    return {
        "case": case,
        "engine": engine,
        "unit": unit,
        "min": round(min(rounds), digits),
        "median": round(statistics.median(rounds), digits),
        "runs": len(rounds),
    }


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows as a list of JSON objects, in a folder that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def ratio_table(head: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows that have a target, and whether it was met."""
    cells = []
    for row in rows:
        digits = 3 if row["unit"] == "ratio" else 1
        cells.append(
            (
                row["case"],
                f"{row['median']:.{digits}f}",
                f"{row['min']:.{digits}f}",
                f"{row['target']:g}",
                "met" if row["median"] <= row["target"] else "missed",
                row.get("against", row["unit"]),
            )
        )
    return table((head, "median", "least", "target", "", "against"), cells, (1, 2, 3))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Columns of text, those of ``numbers`` set to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
