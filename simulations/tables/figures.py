"""Figures of a study: differences with their intervals, scores against something."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.figures.style import GREY, PALETTE, bare, finish, line, save

from .differences import ENOUGH_PAIRS, Difference
from .embedding import ROUND, START
from .report import Rows, common_verdict, subtract
from .studies import Curve, Study, StudyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_INCHES = 0.22
COLOURS = {"shown": PALETTE[2], "contradicted": PALETTE[1]}
CAPTION = (
    f"difference in points, mean and 95 % interval; coloured if n >= {ENOUGH_PAIRS}"
    " pairs and the intervals of all measures exclude 0"
)
Points = list[tuple[float, list[float]]]  # x, scores of runs
Entry = tuple[str, Difference, str]  # label, difference, verdict


def draw_study(study: Study, found: Rows, folder: Path) -> list[Path]:
    """Draw what the results allow.

    Returns
    -------
    list of Path
        ``<study>-differences.png`` if a difference has runs, and ``<file>.png`` for
        each curve that has a line of two points or more.

    Raises
    ------
    FedGraphError
        There is nothing to draw.
    """
    panels = [(panel, _entries(study, panel, found)) for panel in study.figure]
    panels = [(panel, entries) for panel, entries in panels if entries]
    drawn = []
    if panels:
        path = folder / f"{study.name}-differences.png"
        drawn.append(draw_differences(study, panels, path))
    for curve in study.curves:
        lines = {k: _points(points, study, found) for k, points in curve.lines.items()}
        if kept := {label: of for label, of in lines.items() if len(of) > 1}:
            drawn.append(draw_curve(curve, kept, folder / f"{curve.file}.png"))
    if not drawn:
        raise FedGraphError(
            f"nothing to draw: no difference of [[figure]] in studies/{study.name}.toml"
            " has runs on both sides, and no line of a [[curve]] has two points"
        )
    return drawn


def _entries(study: Study, panel: StudyTable, found: Rows) -> list[Entry]:
    """Differences of a panel that have a pair, with their labels."""
    entries = []
    for (a, b), label in zip(panel.differences, panel.labels, strict=True):
        difference = subtract(a, b, study.rule, found)
        if difference is not None and difference.num_pairs:
            word = common_verdict(study, a, b, found)
            entries.append((label or f"{a} - {b}", difference, word))
    return entries


def draw_differences(
    study: Study, panels: Sequence[tuple[StudyTable, list[Entry]]], path: Path
) -> Path:
    """Draw one panel below the other: a dot for the mean, a line for the interval."""
    from matplotlib.figure import Figure

    sizes = [len(entries) for _, entries in panels]
    height = ROW_INCHES * sum(sizes) + 0.5 * len(panels) + 0.6
    figure = Figure(figsize=(8.4, height), dpi=150, layout="constrained")
    grid = figure.subplots(
        len(panels),
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[n + 0.8 for n in sizes],
    )
    for axes, (panel, entries) in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, panel.title, entries, study)
    figure.supxlabel(CAPTION, fontsize=9)
    return save(figure, path)


def _draw_panel(axes: Axes, title: str, entries: list[Entry], study: Study) -> None:
    labels = []
    for at, (label, difference, word) in enumerate(entries):
        interval = difference.interval(study.interval)
        draw_interval(axes, at, difference.mean, interval, word)
        labels.append((label, difference.num_pairs))
    name_intervals(axes, labels)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def draw_interval(
    axes: Axes, at: int, mean: float, interval: tuple[float, float], word: str
) -> None:
    """Draw a dot for the mean of a difference, and a line for its interval."""
    color = COLOURS.get(word, GREY)
    if not math.isnan(interval[0]):
        axes.plot(interval, [at, at], color=color, linewidth=1.6)
    axes.plot(mean, at, "o", color=color, markersize=4.5)


def name_intervals(axes: Axes, labels: Sequence[tuple[str, int]]) -> None:
    """Name each line, with its number of pairs; the first line is on top."""
    axes.axvline(0, color="0.35", linewidth=0.8)
    names = [f"{label} (n={num_pairs})" for label, num_pairs in labels]
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="0.93")
    axes.set_axisbelow(True)
    bare(axes)


def _points(
    line: Sequence[tuple[float, str]] | str, study: Study, found: Rows
) -> Points:
    """Scores of the runs at each point of a line, in the order of x."""
    known: dict[float, list[float]] = {}
    if isinstance(line, str):
        for r in found.get(line, []):
            for measure, score in r.scores.items():
                if measure == START or measure.startswith(ROUND):
                    at = float(measure.removeprefix(ROUND).replace(START, "0"))
                    known.setdefault(at, []).append(score)
    else:
        for x, row in line:
            scores = [r.scores.get(study.rule) for r in found.get(row, [])]
            known |= {x: kept} if (kept := [s for s in scores if s is not None]) else {}
    return sorted(known.items())


def draw_curve(curve: Curve, lines: dict[str, Points], path: Path) -> Path:
    """Draw mean and one standard deviation over runs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(8.4, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_title(curve.title, loc="left", fontsize=12, fontweight="bold")
    for k, (label, points) in enumerate(lines.items()):
        at = [x for x, _ in points]
        means = [statistics.fmean(scores) for _, scores in points]
        stds = [statistics.stdev(s) if len(s) > 1 else 0.0 for _, s in points]
        low = [m - s for m, s in zip(means, stds, strict=True)]
        high = [m + s for m, s in zip(means, stds, strict=True)]
        style = line(k)
        axes.fill_between(at, low, high, color=style["color"], alpha=0.12, linewidth=0)
        # Equal lines: the markers of those below are seen around those above.
        size = 3.6 + 1.4 * (len(lines) - 1 - k)
        axes.plot(
            at, means, marker="o", markersize=size, linewidth=1.6, label=label, **style
        )
    axes.set_ylabel("score, mean ± std over runs")
    finish(axes, [], [])  # no rounds: the limits are set from the lines
    axes.set_xlabel(curve.x)
    if not all(x.is_integer() for points in lines.values() for x, _ in points):
        axes.xaxis.set_major_locator(AutoLocator())
    axes.margins(x=0.03)
    return save(figure, path)
