"""Figures of a run, drawn from the files of its results folder.

Only files are read, so a figure can be drawn again later, for a failed run too. What
is missing is left out. matplotlib is imported where it is used: a node that only
trains never pays for it; and ``Figure`` is used without pyplot, which keeps global
state and may look for a display.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .figure_style import GREY, bare, finish, line, save
from .figures_data import (
    Partition,
    Series,
    client_ranges,
    client_scores,
    present_clusters,
    read_partitions,
    read_series,
    read_summary,
    split_rounds,
    value_table,
)
from .figures_relations import draw_relations
from .tasks import POOLED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BETTER, _WORSE = "#0072B2", "#D55E00"


def draw_run(run_dir: Path) -> list[Path]:
    """Draw the figures of one run into its folder.

    Parameters
    ----------
    run_dir : Path
        A results folder.

    Returns
    -------
    list of Path
        What was drawn: ``<metric>.png``, ``update_norms.png`` and, of methods that
        weigh clients by each other, ``relatedness.png`` or ``weights.png``, each only
        where the folder has the data for it.
    """
    summary = read_summary(run_dir)
    partitions = read_partitions(run_dir)
    clusters = summary.get("clusters") or _last(partitions)
    splits = split_rounds(partitions)
    split = str(summary.get("split", "test"))
    metric = str(summary.get("metric", "accuracy"))
    # Self-train aggregates nothing: its trained models are all there is to show.
    for point in ("post_aggregation", "post_training"):
        scores = read_series(run_dir, split=split, point=point, metric=metric)
        if scores:
            break
    norms = read_series(run_dir, split="train", point="update", metric="update_norm")

    drawn = []
    if scores:
        figure = _score_figure(
            scores, clusters, splits, summary, metric=metric, point=point
        )
        drawn.append(save(figure, run_dir / f"{metric}.png"))
    if norms:
        figure = _norms_figure(norms, clusters, splits, summary)
        drawn.append(save(figure, run_dir / "update_norms.png"))
    return drawn + draw_relations(run_dir)


def draw_gain(
    runs: Sequence[Path],
    local_runs: Sequence[Path],
    out: Path,
    *,
    rule: str = "final",
    labels: Sequence[str] | None = None,
) -> Path | None:
    """Draw each client's mean gain over self-train, paired by seed.

    Parameters
    ----------
    runs, local_runs : sequence of Path
        Results folders of one data set and split; of self-train in ``local_runs``.
    out : Path
        PNG file to write.
    rule : str
        ``"final"``, ``"best_val"`` or ``"best_snapshot"``, on both sides.
    labels : sequence of str, optional
        Panel of each run; one panel per method when left out.

    Returns
    -------
    Path or None
        ``out``, or None when no run has a self-train partner with its seed.
    """
    local = {s.get("seed"): s for s in map(read_summary, local_runs)}
    dataset, panels = "", dict[str, list[dict[int, float]]]()
    names = labels if labels is not None else [""] * len(runs)
    for run_dir, name in zip(runs, names, strict=True):
        summary = read_summary(run_dir)
        partner = local.get(summary.get("seed"))
        ours, theirs = client_scores(summary, rule), client_scores(partner or {}, rule)
        gains = {c: 100 * (ours[c] - theirs[c]) for c in ours if c in theirs}
        if gains:
            dataset = str(summary.get("dataset", ""))
            panels.setdefault(name or str(summary.get("method")), []).append(gains)
    if not panels:
        return None
    return save(_gain_figure(panels, dataset, rule), out)


def _score_figure(
    series: Series,
    clusters: Partition,
    splits: list[int],
    summary: Mapping[str, Any],
    *,
    metric: str,
    point: str,
) -> Figure:
    rounds, values = value_table(series, list(series))
    mean = np.nanmean(values, axis=1)
    std = np.nanstd(values, axis=1, ddof=_ddof(values))

    what = f"{summary.get('split', 'test')} {metric}"
    figure, axes = _new_figure(summary, f"{what}, {point.replace('_', ' ')}")
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
    for k, members in enumerate(shown if len(shown) > 1 else []):
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


def _norms_figure(
    series: Series, clusters: Partition, splits: list[int], summary: Mapping[str, Any]
) -> Figure:
    figure, axes = _new_figure(
        summary, "norm of each client's update, coloured by its final cluster"
    )
    shown = present_clusters(clusters, series)
    for k, members in enumerate(shown):
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
    for client in sorted(set(series) - {c for members in shown for c in members}):
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


def _gain_figure(
    panels: Mapping[str, list[dict[int, float]]], dataset: str, rule: str
) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    widest = max(len(gains[0]) for gains in panels.values())
    figure = Figure(
        figsize=(max(6.4, 1.6 + 0.32 * widest), 1.3 + 2.0 * len(panels)),
        dpi=150,
        layout="constrained",
    )
    grid = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)
    for axes, (name, runs) in zip(grid[:, 0], panels.items(), strict=True):
        clients = sorted(set().union(*runs))
        table = np.array([[gains.get(c, math.nan) for c in clients] for gains in runs])
        mean = np.nanmean(table, axis=0)
        improved = mean >= -1e-9  # rounding must not turn a tie into a loss
        axes.bar(clients, mean, color=np.where(improved, _BETTER, _WORSE), width=0.72)
        if len(runs) > 1:
            for row in table:
                axes.plot(
                    clients,
                    row,
                    "o",
                    color="white",
                    markeredgecolor="0.25",
                    markersize=3.6,
                    markeredgewidth=0.8,
                )
        axes.axhline(0, color="0.2", linewidth=0.9)
        axes.set_title(
            f"{name}: mean gain {mean.mean():+.1f} points, "
            f"{improved.sum()} of {len(clients)} clients not worse",
            fontsize=10,
            loc="left",
        )
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
        axes.set_xlim(clients[0] - 0.7, clients[-1] + 0.7)
        bare(axes)
        axes.set_xticks(clients)
        axes.tick_params(axis="x", length=0, labelsize=8 if len(clients) > 20 else 9)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    num_seeds = sorted({len(runs) for runs in panels.values()})
    grid[-1, 0].set_xlabel("client")
    seeds = f"{' or '.join(map(str, num_seeds))} seed{'s' * (num_seeds[-1] > 1)}"
    dots = "; dots: single seeds" if num_seeds[-1] > 1 else ""
    figure.supylabel("gain over self-train (points)", fontsize=10)
    figure.suptitle(
        f"Gain in test accuracy over self-train, {dataset}\n",
        fontsize=12,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.text(
        0.01,
        1 - 0.42 / figure.get_figheight(),
        f"rule {rule}, paired by seed, {seeds}{dots}",
        fontsize=8.5,
        color=GREY,
        va="center",
    )
    return figure


def _new_figure(summary: Mapping[str, Any], what: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    unknown = "?"
    facts = [
        what,
        f"{summary.get('num_clients', unknown)} clients",
        f"split seed {summary.get('split_seed', unknown)}",
    ]
    score = (summary.get("final") or {}).get("mean")
    if score is not None:
        facts.append(f"final mean {score:.3f}")
    if summary.get("adjusted_rand_index") is not None:
        facts.append(f"planted groups: ARI {summary['adjusted_rand_index']:.2f}")
    failed = " (FAILED)" if summary.get("status") == "failed" else ""
    axes.set_title(
        f"{summary.get('method', unknown)} on {summary.get('dataset', unknown)}, "
        f"seed {summary.get('seed', unknown)}{failed}",
        loc="left",
        fontsize=12,
        fontweight="bold",
        pad=22,
    )
    axes.text(
        0, 1.03, "; ".join(facts), transform=axes.transAxes, fontsize=8.5, color=GREY
    )
    return figure, axes


def _cluster_label(k: int, members: Sequence[int]) -> str:
    ids = client_ranges(members)
    if len(ids) > 18:
        return f"cluster {k + 1}: {len(members)} clients"
    return f"cluster {k + 1}: client{'s' * (len(members) > 1)} {ids}"


def _ddof(values: NDArray[np.float64]) -> int:
    """1 as everywhere in the results, unless a round has a single client."""
    return int((np.isfinite(values).sum(axis=1) > 1).all())


def _last(partitions: Mapping[int, Partition]) -> Partition:
    return partitions[max(partitions)] if partitions else []
