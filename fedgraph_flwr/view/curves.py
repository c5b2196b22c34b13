"""Curves of a run, or of several: scores, updates, losses, statistics of clients.

Only files are read, so a figure can be drawn again later, for a failed run too. What
is missing is left out. matplotlib is imported where it is used: a node that only
trains never pays for it; and ``Figure`` is used without pyplot, which keeps global
state and may look for a display.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.tasks import POOLED
from ..core.words import client_ranges, name_clients
from ..results.reader import (
    Partition,
    Series,
    last_clusters,
    present_clusters,
    read_partitions,
    read_scores,
    read_series,
    read_summary,
    split_rounds,
    value_table,
)
from .style import PALETTE, bare, finish, line, new_figure, run_title, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_run(run_dir: Path, _rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw scores and norms of updates over the rounds of a run.

    Parameters
    ----------
    run_dir : Path
        A results folder.

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
    if scores:
        figure = score_figure(
            scores, clusters, splits, summary, metric=metric, point=point
        )
        drawn.append(save(figure, run_dir / f"{metric}.png"))
    if norms:
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
    rounds, values = value_table(series, list(series))
    mean = np.nanmean(values, axis=1)
    std = np.nanstd(values, axis=1, ddof=ddof(values))

    what = f"{summary.get('split', 'test')} {metric}"
    figure, axes = _begin(summary, f"{what}, {point.replace('_', ' ')}")
    low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
    if len(series) > 1:
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
        at, of_members = value_table(series, members)
        axes.plot(
            at,
            np.nanmean(of_members, axis=1),
            alpha=0.9,
            linewidth=1.6 if len(members) > 1 else 0.9,
            label=_cluster_label(k, members),
            **line(k),
        )
    whose = "all clients together" if list(series) == [POOLED] else "mean over clients"
    axes.plot(rounds, mean, color="black", linewidth=2.4, label=whose)
    axes.set_ylabel(what)
    if summary.get("larger_is_better", True):
        axes.set_ylim(max(0.0, low.min() - 0.05), min(1.02, high.max() + 0.05))
    else:  # an error, of any unit
        axes.set_ylim(0.0, 1.05 * high.max())
    finish(axes, rounds, splits)
    return figure


def lines_figure(
    lines: Mapping[str, Mapping[int, float]], title: str, y_label: str
) -> Figure:
    """Draw values by round, a line for each label."""
    figure, axes = new_figure(title, "")
    for k, (label, values) in enumerate(lines.items()):
        axes.plot(list(values), list(values.values()), label=label, **line(k))
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=min(0.0, *axes.get_ylim()))
    finish(axes, sorted({t for values in lines.values() for t in values}), [])
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
    for k, members in shown.items():
        label: str | None = _cluster_label(k, members)
        for client in members:
            axes.plot(
                list(series[client]),
                list(series[client].values()),
                linewidth=1.2,
                alpha=0.85,
                label=label,
                **line(k),
            )
            label = None  # one legend entry per cluster
    for client in sorted(
        set(series) - {c for members in shown.values() for c in members}
    ):
        axes.plot(
            list(series[client]),
            list(series[client].values()),
            linewidth=1.0,
            color="0.6",
            label=f"client {client}, in no cluster",
        )
    axes.set_ylabel("L2 norm of the update")
    axes.set_ylim(bottom=0)
    finish(axes, sorted({t for of in series.values() for t in of}), splits)
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


def ddof(values: NDArray[np.float64]) -> int:
    """1 as everywhere in the results, unless a round has a single client."""
    return int((np.isfinite(values).sum(axis=1) > 1).all())
