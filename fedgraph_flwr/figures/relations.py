"""Who is related to whom: heat maps of a run's matrices, and how they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..results.reader import read_matrices, read_summary
from .style import GREY, bare, line, run_title, save

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
        weighs their models; for each the first and the last round, and between them
        the spread off the diagonal and the diagonal.
    """
    summary, drawn = read_summary(run_dir), []
    for name, stem in (("R", "relatedness"), ("q", "weights")):
        matrices = read_matrices(run_dir, name)
        if matrices:
            figure = _figure(name, matrices, summary)
            drawn.append(save(figure, run_dir / f"{stem}.png"))
    return drawn


def _figure(name: str, matrices: _Matrices, summary: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 3.9), dpi=150, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    shown = [min(matrices), max(matrices)]
    off = np.concatenate([_off_diagonal(matrices[t]) for t in shown])
    off = off[np.isfinite(off)]
    # The diagonal of R is 1 by definition: colours are for the rest.
    low, high = (off.min(), off.max()) if len(off) and name == "R" else (0.0, 1.0)
    for axes, t in zip((left, middle), shown, strict=True):
        drawn = axes.imshow(matrices[t], vmin=low, vmax=max(high, low + 1e-9))
        axes.set_title(f"round {t}", fontsize=10)
        _number(axes, len(matrices[t]))
    figure.colorbar(drawn, ax=[left, middle], shrink=0.8)
    _change(right, name, matrices)
    figure.suptitle(
        f"{_WORDS[name]}: {run_title(summary)}",
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
    )
    return figure


def _change(axes: Axes, name: str, matrices: _Matrices) -> None:
    """Draw how far entries off the diagonal spread; for weights also the diagonal."""
    rounds = sorted(matrices)
    rest = [_off_diagonal(matrices[t]) for t in rounds]
    curves = {"mean off the diagonal": _over(rest, np.mean)}
    if name == "q":
        diagonals = [np.diag(matrices[t]) for t in rounds]
        curves["mean own weight"] = _over(diagonals, np.mean)
        sums = [np.nansum(matrices[t], axis=0) / len(matrices[t]) for t in rounds]
        curves["largest share in all averages"] = _over(sums, np.max)
    low, high = _over(rest, np.min), _over(rest, np.max)
    axes.fill_between(rounds, low, high, color="0.88", label="range off the diagonal")
    for k, (label, values) in enumerate(curves.items()):
        axes.plot(rounds, values, label=label, **line(k))
    axes.set_xlabel("communication round")
    axes.grid(color="0.93")
    axes.legend(fontsize=8, frameon=False)
    bare(axes)
    axes.tick_params(colors=GREY)


def _over(rows: Sequence[NDArray[np.float64]], what: Any) -> list[float]:
    """Apply ``what`` to the finite numbers of each row; NaN if there are none."""
    kept = [row[np.isfinite(row)] for row in rows]
    return [float(what(row)) if len(row) else np.nan for row in kept]


def _off_diagonal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _number(axes: Axes, num_clients: int) -> None:
    ticks = range(0, num_clients, 1 + num_clients // _MAX_TICKS)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_xlabel("client")
    axes.tick_params(labelsize=8)
