"""How graphs differ: anonymous walks for structure, cosines along edges for features.

A random walk starts at a node drawn uniformly and goes to a neighbour drawn uniformly.
Its anonymous walk replaces each node by the order in which the walk first visits it. A
graph is represented by the probabilities of all anonymous walks of one length.

Source: Ivanov and Burnaev 2018, Anonymous Walk Embeddings, Sec. 3.1; Xie et al. 2021,
arXiv:2106.13423, Sec. 4.1 and, for random graphs, Table 1. Neither page of Xie et al.
that we have gives length, number of walks, bins, logarithm or similarity: ours are
arguments, base 2, and the cosine. Nor does it name the test behind its p-values and the
number of random graphs: ours is a two-sided t-test over pairs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.spatial.distance import cdist
from scipy.stats import kurtosis, ttest_rel

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer

FloatArray = NDArray[np.float64]
PROPERTIES = ("kurtosis", "path", "component", "clustering")
MAX_SOURCES = 500  # nodes of a larger graph from which shortest paths are measured


@lru_cache(maxsize=8)
def anonymous_walks(length: int) -> tuple[tuple[int, ...], ...]:
    """All anonymous walks of ``length`` steps, in ascending order.

    An entry is at most 1 above the largest before it. Walks that stay at a node are
    included, because nodes may have loops or no neighbour. There are Bell(length + 1).
    """
    found: list[tuple[int, ...]] = [(0,)]
    for _ in range(length):
        found = [(*walk, k) for walk in found for k in range(max(walk) + 2)]
    return tuple(found)


def walk_distributions(
    graphs: GraphSet,
    *,
    length: int,
    exact_up_to: int,
    num_samples: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Distribution of anonymous walks in each graph, and whether it is exact.

    Parameters
    ----------
    graphs : GraphSet
        Each has a node. A node that no edge leaves has itself as its only neighbour.
    length : int
        Steps of a walk, >= 1.
    exact_up_to, num_samples : int
        A graph with at most so many walks gets its exact distribution; in another one
        so many are drawn, >= 1.
    rng : Generator
        Draws them; graph by graph, ascending.

    Returns
    -------
    shares : float array, shape (num_graphs, Bell(length + 1))
        Rows sum to 1; columns as in ``anonymous_walks``.
    is_exact : bool array, shape (num_graphs,)
    """
    width = len(anonymous_walks(length))
    shares, exact = np.zeros((len(graphs), width)), np.zeros(len(graphs), bool)
    for g, size in enumerate(np.diff(graphs.node_ptr)):
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        stuck = np.setdiff1d(np.arange(size), edges[0])
        source, target = np.column_stack([edges, [stuck, stuck]]).astype(np.int64)
        target = target[np.argsort(source, kind="stable")]
        degree = np.bincount(source, minlength=size)
        first, counts = pointer(degree)[:-1], np.ones(size)
        for _ in range(length):
            counts = np.add.reduceat(counts[target], first)
        exact[g] = counts.sum() <= exact_up_to
        start = np.arange(size) if exact[g] else rng.integers(size, size=num_samples)
        walks, chance = start[:, None], np.full(len(start), 1 / len(start))
        for _ in range(length):
            fan = degree[walks[:, -1]]
            if exact[g]:  # every neighbour of the last node
                parent = np.repeat(np.arange(len(walks)), fan)
                choice = np.arange(len(parent)) - np.repeat(pointer(fan)[:-1], fan)
                walks, chance = walks[parent], (chance / fan)[parent]
            else:
                choice = rng.integers(fan)
            walks = np.column_stack([walks, target[first[walks[:, -1]] + choice]])
        shares[g] = np.bincount(_columns_of(walks), chance, width)
    return shares, exact


def _columns_of(walks: IntArray) -> IntArray:
    """Look up the number of each walk's anonymous walk, shape (num_walks,)."""
    num, width = walks.shape
    base = width ** np.arange(width - 1, -1, -1, dtype=np.int64)
    names, fresh = np.zeros((num, width), np.int64), np.ones(num, np.int64)
    for j in range(1, width):
        is_known = walks[:, :j] == walks[:, j : j + 1]
        seen = names[np.arange(num), is_known.argmax(axis=1)]
        names[:, j] = np.where(is_known.any(axis=1), seen, fresh)
        fresh = np.maximum(fresh, names[:, j] + 1)
    codes = np.array(anonymous_walks(width - 1), np.int64) @ base
    found: IntArray = np.searchsorted(codes, names @ base)
    return found


