"""Heat maps: how clients are related, and how tasks are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..results.pooled import Omega, correlation, read_covariances, read_rounds
from ..results.reader import read_matrices, read_summary
from .style import head, run_title, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_Matrices: TypeAlias = Mapping[int, NDArray[np.float64]]
_WORDS = {"R": "relatedness R", "q": "weights q"}
_MAX_TICKS = 20  # clients that are numbered along the edge


def draw_relations(run_dir: Path, _rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw the matrices between clients that a run stored.

    Returns
    -------
    list of Path
        ``relatedness.png`` where the method relates clients, ``weights.png`` where it
        weighs their models; for each the first and the last round.
    """
    summary, drawn = read_summary(run_dir), []
    for name, stem in (("R", "relatedness"), ("q", "weights")):
        matrices = read_matrices(run_dir, name)
        if matrices:
            figure = _relation_figure(name, matrices, summary)
            drawn.append(save(figure, run_dir / f"{stem}.png"))
    return drawn


def _relation_figure(
    name: str, matrices: _Matrices, summary: Mapping[str, Any]
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.9), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2)
    shown = [min(matrices), max(matrices)]
    off = np.concatenate([_off_diagonal(matrices[t]) for t in shown])
    off = off[np.isfinite(off)]
    # The diagonal of R is 1 by definition: colours are for the rest.
    low, high = (off.min(), off.max()) if len(off) and name == "R" else (0.0, 1.0)
    for axes, t in zip(panels, shown, strict=True):
        drawn = axes.imshow(matrices[t], vmin=low, vmax=max(high, low + 1e-9))
        axes.set_title(f"round {t}", fontsize=10)
        _number(axes, len(matrices[t]))
    figure.colorbar(drawn, ax=panels, shrink=0.8)
    head(figure, f"{_WORDS[name]}: {run_title(summary)}", "")
    return figure


def _off_diagonal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _number(axes: Axes, num_clients: int) -> None:
    ticks = range(0, num_clients, 1 + num_clients // _MAX_TICKS)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_xlabel("client")
    axes.tick_params(labelsize=8)


_MAX_NAME = 26  # letters; SIDER has names of 67
_COLUMNS = 4


def draw_task_relations(
    run_dir: Path, rounds: Sequence[int] | None = None
) -> list[Path]:
    """Draw Omega of each client as correlations of tasks.

    Makes ``task-covariance-round-<t>.png`` of each round that has a readable file.

    Parameters
    ----------
    run_dir : Path
        A results folder.
    rounds : sequence of int, optional
        If left out: the last that was kept.
    """
    kept = read_rounds(run_dir)
    summary = read_summary(run_dir)
    drawn = []
    for server_round in kept[-1:] if rounds is None else rounds:
        if covariances := read_covariances(run_dir, server_round):
            figure = _task_figure(covariances, summary, server_round)
            name = f"task-covariance-round-{server_round:06d}.png"
            drawn.append(save(figure, run_dir / name))
    return drawn


def _task_figure(
    covariances: Mapping[int, Omega], summary: Mapping[str, Any], server_round: int
) -> Figure:
    from matplotlib.figure import Figure

    shown = sorted({t for ids, _ in covariances.values() for t in ids})
    given = summary.get("tasks") or []
    names = [_short(given[t] if t < len(given) else f"task {t}") for t in shown]
    columns = min(_COLUMNS, len(covariances))
    rows = math.ceil(len(covariances) / columns)
    side = max(1.9, 0.17 * len(shown))
    figure = Figure(
        figsize=(2.6 + columns * (side + 0.25), 2.9 + rows * (side + 0.35)),
        dpi=150,
        layout="constrained",
    )
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(covariances) :]:
        axes.set_axis_off()
    owned = summary.get("owned_tasks") or {}
    image = None
    for axes, (client, omega) in zip(panels.flat, covariances.items(), strict=False):
        image = _panel(axes, omega, shown)
        axes.set_title(f"client {client}", fontsize=9, loc="left")
        _frame_own(axes, shown, owned.get(str(client), []))
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(shown)), names, fontsize=5.5)
    for axes in panels[-1, :]:
        axes.set_xticks(range(len(shown)), names, fontsize=5.5, rotation=90)
    assert image is not None
    bar = figure.colorbar(image, ax=panels, fraction=0.02, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    head(
        figure,
        f"How tasks relate: {run_title(summary)}, round {server_round}",
        "correlations by each client's Omega; framed: own; grey: not known",
    )
    return figure


def _panel(axes: Axes, omega: Omega, shown: Sequence[int]) -> Any:
    """Draw correlations of ``shown`` tasks; tasks that Omega lacks stay grey."""
    ids, values = omega
    table = np.full((len(shown), len(shown)), math.nan)
    at = [shown.index(t) for t in ids]
    table[np.ix_(at, at)] = correlation(values)
    np.fill_diagonal(table, math.nan)  # always 1: it would only hide the rest
    axes.set_facecolor("0.85")
    return axes.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")


def _frame_own(axes: Axes, shown: Sequence[int], own: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for task in own:
        if task in shown:
            corner = shown.index(task) - 0.5
            axes.add_patch(
                Rectangle((corner, corner), 1, 1, fill=False, color="black", lw=0.8)
            )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
