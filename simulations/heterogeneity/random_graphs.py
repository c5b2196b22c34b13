"""Properties of graphs beside random graphs with as many nodes and edges.

Source: Xie et al. 2021, arXiv:2106.13423, Table 1. It names neither the test behind its
p-values nor the number of random graphs: ours is a two-sided t-test over pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.stats import kurtosis, ttest_rel

from fedgraph_flwr.data import GraphSet, pointer

from ..node_statistics import clustering
from .walks import FloatArray

PROPERTIES = ("kurtosis", "path", "component", "clustering")
MAX_SOURCES = 500  # nodes of a larger graph from which shortest paths are measured


@dataclass(frozen=True)
class Comparison:
    """One property of a group's graphs beside random graphs.

    ``p`` is NaN with fewer than two graphs, or if all differences are equal.
    ``num_graphs`` have the property, and so have their random graphs.
    """

    name: str
    real: float
    random: float
    p: float
    num_graphs: int


def adjacency(num_nodes: int, pairs: NDArray[np.integer]) -> sparse.csr_array:
    """Symmetric matrix of 0 and 1, without loops, from edges of shape (2, m)."""
    pairs = pairs[:, pairs[0] != pairs[1]].astype(np.int64)
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    shape = (num_nodes, num_nodes)
    matrix = sparse.csr_array((np.ones(both.shape[1]), tuple(both)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def random_adjacency(
    num_nodes: int, num_edges: int, rng: np.random.Generator
) -> sparse.csr_array:
    """Erdos-Renyi graph: ``num_edges`` pairs of nodes, every set equally likely."""
    row_ptr = pointer(np.arange(num_nodes - 1, -1, -1))  # pairs (i, j > i), row by row
    drawn = rng.choice(int(row_ptr[-1]), num_edges, replace=False, shuffle=False)
    i = np.searchsorted(row_ptr, drawn, side="right") - 1
    return adjacency(num_nodes, np.stack([i, drawn - row_ptr[i] + i + 1]))


def properties(matrix: sparse.csr_array, rng: np.random.Generator) -> FloatArray:
    """Measure one graph, in the order of ``PROPERTIES``.

    Parameters
    ----------
    matrix : csr array, shape (n, n)
        As :func:`adjacency` makes it, n >= 1.
    rng : Generator
        Draws ``MAX_SOURCES`` nodes of a graph with more; else nothing is drawn.

    Returns
    -------
    float array, shape (4,)
        Kurtosis of degrees (3 for a normal distribution; NaN if all are equal), mean
        shortest path over joined pairs (NaN without edges), share of nodes in the
        largest component in percent, mean clustering coefficient (0 for nodes with
        fewer than two neighbours).
    """
    size = matrix.shape[0]
    degree = matrix.sum(axis=1)
    parts = connected_components(matrix, directed=False)[1]
    return np.array(
        [
            kurtosis(degree, fisher=False) if np.ptp(degree) else np.nan,
            _mean_path(matrix, rng),
            100 * np.bincount(parts).max() / size,
            clustering(matrix),
        ]
    )


def _mean_path(matrix: sparse.csr_array, rng: np.random.Generator) -> float:
    size = matrix.shape[0]
    sources = np.arange(size)
    if size > MAX_SOURCES:
        sources = np.sort(rng.choice(size, MAX_SOURCES, replace=False))
    steps = shortest_path(matrix, directed=False, unweighted=True, indices=sources)
    joined = steps[np.isfinite(steps) & (steps > 0)]
    return float(joined.mean()) if len(joined) else float("nan")


def compare(
    graphs: GraphSet, *, copies: int, rng: np.random.Generator
) -> list[Comparison]:
    """Compare each graph with the mean of ``copies`` random graphs of its size.

    A graph in which a property is undefined, in itself or in all its copies, is left
    out of that property.
    """
    real, random = [], []
    for g in range(len(graphs)):
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        matrix = adjacency(int(np.diff(graphs.node_ptr[g : g + 2])[0]), edges)
        real.append(properties(matrix, rng))
        size, num_edges = matrix.shape[0], matrix.nnz // 2
        drawn = (random_adjacency(size, num_edges, rng) for _ in range(copies))
        random.append(_mean_rows([properties(copy, rng) for copy in drawn]))
    pairs = zip(np.array(real).T, np.array(random).T, strict=True)
    return [
        _compare(name, ours, theirs)
        for name, (ours, theirs) in zip(PROPERTIES, pairs, strict=True)
    ]


def _mean_rows(rows: Sequence[FloatArray]) -> FloatArray:
    """Mean of each column over the rows that have it; NaN if none has."""
    table = np.array(rows)
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    found: FloatArray = np.where(count, total / np.maximum(count, 1), np.nan)
    return found


def _compare(name: str, real: FloatArray, random: FloatArray) -> Comparison:
    known = np.isfinite(real) & np.isfinite(random)
    ours, theirs = real[known], random[known]
    nan, p = float("nan"), float("nan")
    if len(ours) == 0:
        return Comparison(name, nan, nan, nan, 0)
    apart = ours - theirs
    if len(ours) > 1 and np.ptp(apart) > 1e-9:  # of rounding, scipy warns
        p = float(ttest_rel(ours, theirs).pvalue)
    return Comparison(name, float(ours.mean()), float(theirs.mean()), p, len(ours))
