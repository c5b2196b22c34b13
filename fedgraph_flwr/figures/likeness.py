"""Whether clients' graphs resemble each other, drawn from ``statistics.csv``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.likeness import STATISTICS
from .style import PALETTE, bare, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = {
    "num_graphs": "graphs",
    "nodes_per_graph": "nodes per graph",
    "degree": "mean degree",
    "homophily": "edge homophily",
}


def draw_statistics(run_dir: Path, rounds: Sequence[int] | None = None) -> list[Path]:  # noqa: ARG001
    """Draw class shares, sizes, degrees and homophily of each client.

    Returns
    -------
    list of Path
        ``statistics.png``; nothing without ``statistics.csv``, or if nobody told
        anything that is drawn.
    """
    path = run_dir / STATISTICS
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["num_graphs"]]
    if not rows:
        return []
    from matplotlib.figure import Figure

    names = [row["client"] for row in rows]
    counts = [c for c in rows[0] if c.startswith("count_")]
    wanted = _PANELS if counts else {"mean_0": "mean of the first target", **_PANELS}
    panels = [p for p in wanted if any(row.get(p) for row in rows)]
    if "num_graphs" in panels and all(row["num_graphs"] == "1" for row in rows):
        panels.remove("num_graphs")
    width = len(panels) + bool(counts)
    if not width:
        return []
    figure = Figure(figsize=(2.6 * width, 1.0 + 0.3 * len(rows)))
    axes = figure.subplots(1, width, sharey=True, squeeze=False)[0]
    if counts:
        _draw_shares(axes[0], names, [[_value(r[c]) for c in counts] for r in rows])
    for at, panel in zip(axes[width - len(panels) :], panels, strict=True):
        at.barh(names, [_value(row[panel]) for row in rows], color=PALETTE[0])
        at.set_xlabel(wanted[panel])
    axes[0].set_ylabel("client")
    axes[0].invert_yaxis()
    for at in axes:
        bare(at)
    figure.set_layout_engine("constrained")
    return [save(figure, run_dir / "statistics.png")]


def _draw_shares(axes: Axes, names: list[str], counts: list[list[float]]) -> None:
    """Draw a bar for each client, divided into its classes or targets."""
    begins = [0.0] * len(names)
    for k in range(len(counts[0])):
        shares = [row[k] / (sum(row) or 1.0) for row in counts]
        axes.barh(names, shares, left=begins, color=PALETTE[k % len(PALETTE)])
        begins = [a + b for a, b in zip(begins, shares, strict=True)]
    axes.set_xlabel("share of each class")


def _value(text: str) -> float:
    return float(text) if text else 0.0
