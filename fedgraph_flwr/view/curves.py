"""Curves of a run, or of several: scores, updates, losses, gains of clients.

Only files are read, so a figure can be drawn again later, for a failed run too. What
is missing is left out. matplotlib is imported where it is used: a node that only
trains never pays for it; and ``Figure`` is used without pyplot, which keeps global
state and may look for a display.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.tasks import POOLED
from ..core.words import client_ranges, name_clients
from ..results.reader import (
    GainUnit,
    Partition,
    Series,
    last_clusters,
    present_clusters,
    read_partitions,
    read_scores,
    read_series,
    read_summary,
    split_rounds,
)
from .style import PALETTE, bare, finish, head, line, new_figure, run_title, save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BETTER, _WORSE = PALETTE[:2]
_WIDEST = 48.0  # inches, of some 145 clients; browsers open nothing of 65,536 pixels
_TIE = 1e-9  # points; rounding must not turn a tie into a loss


def draw_run(run_dir: Path, _rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw scores and norms of updates over the rounds of a run.

    Returns
    -------
    list of Path
        ``<metric>.png`` and ``update_norms.png``, each only if the folder has the
        data for it.
    """
    summary = read_summary(run_dir)
    partitions = read_partitions(run_dir)
    clusters = last_clusters(summary, partitions)
    splits = split_rounds(partitions)
    split = str(summary.get("split", "test"))
    metric = str(summary.get("metric", "accuracy"))
    point, scores = read_scores(run_dir, split=split, metric=metric)
    norms = read_series(run_dir, split="train", point="update", metric="update_norm")

    drawn = []
    if not scores.empty:
        figure = score_figure(
            scores, clusters, splits, summary, metric=metric, point=point
        )
        drawn.append(save(figure, run_dir / f"{metric}.png"))
    if not norms.empty:
        figure = _norms_figure(norms, clusters, splits, summary)
        drawn.append(save(figure, run_dir / "update_norms.png"))
    return drawn


def score_figure(
    series: Series,
    clusters: Partition,
    splits: list[int],
    summary: Mapping[str, Any],
    *,
    metric: str,
    point: str,
) -> Figure:
    """Draw scores of clusters and the mean over clients, over rounds."""
    rounds, mean = [*series.index], series.mean(axis=1)
    std = series.std(axis=1).fillna(0.0)

    what = f"{summary.get('split', 'test')} {metric}"
    figure, axes = _begin(summary, f"{what}, {point.replace('_', ' ')}")
    low, high = series.min(axis=1), series.max(axis=1)
    if len(series.columns) > 1:
        axes.fill_between(
            rounds,
            low,
            high,
            color="0.90",
            linewidth=0,
            label="all clients, min to max",
        )
        axes.fill_between(
            rounds,
            np.maximum(mean - std, low),
            np.minimum(mean + std, high),
            color="0.80",
            linewidth=0,
            label="±1 std over clients",
        )
    shown = present_clusters(clusters, series)
    for k, members in shown.items() if len(shown) > 1 else ():
        axes.plot(
            series[members].mean(axis=1).dropna(),
            alpha=0.9,
            linewidth=1.6 if len(members) > 1 else 0.9,
            label=_cluster_label(k, members),
            **line(k),
        )
    whose = "all clients together" if [*series] == [POOLED] else "mean over clients"
    axes.plot(mean, color="black", linewidth=2.4, label=whose)
    axes.set_ylabel(what)
    if summary.get("larger_is_better", True):
        axes.set_ylim(max(0.0, low.min() - 0.05), min(1.02, high.max() + 0.05))
    else:  # an error, of any unit
        axes.set_ylim(0.0, 1.05 * high.max())
    finish(axes, rounds, splits)
    return figure


def lines_figure(lines: pd.DataFrame, title: str, y_label: str) -> Figure:
    """Draw values by round, a line for each column."""
    figure, axes = new_figure(title, "")
    for k, label in enumerate(lines):
        axes.plot(lines[label].dropna(), label=label, **line(k))
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=min(0.0, *axes.get_ylim()))
    finish(axes, [*lines.index], [])
    return figure


