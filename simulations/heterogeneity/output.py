"""Tables, CSV files and the figure of the analysis of heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgraph_flwr.figures.style import GREY, PALETTE, bare, save
from fedgraph_flwr.files import write_csv

from ..markup import Sheet
from .groups import PairTable
from .random_graphs import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_PRINTED = 15  # pairs of groups; the CSV file has all
_COLOURS = {"structure": PALETTE[0], "features": PALETTE[1]}


@dataclass(frozen=True)
class Measure:
    """One kind of difference between graphs.

    ``groups`` and ``clusters`` (None without clusters) average it over pairs of graphs.
    ``within``, ``between`` and ``p`` are about clusters if there are any, else about
    groups; ``everyone`` is the mean over all pairs of graphs, without clusters or
    groups.
    """

    groups: PairTable
    clusters: PairTable | None
    within: float
    between: float
    everyone: float
    p: float


@dataclass(frozen=True)
class Part:
    """A group: its graphs, how many were drawn, how many have exact walks."""

    name: str
    num_graphs: int
    num_drawn: int
    num_exact: int
    beside_random: Sequence[Comparison]


@dataclass(frozen=True)
class Analysis:
    """Everything that the command found; measures are structure and features."""

    parts: Sequence[Part]
    clusters: Sequence[Sequence[int]]
    measures: Mapping[str, Measure]


def sheets(analysis: Analysis) -> Iterable[Sheet | str]:
    """Tables and sentences for the terminal, each at most 80 columns wide."""
    yield _groups(analysis)
    pairs = [pair for pair in _pairs(analysis) if pair[0] != pair[1]]
    if pairs and len(pairs) <= _MAX_PRINTED:
        yield _between(analysis, pairs)
    elif pairs:
        yield f"{len(pairs)} pairs of groups are in pairs.csv of --out, not here."
    if analysis.clusters:
        yield _clusters(analysis)
    yield from _sentences(analysis)
    if any(part.beside_random for part in analysis.parts):
        yield _beside_random(analysis)
        yield (
            "Each graph is compared with random graphs of as many nodes and edges."
            " p: paired t-test, two-sided, over n graphs."
        )


def _groups(analysis: Analysis) -> Sheet:
    rows = [
        [
            part.name,
            str(part.num_graphs),
            str(part.num_drawn),
            str(part.num_exact),
            *(_spread(m.groups, k, k) for m in analysis.measures.values()),
        ]
        for k, part in enumerate(analysis.parts)
    ]
    return Sheet(
        headings=["within", "graphs", "drawn", "exact", *analysis.measures],
        is_text=[True, False, False, False, False, False],
        cells=rows,
    )


def _between(analysis: Analysis, pairs: Sequence[tuple[int, int]]) -> Sheet:
    names = [part.name for part in analysis.parts]
    tables = [measure.groups for measure in analysis.measures.values()]
    return Sheet(
        headings=["between", "and", *analysis.measures],
        is_text=[True, True, False, False],
        cells=[
            [names[a], names[b], *(_spread(table, a, b) for table in tables)]
            for a, b in pairs
        ],
    )


def _clusters(analysis: Analysis) -> Sheet:
    tables = [m.clusters for m in analysis.measures.values() if m.clusters]
    return Sheet(
        headings=["within cluster", "clients", *analysis.measures],
        is_text=[True, True, False, False],
        cells=[
            [
                str(k),
                " ".join(map(str, members)),
                *(_spread(table, k, k) for table in tables),
            ]
            for k, members in enumerate(analysis.clusters)
        ],
    )


def _sentences(analysis: Analysis) -> Iterable[str]:
    what = "clusters" if analysis.clusters else "groups"
    moved = "clients" if analysis.clusters else "graphs"
    for name, m in analysis.measures.items():
        if not math.isfinite(m.everyone):
            continue  # no two graphs can be compared
        line = f"{name}: mean {_number(m.within)} within {what}"
        if math.isfinite(m.between):
            line += f", {_number(m.between)} between them, {_number(m.everyone)} in all"
        if math.isfinite(m.p):
            line += f"; p = {m.p:.3f} against {what} of {moved} drawn at random"
        yield line + "."


def _beside_random(analysis: Analysis) -> Sheet:
    return Sheet(
        headings=["group", "property", "real", "random", "p", "n"],
        is_text=[True, True, False, False, False, False],
        cells=[
            [part.name, c.name, _number(c.real), _number(c.random), _p(c.p),
             str(c.num_graphs)]
            for part in analysis.parts
            for c in part.beside_random
        ],
    )  # fmt: skip


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``pairs.csv``, ``clusters.csv``, ``random.csv`` and the figure.

    Raises
    ------
    StorageError
        A file cannot be written.
    """
    names = [part.name for part in analysis.parts]
    measures = analysis.measures.values()
    fields = ["mean", "std", "pairs"]
    columns = [f"{m}_{field}" for m in analysis.measures for field in fields]
    files: dict[str, list[list[str]]] = {
        "pairs.csv": [
            ["group", "other_group", *columns],
            *(
                [names[a], names[b], *_cells([m.groups for m in measures], a, b)]
                for a, b in _pairs(analysis)
            ),
        ]
    }
    if analysis.clusters:
        tables = [m.clusters for m in measures if m.clusters]
        files["clusters.csv"] = [
            ["cluster", "clients", *columns],
            *(
                [str(k), " ".join(map(str, members)), *_cells(tables, k, k)]
                for k, members in enumerate(analysis.clusters)
            ),
        ]
    beside = [(part, c) for part in analysis.parts for c in part.beside_random]
    if beside:
        files["random.csv"] = [
            ["group", "property", "real", "random", "p", "graphs"],
            *(
                [part.name, c.name, _full(c.real), _full(c.random), _full(c.p),
                 str(c.num_graphs)]
                for part, c in beside
            ),
        ]  # fmt: skip
    for name, rows in files.items():
        write_csv(folder / name, rows)
    return [*(folder / name for name in files), draw(analysis, folder)]