def feature_distributions(graphs: GraphSet, *, bins: int) -> FloatArray:
    """Histogram of cosine similarities along the edges of each graph.

    The bins are of equal width, over [-1, 1]. A pair of nodes without features has
    similarity 0. Returns shape (num_graphs, bins): rows sum to 1, and are NaN for a
    graph without edges.
    """
    num_edges = np.diff(graphs.edge_ptr)
    source, target = graphs.edge_index + np.repeat(graphs.node_ptr[:-1], num_edges)
    x = graphs.x
    if x.ndim == 1:
        cosine = (x[source] == x[target]).astype(np.float64)
    else:
        rows = x.astype(np.float64)
        norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        unit = rows / np.where(norm > 0, norm, 1.0)[:, None]
        cosine = np.einsum("ij,ij->i", unit[source], unit[target])
    # Rounding must not move a similarity of exactly 1, 0 or -1 to a neighbouring bin.
    at = np.floor((cosine + 1) / 2 * bins + 1e-9).astype(np.int64)
    row = np.repeat(np.arange(len(graphs)), num_edges)
    cell = row * bins + np.clip(at, 0, bins - 1)
    counts = np.bincount(cell, minlength=len(graphs) * bins).astype(np.float64)
    edges = np.where(num_edges > 0, num_edges, np.nan).reshape(-1, 1)
    return np.asarray(counts.reshape(len(graphs), bins) / edges)


def divergences(left: FloatArray, right: FloatArray) -> FloatArray:
    """Jensen-Shannon divergence of each row of one array from each of another.

    Rows of shapes (n, k) and (m, k) are distributions. Returns shape (n, m), base 2,
    in [0, 1], NaN for a row with NaN. Its root is the Jensen-Shannon distance.
    """
    both = [np.isfinite(np.asarray(rows).sum(axis=1)) for rows in (left, right)]
    known = np.logical_and.outer(*both)
    # Of nearly equal rows scipy has the root of a negative rounding error.
    apart = np.nan_to_num(cdist(left, right, "jensenshannon")) ** 2 / np.log(2)
    return np.where(known, np.minimum(apart, 1.0), np.nan)


def clustering(adjacency: sparse.csr_array) -> float:
    """Mean over nodes of the share of pairs of neighbours that are joined.

    0 for nodes with fewer than two neighbours, as in networkx. ``adjacency`` is a
    symmetric matrix of 0 and 1.
    """
    closed = (adjacency @ adjacency).multiply(adjacency).sum(axis=1)  # twice triangles
    degree = adjacency.sum(axis=1)
    pairs = degree * (degree - 1)
    return float(np.divide(closed, pairs, where=pairs > 0, out=0 * pairs).mean())


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

    They are kurtosis of degrees (3 for a normal distribution; NaN if all are equal),
    mean shortest path over joined pairs (NaN without edges; from ``MAX_SOURCES`` drawn
    nodes of a graph with more), share of nodes in the largest component in percent,
    and mean clustering coefficient. ``matrix`` is as :func:`adjacency` makes it.
    """
    size, degree = matrix.shape[0], matrix.sum(axis=1)
    sources = np.arange(size)
    if size > MAX_SOURCES:
        sources = np.sort(rng.choice(size, MAX_SOURCES, replace=False))
    steps = shortest_path(matrix, directed=False, unweighted=True, indices=sources)
    joined = steps[np.isfinite(steps) & (steps > 0)]
    parts = connected_components(matrix, directed=False)[1]
    return np.array(
        [
            kurtosis(degree, fisher=False) if np.ptp(degree) else np.nan,
            joined.mean() if len(joined) else np.nan,
            100 * np.bincount(parts).max() / size,
            clustering(matrix),
        ]
    )


class Comparison(NamedTuple):
    """One property of a group's graphs beside random graphs.

    ``p`` is NaN with fewer than two graphs, or if all differences are equal.
    ``num_graphs`` have the property, and so have their random graphs.
    """

    name: str
    real: float
    random: float
    p: float
    num_graphs: int


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
        size = matrix.shape[0], matrix.nnz // 2
        drawn = [properties(random_adjacency(*size, rng), rng) for _ in range(copies)]
        random.append(np.ma.masked_invalid(drawn).mean(axis=0).filled(np.nan))
    found = []
    for k, name in enumerate(PROPERTIES):
        both = np.array([real, random])[:, :, k]
        ours, theirs = both[:, np.isfinite(both).all(axis=0)]
        mean = mean_random = p = float("nan")
        if len(ours):
            mean, mean_random = float(ours.mean()), float(theirs.mean())
        if len(ours) > 1 and np.ptp(ours - theirs) > 1e-9:  # of rounding, scipy warns
            p = float(ttest_rel(ours, theirs).pvalue)
        found.append(Comparison(name, mean, mean_random, p, len(ours)))
    return found