def cluster_figure(partitions: Mapping[int, Partition], most: int) -> Figure:
    """Draw the cluster of each client, round by round.

    Rows are clients, by their last cluster; of more than ``most`` only the first.
    """
    from matplotlib.figure import Figure

    rounds = sorted(partitions)
    member_of = [
        {c: k for k, members in enumerate(partitions[t]) for c in members}
        for t in rounds
    ]
    last = member_of[-1]
    clients = sorted(
        {c for of in member_of for c in of}, key=lambda c: (last.get(c, len(last)), c)
    )[:most]
    figure = Figure(figsize=(8.4, 1.2 + 0.2 * len(clients)), layout="constrained")
    axes = figure.subplots()
    for row, client in enumerate(clients):
        of_client = [of.get(client) for of in member_of]
        spans = itertools.groupby(range(len(rounds)), key=of_client.__getitem__)
        for cluster, span in spans:
            if cluster is None:
                continue
            first, *_, end = (*(places := [*span]), places[-1] + 1)
            color = PALETTE[cluster % len(PALETTE)]
            axes.barh(row, end - first, left=first - 0.5, color=color)
            axes.text(first - 0.4, row, str(cluster), color="white", va="center")
    axes.set_yticks(range(len(clients)), [str(c) for c in clients], fontsize=8)
    ticks = range(0, len(rounds), 1 + len(rounds) // 10)
    axes.set_xticks(ticks, [str(rounds[k]) for k in ticks])
    axes.set_xlabel("communication round")
    axes.set_ylabel("client")
    axes.invert_yaxis()
    bare(axes)
    return figure


def _norms_figure(
    series: Series, clusters: Partition, splits: list[int], summary: Mapping[str, Any]
) -> Figure:
    figure, axes = _begin(
        summary, "norm of each client's update, coloured by its final cluster"
    )
    shown = present_clusters(clusters, series)
    cluster_of = {c: k for k, members in shown.items() for c in members}
    for client, values in series.items():
        how: dict[str, Any] = {
            "color": "0.6",
            "label": f"client {client}, in no cluster",
        }
        if (k := cluster_of.get(client)) is not None:
            members = shown[k]
            label = _cluster_label(k, members) if client == members[0] else None
            how = {**line(k), "label": label}  # one legend entry per cluster
        axes.plot(values.dropna(), linewidth=1.2, alpha=0.85, **how)
    axes.set_ylabel("L2 norm of the update")
    axes.set_ylim(bottom=0)
    finish(axes, [*series.index], splits)
    return figure


def gain_figure(
    panels: Mapping[str, list[dict[int, float]]],
    dataset: str,
    rule: str,
    metric: str,
    unit: GainUnit,
) -> Figure:
    """Draw gains over self-train: a panel of bars for each label, a bar per client.

    ``panels`` hold the gains of each seed by client, as ``client_gains`` gives them.
    """
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
        gains = [[of.get(c, math.nan) for c in clients] for of in runs]
        table = unit.factor * np.array(gains)
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


def _begin(summary: Mapping[str, Any], what: str) -> tuple[Figure, Axes]:
    facts = [
        what,
        f"{summary.get('num_clients', '?')} clients",
        f"split seed {summary.get('split_seed', '?')}",
    ]
    score = (summary.get("final") or {}).get("mean")
    if score is not None:
        facts.append(f"final mean {score:.3f}")
    if summary.get("adjusted_rand_index") is not None:
        facts.append(f"planted groups: ARI {summary['adjusted_rand_index']:.2f}")
    return new_figure(run_title(summary), "; ".join(facts))


def _cluster_label(k: int, members: Sequence[int]) -> str:
    if len(client_ranges(members)) > 18:
        return f"cluster {k}: {len(members)} clients"
    return f"cluster {k}: {name_clients(members)}"
