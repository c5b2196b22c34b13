"""Maps of graph embeddings: t-SNE and PCA, coloured by class and by client.

Drawn from the files of a results folder, as every figure; what is missing or cut short
is left out. t-SNE keeps neighbours and distorts distances and sizes of groups, hence
the PCA beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.embedding_scores import one_thread, transform
from ..core.errors import DataError
from ..core.seeding import derive_seed, numpy_rng
from ..core.tasks import EMBEDDINGS, round_numbers
from ..results.reader import read_npz, read_summary, round_files
from .style import PALETTE, bare, head, run_title, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "^", "s", "X")
_MAX_TSNE = 2000  # graphs; minutes beyond
_MIN_TSNE = 5
_MAX_SHOWN = 28  # legend entries, as many as there are colours and markers
_ARRAYS = ("embeddings", "labels", "clients", "graph_ids")
_Arrays = dict[str, NDArray[Any]]
_Points = NDArray[np.float64]  # (n, 2)


def draw_embeddings(run_dir: Path, rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw maps of a run's graph embeddings into its folder.

    Parameters
    ----------
    run_dir : Path
        A results folder with ``embeddings/round-<6 digits>.npz``.
    rounds : sequence of int, optional
        If left out: those that the run's ``embedding.figure-rounds`` names.

    Returns
    -------
    list of Path
        ``embeddings-round-<t>.png`` of each round that has a readable file. The run's
        seed chooses the graphs that t-SNE shows of more than 2000.
    """
    kept = round_files(run_dir / EMBEDDINGS)
    summary = read_summary(run_dir)
    if rounds is None:
        config = summary.get("config", {})
        rounds = [*round_numbers(config.get("embedding.figure-rounds", ""))]
    drawn = []
    for t in sorted({*rounds} & kept.keys()):
        if arrays := _read_round(kept[t]):
            figure = _embedding_figure(arrays, summary, t)
            drawn.append(save(figure, run_dir / f"embeddings-round-{t}.png"))
    return drawn


def _read_round(path: Path) -> _Arrays | None:
    try:
        file = read_npz(path)
        arrays = {name: file[name] for name in _ARRAYS}
    except (DataError, KeyError):
        return None
    x = arrays["embeddings"]
    if x.ndim != 2 or any(arrays[name].shape != x.shape[:1] for name in _ARRAYS[1:]):
        return None
    return arrays if np.isfinite(x).all(axis=1).any() else None


def _embedding_figure(arrays: _Arrays, summary: dict[str, Any], number: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    finite = np.isfinite(arrays["embeddings"]).all(axis=1)
    x = transform(arrays["embeddings"][finite], "l2")
    colours = {k: arrays[f"{k}s"][finite].astype(np.int64) for k in ("label", "client")}
    pca, components = _pca(x)
    everything = np.arange(len(x))
    maps = [("PCA", pca, everything, components)]
    if len(x) >= _MIN_TSNE:
        maps.insert(0, _tsne(x, pca, int(summary.get("seed", 0))))
    figure = Figure(
        figsize=(9.6, 1.6 + 4.0 * len(maps)),
        dpi=150,
        layout=ConstrainedLayoutEngine(h_pad=0.1),
    )
    grid = figure.subplots(len(maps), 2, squeeze=False)
    for row, (title, points, shown, axis_labels) in zip(grid, maps, strict=True):
        for axes, what in zip(row, colours, strict=True):
            word = what.replace("label", "class")
            values = colours[what]
            _scatter(axes, points, values[shown], np.unique(values), word)
            axes.set_title(f"{title}, by {word}", fontsize=10, loc="left")
            axes.set_xlabel(axis_labels[0])
            axes.set_ylabel(axis_labels[1])
            if not any(axis_labels):  # t-SNE has no units
                axes.set_xticks([])
                axes.set_yticks([])
    for axes in grid[-1]:
        _legend(axes)
    facts = [
        f"graph embeddings after round {number}, rows of length 1",
        f"{len(x)} graphs",
        f"{len(np.unique(colours['client']))} clients",
    ]
    if left_out := int((~finite).sum()):
        facts.append(f"{left_out} graphs with NaN or infinite entries left out")
    head(figure, run_title(summary), "; ".join(facts))
    return figure


def _pca(x: NDArray[np.float64]) -> tuple[_Points, tuple[str, str]]:
    """Project on the two directions of most variance; the sign of each is fixed."""
    centred = x - x.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    peak = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), peak])
    points = np.zeros((len(x), 2))
    points[:, : len(directions)] = centred @ (directions * signs[:, None]).T
    total = float((singular**2).sum()) or 1.0
    first, second, *_ = (100 * float(s**2) / total for s in (*singular, 0.0))
    return points, (f"component 1 ({first:.0f} %)", f"component 2 ({second:.0f} %)")


def _tsne(
    x: NDArray[np.float64], start: _Points, seed: int
) -> tuple[str, _Points, NDArray[np.int64], tuple[str, str]]:
    """Run t-SNE from the PCA, on one thread so that it can be repeated."""
    from sklearn.manifold import TSNE

    rows, title = np.arange(len(x)), "t-SNE"
    if len(x) > _MAX_TSNE:
        rng = numpy_rng(seed, "figure", "t-sne")
        rows = np.sort(rng.choice(len(x), _MAX_TSNE, replace=False))
        title = f"t-SNE of {_MAX_TSNE} of {len(x)} graphs"
    # scikit-learn's own scale of a start from PCA; all points may be equal.
    init = start[rows] * (1e-4 / (start[rows, 0].std() or 1.0))
    tsne = TSNE(
        perplexity=min(30.0, (len(rows) - 1) / 3),
        init=init.astype(np.float32),
        random_state=derive_seed(seed, "figure", "t-sne") % 2**32,
    )
    with one_thread():
        points = tsne.fit_transform(x[rows].astype(np.float32))
    return title, np.asarray(points, dtype=np.float64), rows, ("", "")


def _scatter(
    axes: Axes,
    points: _Points,
    values: NDArray[np.int64],
    known: NDArray[np.int64],
    what: str,
) -> None:
    counts = [int((values == value).sum()) for value in known]
    for k, value in enumerate(known):
        x, y = points[values == value].T
        axes.scatter(
            x,
            y,
            s=float(np.clip(5000 / len(values), 6, 36)),
            color=PALETTE[k % len(PALETTE)],
            marker=_MARKERS[k // len(PALETTE) % len(_MARKERS)],
            alpha=0.75,
            linewidths=0,
            # The small on top of the large, which would hide them.
            zorder=2 + sum(count > counts[k] for count in counts) / len(counts),
            label=f"{what} {value}",
        )
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    axes.margins(0.04)
    bare(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if (more := len(labels) - _MAX_SHOWN) > 0:
        handles, labels = handles[:_MAX_SHOWN], labels[:_MAX_SHOWN]
        labels[-1] += f"  (+{more} more)"
    axes.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=min(5, len(labels)),
        fontsize=8.5,
        frameon=False,
    )
