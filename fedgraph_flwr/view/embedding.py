"""Maps of graph embeddings: t-SNE and PCA, coloured by class and by client.

t-SNE keeps neighbours and distorts distances and sizes of groups, hence
the PCA beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.embedding_scores import one_thread, transform
from ..core.seeding import derive_seed, numpy_rng
from ..core.tasks import EMBEDDINGS, round_numbers
from ..results.reader import read_npz, read_summary, round_files
from .style import PALETTE, bare, head, run_title, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "^", "s", "X")
_MAX_TSNE = 2000  # graphs; minutes beyond
_MAX_SHOWN = 28  # legend entries, as many as there are colours and markers
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
        ``embeddings-round-<t>.png`` of each round that has a file. The run's seed
        chooses the graphs that t-SNE shows of more than 2000.

    Raises
    ------
    DataError
        A file is damaged.
    """
    kept = round_files(run_dir / EMBEDDINGS)
    summary = read_summary(run_dir)
    if rounds is None:
        config = summary.get("config", {})
        rounds = [*round_numbers(config.get("embedding.figure-rounds", ""))]
    drawn = []
    for t in sorted({*rounds} & kept.keys()):
        figure = _embedding_figure(read_npz(kept[t]), summary, t)
        drawn.append(save(figure, run_dir / f"embeddings-round-{t}.png"))
    return drawn


def _embedding_figure(arrays: _Arrays, summary: dict[str, Any], number: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    x = transform(arrays["embeddings"], "l2")
    maps = [_tsne(x, int(summary.get("seed", 0))), _pca(x)]
    engine = ConstrainedLayoutEngine(h_pad=0.1)
    figure = Figure(figsize=(9.6, 9.6), dpi=150, layout=engine)
    grid = figure.subplots(len(maps), 2)
    for row, (title, points, shown) in zip(grid, maps, strict=True):
        for axes, what, name in zip(
            row, ("class", "client"), ("labels", "clients"), strict=True
        ):
            _scatter(axes, points, arrays[name][shown], what)
            axes.set_title(f"{title}, by {what}", fontsize=10, loc="left")
    for axes in grid[-1]:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[:_MAX_SHOWN],
            labels[:_MAX_SHOWN],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=min(5, len(labels)),
            fontsize=8.5,
            frameon=False,
        )
    facts = [
        f"graph embeddings after round {number}, rows of length 1",
        f"{len(x)} graphs",
        f"{len(np.unique(arrays['clients']))} clients",
    ]
    head(figure, run_title(summary), "; ".join(facts))
    return figure


def _pca(x: NDArray[np.float64]) -> tuple[str, _Points, NDArray[np.int64]]:
    """Project on the two directions of most variance, whose shares are named."""
    from sklearn.decomposition import PCA

    pca = PCA(2, svd_solver="full")
    points = pca.fit_transform(x)
    first, second = 100 * pca.explained_variance_ratio_
    return f"PCA ({first:.0f} and {second:.0f} %)", points, np.arange(len(x))


def _tsne(x: NDArray[np.float64], seed: int) -> tuple[str, _Points, NDArray[np.int64]]:
    """Run t-SNE from the PCA, on one thread so that it can be repeated."""
    from sklearn.manifold import TSNE

    rows, title = np.arange(len(x)), "t-SNE"
    if len(x) > _MAX_TSNE:
        rng = numpy_rng(seed, "figure", "t-sne")
        rows = np.sort(rng.choice(len(x), _MAX_TSNE, replace=False))
        title = f"t-SNE of {_MAX_TSNE} of {len(x)} graphs"
    tsne = TSNE(
        perplexity=min(30.0, (len(rows) - 1) / 3),
        init="pca",
        random_state=derive_seed(seed, "figure", "t-sne") % 2**32,
    )
    with one_thread():
        points = tsne.fit_transform(x[rows].astype(np.float32))
    return title, np.asarray(points, dtype=np.float64), rows


def _scatter(axes: Axes, points: _Points, values: NDArray[np.int64], what: str) -> None:
    for k, value in enumerate(np.unique(values)):
        x, y = points[values == value].T
        axes.scatter(
            x,
            y,
            s=float(np.clip(5000 / len(values), 6, 36)),
            color=PALETTE[k % len(PALETTE)],
            marker=_MARKERS[k // len(PALETTE) % len(_MARKERS)],
            alpha=0.75,
            linewidths=0,
            label=f"{what} {value}",
        )
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    axes.margins(0.04)
    bare(axes)
