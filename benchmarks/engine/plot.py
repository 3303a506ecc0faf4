"""The plot: what a packet costs by batch, and each limit beside what comes near it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.building import Missing

from .cases import LINEARISE, SEGMENT
from .settings import BASE, BATCHES

__all__ = ["draw"]

LINES: dict[str, dict[str, Any]] = {"1 flow, trusted": {}, "1 flow, verified": {"verify": True}}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows as SVG; `Missing` where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise Missing("no matplotlib: pip install matplotlib") from None
    mpl.use("svg")
    from matplotlib import pyplot as plt

    own = {row["case"]: row["median"] for row in rows if row["engine"] != "interpreted"}
    own = own or {row["case"]: row["median"] for row in rows}
    with plt.rc_context({"svg.hashsalt": "engine", "svg.fonttype": "none", "font.size": 9}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
        for label, fields in LINES.items():
            names = {count: replace(BASE, packets=count, **fields).name for count in BATCHES}
            found = {count: own[name] for count, name in names.items() if name in own}
            left.plot(list(found), list(found.values()), marker="o", label=label)
        left.set_xscale("log", base=2)
        left.set_xticks(BATCHES, [f"{count:,}" for count in BATCHES])
        left.set_xlabel("packets in a batch")
        left.set_ylabel("ns a packet")
        left.set_title("Merging, by batch")
        left.set_ylim(bottom=0)
        left.grid(visible=True, alpha=0.3)
        left.legend()
        bars = _bars(own)
        colours = ["tab:blue" if mine else "tab:gray" for _, _, mine in bars]
        drawn = right.barh([name for name, _, _ in bars], [ns for _, ns, _ in bars], color=colours)
        right.bar_label(drawn, fmt="%.1f", padding=3)
        right.invert_yaxis()
        right.margins(x=0.12)
        right.set_xlabel("ns a packet of 1,448 bytes of payload")
        right.set_title("Beside memcpy and sums in C (gray)")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _bars(own: Mapping[str, float]) -> list[tuple[str, float, bool]]:
    """Name, time, and whether it is the engine's."""
    bars = [(name, ns, False) for name, ns in own.items() if name.startswith("memcpy")]
    bars += [(name, own[name], True) for name in (*LINEARISE, SEGMENT) if name in own]
    bars += [
        (name, ns, False)
        for name, ns in own.items()
        if name.startswith("sum, ") and "ring" not in name
    ]
    trusted, verified = BASE.name, replace(BASE, verify=True).name
    if trusted in own and verified in own:
        bars.append(("verified less trusted", own[verified] - own[trusted], True))
    return bars
