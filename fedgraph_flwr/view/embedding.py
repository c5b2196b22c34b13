"""Maps of graph embeddings: t-SNE and PCA, coloured by class and by client.

Drawn from the files of a results folder, as every figure; what is missing or cut short
is left out. t-SNE keeps neighbours and distorts distances and sizes of groups, hence
the PCA beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Round:
    """Embeddings of one round, those with a NaN or infinite entry left out."""

    number: int
    embeddings: NDArray[np.float64]  # (N, d), rows of length 1
    labels: NDArray[np.int64]  # (N,)
    clients: NDArray[np.int64]  # (N,)
    left_out: int


@dataclass(frozen=True)
class _Map:
    """Points on the plane and the graphs that they stand for."""

    title: str
    points: NDArray[np.float64]  # (n, 2)
    rows: NDArray[np.int64]  # (n,)
    axis_labels: tuple[str, str] = ("", "")


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
    seed, wanted = int(summary.get("seed", 0)), rounds
    if wanted is None:
        config = summary.get("config", {})
        wanted = round_numbers(config.get("embedding.figure-rounds", ""))
    drawn = []
    for t in sorted(set(wanted)):
        found = _read_round(kept[t], t) if t in kept else None
        if found is not None:
            figure = _embedding_figure(found, summary, seed)
            drawn.append(save(figure, run_dir / f"embeddings-round-{t}.png"))
    return drawn


def _read_round(path: Path, number: int) -> _Round | None:
    try:
        file = read_npz(path)
        arrays = {name: file[name] for name in _ARRAYS}
    except (DataError, KeyError):
        return None
    x = arrays["embeddings"]
    if x.ndim != 2 or any(arrays[name].shape != x.shape[:1] for name in _ARRAYS[1:]):
        return None
    finite = np.isfinite(x).all(axis=1)
    if not finite.any():
        return None
    return _Round(
        number,
        transform(x[finite], "l2"),
        arrays["labels"][finite].astype(np.int64),
        arrays["clients"][finite].astype(np.int64),
        left_out=int((~finite).sum()),
    )


def _embedding_figure(found: _Round, summary: dict[str, Any], seed: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pca = _pca_map(found.embeddings)
    many = len(found.embeddings) >= _MIN_TSNE
    maps = [_tsne_map(found, pca.points, seed), pca] if many else [pca]
    figure = Figure(
        figsize=(9.6, 1.6 + 4.0 * len(maps)),
        dpi=150,
        layout=ConstrainedLayoutEngine(h_pad=0.1),
    )
    grid = figure.subplots(len(maps), 2, squeeze=False)
    for row, shown in zip(grid, maps, strict=True):
        for axes, what, values in zip(
            row, ("class", "client"), (found.labels, found.clients), strict=True
        ):
            _scatter(axes, shown, values[shown.rows], np.unique(values), what)
            axes.set_title(f"{shown.title}, by {what}", fontsize=10, loc="left")
    for axes in grid[-1]:
        _legend(axes)
    facts = [
        f"graph embeddings after round {found.number}, rows of length 1",
        f"{len(found.labels)} graphs",
        f"{len(np.unique(found.clients))} clients",
    ]
    if found.left_out:
        facts.append(f"{found.left_out} graphs with NaN or infinite entries left out")
    head(figure, run_title(summary), "; ".join(facts))
    return figure


def _pca_map(x: NDArray[np.float64]) -> _Map:
    """Project on the two directions of most variance; the sign of each is fixed."""
    centred = x - x.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    peak = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), peak])
    points = np.zeros((len(x), 2))
    points[:, : len(directions)] = centred @ (directions * signs[:, None]).T
    total = float((singular**2).sum())
    shares = [100 * float(s**2) / total if total else 0.0 for s in (*singular, 0.0)]
    first, second = (f"component {i + 1} ({s:.0f} %)" for i, s in enumerate(shares[:2]))
    return _Map("PCA", points, np.arange(len(x)), (first, second))


def _tsne_map(found: _Round, start: NDArray[np.float64], seed: int) -> _Map:
    """Run t-SNE from the PCA, on one thread so that it can be repeated."""
    from sklearn.manifold import TSNE

    num_graphs = len(found.embeddings)
    rows = np.arange(num_graphs)
    title = "t-SNE"
    if num_graphs > _MAX_TSNE:
        rng = numpy_rng(seed, "figure", "t-sne")
        rows = np.sort(rng.choice(num_graphs, _MAX_TSNE, replace=False))
        title = f"t-SNE of {_MAX_TSNE} of {num_graphs} graphs"
    # scikit-learn's own scale of a start from PCA; all points may be equal.
    init = start[rows] * (1e-4 / (start[rows, 0].std() or 1.0))
    tsne = TSNE(
        perplexity=min(30.0, (len(rows) - 1) / 3),
        init=init.astype(np.float32),
        random_state=derive_seed(seed, "figure", "t-sne") % 2**32,
    )
    with one_thread():
        points = tsne.fit_transform(found.embeddings[rows].astype(np.float32))
    return _Map(title, np.asarray(points, dtype=np.float64), rows)


def _scatter(
    axes: Axes,
    shown: _Map,
    values: NDArray[np.int64],
    known: NDArray[np.int64],
    what: str,
) -> None:
    counts = [int((values == value).sum()) for value in known]
    size = float(np.clip(5000 / len(values), 6, 36))
    for k, value in enumerate(known):
        x, y = shown.points[values == value].T
        axes.scatter(
            x,
            y,
            s=size,
            color=PALETTE[k % len(PALETTE)],
            marker=_MARKERS[k // len(PALETTE) % len(_MARKERS)],
            alpha=0.75,
            linewidths=0,
            # The small on top of the large, which would hide them.
            zorder=2 + sum(count > counts[k] for count in counts) / len(counts),
            label=f"{what} {value}",
        )
    axes.set_xlabel(shown.axis_labels[0])
    axes.set_ylabel(shown.axis_labels[1])
    if shown.axis_labels == ("", ""):  # t-SNE has no units
        axes.set_xticks([])
        axes.set_yticks([])
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    axes.margins(0.04)
    bare(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MAX_SHOWN:
        more = len(labels) - _MAX_SHOWN
        handles, labels = handles[:_MAX_SHOWN], labels[:_MAX_SHOWN]
        labels[-1] += f"  (+{more} more)"
    num_rows = -(-len(labels) // 5)
    legend = axes.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=-(-len(labels) // num_rows),
        fontsize=8.5,
        frameon=False,
        borderaxespad=0,
        handletextpad=0.2,
        columnspacing=1.0,
    )
    for handle in legend.legend_handles:
        handle.set(sizes=[30], alpha=1)  # type: ignore[union-attr]