def draw(analysis: Analysis, folder: Path) -> Path:
    """Draw ``heterogeneity.png``: matrices of groups, or bars of clusters."""
    from matplotlib.figure import Figure

    count = len(analysis.clusters or analysis.parts)
    side = (1.6 + 0.3 * count) if analysis.clusters else (2.2 + 0.35 * count)
    figure = Figure(figsize=(2 * max(side, 3.0), max(side, 2.6)), dpi=120)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, 2)
    for axes, (name, measure) in zip(panels, analysis.measures.items(), strict=True):
        axes.set_title(f"heterogeneity of {name}", fontsize=10)
        if measure.clusters:
            _draw_bars(axes, measure, _COLOURS[name])
        else:
            _draw_matrix(axes, measure, [part.name for part in analysis.parts])
    return save(figure, folder / "heterogeneity.png")


def _draw_bars(axes: Axes, measure: Measure, colour: str) -> None:
    assert measure.clusters is not None
    heights = np.diag(measure.clusters.mean)
    axes.bar([str(k) for k in range(len(heights))], heights, color=colour)
    axes.axhline(measure.everyone, color=GREY, linestyle="--", label="all clients")
    axes.set_xlabel("cluster")
    axes.legend(frameon=False, fontsize=8.5)
    bare(axes)


def _draw_matrix(axes: Axes, measure: Measure, names: Sequence[str]) -> None:
    mean = measure.groups.mean
    image = axes.imshow(mean, cmap="viridis", vmin=0.0)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    if len(names) <= 10:
        middle = (np.nanmax(mean) if np.isfinite(mean).any() else 0.0) / 2
        for (a, b), value in np.ndenumerate(mean):
            ink = "black" if value > middle else "white"
            axes.text(b, a, _number(value, 2), ha="center", va="center", color=ink)


def _pairs(analysis: Analysis) -> list[tuple[int, int]]:
    return list(combinations_with_replacement(range(len(analysis.parts)), 2))


def _cells(tables: Iterable[PairTable], a: int, b: int) -> list[str]:
    return [
        cell
        for t in tables
        for cell in (_full(t.mean[a, b]), _full(t.std[a, b]), str(t.count[a, b]))
    ]


def _full(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _spread(table: PairTable, a: int, b: int) -> str:
    if not table.count[a, b]:
        return "-"
    return f"{table.mean[a, b]:.4f} ± {table.std[a, b]:.4f}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else _number(value)
