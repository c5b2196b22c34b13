"""Test loss over rounds, drawn from the results folders of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..results.reader import read_series, read_summary, value_table
from .run import ddof
from .style import finish, line, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Curve = tuple[list[int], NDArray[np.float64]]  # rounds, (num_rounds, num_clients)


def draw_losses(rows: Mapping[str, Sequence[Path]], out: Path) -> Path | None:
    """Draw mean and standard deviation over clients of the loss on their test sets.

    Parameters
    ----------
    rows : mapping
        Label -> results folders of one data set and split, one per seed. A client's
        loss in a round is its mean over seeds.
    out : Path
        PNG file to write.

    Returns
    -------
    Path or None
        ``out``, or None when no row has the losses of two rounds.

    Source
    ------
    Figure 4 of Xie et al. 2021, arXiv:2106.13423.
    """
    curves = {label: _curve(runs) for label, runs in rows.items()}
    kept = {label: of for label, of in curves.items() if len(of[0]) > 1}
    if not kept:
        return None
    read = [read_summary(run) for label in kept for run in rows[label]]
    return save(_loss_figure(kept, read), out)


def _curve(runs: Sequence[Path]) -> _Curve:
    """Read each client's loss as received, mean over the seeds of a row."""
    tables = [
        read_series(r, split="test", point="post_aggregation", metric="loss")
        for r in runs
    ]
    clients = sorted(set().union(*tables))
    joined = {
        c: {
            t: float(np.mean([of[c][t] for of in tables]))
            for t in tables[0].get(c, {})
            if all(t in of.get(c, {}) for of in tables)
        }
        for c in clients
    }
    return value_table(joined, clients)


def _loss_figure(
    curves: Mapping[str, _Curve], summaries: Sequence[Mapping[str, object]]
) -> Figure:
    seeds = ", ".join(sorted({str(s.get("seed")) for s in summaries}))
    first = summaries[0]
    figure, axes = new_figure(
        f"Test loss over rounds, {first.get('dataset')}",
        f"mean ± std over {first.get('num_clients')} clients, models as received;"
        f" seeds {seeds}; split seed {first.get('split_seed')}",
    )
    for k, (label, (at, values)) in enumerate(curves.items()):
        mean = np.nanmean(values, axis=1)
        std = np.nanstd(values, axis=1, ddof=ddof(values))
        style = line(k)
        low = np.maximum(mean - std, 0)
        axes.fill_between(
            at, low, mean + std, color=style["color"], alpha=0.12, linewidth=0
        )
        axes.plot(at, mean, linewidth=1.6, label=label, **style)
    axes.set_ylabel("test loss")
    axes.set_ylim(bottom=0)
    finish(axes, sorted({t for at, _ in curves.values() for t in at}), [])
    return figure
