"""Figures 2, 4a, 4b and 5 of the FCLG paper, from runs: accuracy against something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgraph_flwr.figures.style import GREY, finish, line, save

from .embedding_rows import EmbeddingGroup, RowName
from .embedding_runs import EmbeddingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = dict[float, list[float]]  # x -> accuracies in percent over seeds
Lines = dict[str, Points]


def draw_embedding_figures(
    groups: Sequence[EmbeddingGroup], folder: Path, *, transform: str
) -> list[Path]:
    """Draw what the runs allow.

    Parameters
    ----------
    groups : sequence of EmbeddingGroup
    folder : Path
        Created where it is missing.
    transform : str
        Whose accuracy is drawn.

    Returns
    -------
    list of Path
        ``rounds-*.png`` for each group. Of rows with two values or more of what is on
        the axis: ``local-epochs-*.png`` for a group; ``emd-*.png`` for a data set and
        number of clients; ``clients-*.png`` for a data set, partition and dominance.
        Rows that are evaluated per client are left out beside others.
    """
    drawn = []
    for group in groups:
        place = f"{_slug(group.dataset)}-{group.num_clients}-{group.split_hash[:6]}"
        facts = [*_facts(group), *_words([group], transform)]
        drawn.append(
            _draw(
                _over_rounds(group, transform),
                folder / f"rounds-{place}.png",
                title=f"Accuracy over rounds, {group.dataset}",
                facts=facts,
                xlabel="communication round",
            )
        )
        if lines := _several(_over_epochs(group, transform)):
            drawn.append(
                _draw(
                    lines,
                    folder / f"local-epochs-{place}.png",
                    title=f"Accuracy and local epochs, {group.dataset}",
                    facts=facts,
                    xlabel="local epochs per round",
                )
            )
    drawn += _across(
        groups,
        folder,
        transform,
        stem="emd",
        what="EMD of the split",
        same=lambda g: (g.dataset, f"{g.num_clients} clients"),
        x=lambda g: g.emd,
    )
    drawn += _across(
        groups,
        folder,
        transform,
        stem="clients",
        what="number of clients",
        same=lambda g: (g.dataset, _partition(g)),
        x=lambda g: g.num_clients,
    )
    return drawn


def _across(
    groups: Sequence[EmbeddingGroup],
    folder: Path,
    transform: str,
    *,
    stem: str,
    what: str,
    same: Callable[[EmbeddingGroup], tuple[str, str]],
    x: Callable[[EmbeddingGroup], float | None],
) -> list[Path]:
    """Draw one figure for each set of groups that differ in ``x`` alone."""
    sets: dict[tuple[str, str], list[EmbeddingGroup]] = {}
    for group in groups:
        if x(group) is not None:
            sets.setdefault(same(group), []).append(group)
    drawn = []
    for (dataset, rest), members in sets.items():
        lines: Lines = {}
        for group in members:
            at = x(group)
            assert at is not None
            for name, runs in _shown(group).items():
                if name not in group.guests:
                    points = lines.setdefault(str(name), {})
                    points.setdefault(float(at), []).extend(_last(runs, transform))
        if kept := _several(lines):
            drawn.append(
                _draw(
                    kept,
                    folder / f"{stem}-{_slug(dataset)}-{_slug(rest)}.png",
                    title=f"Accuracy and {what}, {dataset}",
                    facts=[rest, *_words(members, transform)],
                    xlabel=what,
                )
            )
    return drawn


def _over_rounds(group: EmbeddingGroup, transform: str) -> Lines:
    lines: Lines = {}
    for name, runs in _shown(group).items():
        points = lines.setdefault(str(name), {})
        for r in runs:
            for at in r.rounds:
                value = r.scores(at)[f"accuracy-{transform}"]
                points.setdefault(float(at), []).append(100 * value)
    return lines


def _over_epochs(group: EmbeddingGroup, transform: str) -> Lines:
    lines: Lines = {}
    for name, runs in _shown(group).items():
        if name in group.guests:
            continue
        points = lines.setdefault(str(name.without("local-epochs")), {})
        for r in runs:
            at = float(r.run.settings["local-epochs"])
            points.setdefault(at, []).extend(_last([r], transform))
    return lines


def _draw(
    lines: Mapping[str, Points],
    path: Path,
    *,
    title: str,
    facts: Sequence[str],
    xlabel: str,
) -> Path:
    figure, axes = _new_figure(title, facts)
    for k, (label, points) in enumerate(lines.items()):
        at = sorted(points)
        mean = np.array([np.mean(points[t]) for t in at])
        std = np.array(
            [np.std(points[t], ddof=1) if len(points[t]) > 1 else 0.0 for t in at]
        )
        style = line(k)
        axes.fill_between(
            at, mean - std, mean + std, color=style["color"], alpha=0.12, linewidth=0
        )
        axes.plot(
            at, mean, marker="o", markersize=3.6, linewidth=1.6, label=label, **style
        )
    axes.set_ylabel("clustering accuracy (%)")
    finish(axes, [], [])  # no rounds: the limits are set from the lines
    axes.set_xlabel(xlabel)
    if not all(t.is_integer() for points in lines.values() for t in points):
        from matplotlib.ticker import AutoLocator

        axes.xaxis.set_major_locator(AutoLocator())
    axes.margins(x=0.03)
    return save(figure, path)


def _new_figure(title: str, facts: Sequence[str]) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22)
    axes.text(
        0, 1.03, "; ".join(facts), transform=axes.transAxes, fontsize=8.5, color=GREY
    )
    return figure, axes


def _last(runs: Iterable[EmbeddingRun], transform: str) -> list[float]:
    return [100 * r.scores(r.last_round)[f"accuracy-{transform}"] for r in runs]


def _several(lines: Lines) -> Lines:
    """Keep the lines that have two points to join."""
    return {label: points for label, points in lines.items() if len(points) > 1}


def _shown(group: EmbeddingGroup) -> Mapping[RowName, list[EmbeddingRun]]:
    """Leave out rows that are evaluated per client, unless there is no other."""
    together = {
        name: runs
        for name, runs in group.rows.items()
        if all(r.is_pooled or r.is_centralised for r in runs)
    }
    return together or group.rows


def _facts(group: EmbeddingGroup) -> list[str]:
    emd = "unknown" if group.emd is None else f"{group.emd:.4f}"
    return [f"{group.num_clients} clients", f"EMD {emd}"]


def _words(groups: Sequence[EmbeddingGroup], transform: str) -> list[str]:
    counts = {len(runs) for g in groups for runs in _shown(g).values()}
    low, high = min(counts), max(counts)
    seeds = f"{low}" if low == high else f"{low} to {high}"
    words = [f"transform {transform}", f"mean over {seeds} seed{'s' * (high > 1)}"]
    if high > 1:
        words.append("bands ±1 std")
    if any(len(_shown(g)) < len(g.rows) for g in groups):
        words.append("rows per client left out")
    return words


def _partition(group: EmbeddingGroup) -> str:
    settings = group.runs[0].run.settings
    partition = str(settings.get("partition"))
    detail = {"dominance": "dominance", "dirichlet-labels": "dirichlet-alpha"}
    key = detail.get(partition)
    return f"{partition} {settings.get(key)}" if key else partition


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in text)
