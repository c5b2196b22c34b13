"""Each client's gain over self-train, drawn from the summaries of several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..results.reader import GainUnit, client_gains, read_summary
from .style import bare, head, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BETTER, _WORSE = "#0072B2", "#D55E00"
_WIDEST = 48.0  # inches, of some 145 clients; browsers open nothing of 65,536 pixels
_TIE = 1e-9  # points; rounding must not turn a tie into a loss


def draw_gain(
    rows: Mapping[str, Sequence[Path]],
    local_runs: Sequence[Path],
    out: Path,
    *,
    rule: str = "final",
    metric: str = "",
) -> Path | None:
    """Draw each client's mean gain over self-train, paired by seed.

    Parameters
    ----------
    rows : mapping
        Label of a panel -> results folders of one data set and split.
    local_runs : sequence of Path
        Those of self-train.
    out : Path
        PNG file to write.
    rule : str
        ``"final"``, ``"best_val"`` or ``"best_snapshot"``, on both sides.
    metric : str
        Of the scores; "" is the runs' headline.

    Returns
    -------
    Path or None
        ``out``, or None when no run has a self-train partner with its seed.
    """
    local = {s.get("seed"): s for s in map(read_summary, local_runs)}
    dataset, measured, panels = "", "", dict[str, list[dict[int, float]]]()
    found = [(label, read_summary(run)) for label, runs in rows.items() for run in runs]
    for label, summary in found:
        partner = local.get(summary.get("seed"))
        if gains := client_gains(summary, partner or {}, rule, metric):
            dataset = str(summary.get("dataset", ""))
            measured = metric or str(summary.get("metric", "accuracy"))
            unit = GainUnit.of(summary, measured)
            scaled = {c: unit.factor * g for c, g in gains.items()}
            panels.setdefault(label, []).append(scaled)
    if not panels:
        return None
    return save(gain_figure(panels, dataset, rule, measured, unit), out)


def gain_figure(
    panels: Mapping[str, list[dict[int, float]]],
    dataset: str,
    rule: str,
    metric: str,
    unit: GainUnit,
) -> Figure:
    """Draw a panel of bars for each label, of the gains of each seed by client."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    widest = max(len(gains[0]) for gains in panels.values())
    width = max(6.4, 1.6 + 0.32 * widest)
    figure = Figure(
        figsize=(min(width, _WIDEST), 1.3 + 2.0 * len(panels)),
        dpi=150,
        layout="constrained",
    )
    grid = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)
    for axes, (name, runs) in zip(grid[:, 0], panels.items(), strict=True):
        clients = sorted(set().union(*runs))
        table = np.array([[gains.get(c, math.nan) for c in clients] for gains in runs])
        mean = np.nanmean(table, axis=0)
        is_tied = np.abs(mean) <= _TIE
        is_better = (mean > 0) & ~is_tied
        places = range(len(clients))
        axes.bar(places, mean, color=np.where(is_better, _BETTER, _WORSE), width=0.72)
        if len(runs) > 1:
            for row in table:
                axes.plot(
                    places,
                    row,
                    "o",
                    color="white",
                    markeredgecolor="0.25",
                    markersize=3.6,
                    markeredgewidth=0.8,
                )
        axes.axhline(0, color="0.2", linewidth=0.9)
        axes.set_title(
            f"{name}: mean gain {unit.as_text(mean.mean())} {unit.name}, "
            f"{is_better.sum()} of {len(clients)} clients better, {is_tied.sum()} tied",
            fontsize=10,
            loc="left",
        )
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
        axes.set_xlim(-0.7, len(clients) - 0.3)
        bare(axes)
        if width <= _WIDEST:
            axes.set_xticks(places, [str(c) for c in clients])
        axes.tick_params(axis="x", length=0, labelsize=8 if len(clients) > 20 else 9)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    num_seeds = sorted({len(runs) for runs in panels.values()})
    grid[-1, 0].set_xlabel("client")
    seeds = f"{' or '.join(map(str, num_seeds))} seed{'s' * (num_seeds[-1] > 1)}"
    dots = "; dots: single seeds" if num_seeds[-1] > 1 else ""
    figure.supylabel(f"gain over self-train ({unit.name})", fontsize=10)
    head(
        figure,
        f"Gain in test {metric} over self-train, {dataset}",
        f"rule {rule}, paired by seed, {seeds}{dots}",
    )
    return figure
