"""How graphs differ: anonymous walks for structure, cosines along edges for features.

A random walk starts at a node drawn uniformly and goes to a neighbour drawn uniformly.
Its anonymous walk replaces each node by the order in which the walk first visits it. A
graph is represented by the probabilities of all anonymous walks of one length.

Source: Ivanov and Burnaev 2018, Anonymous Walk Embeddings, Sec. 3.1; Xie et al. 2021,
arXiv:2106.13423, Sec. 4.1. Neither page of Xie et al. that we have gives length, number
of walks, bins, logarithm or similarity: ours are arguments, base 2, and the cosine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer

FloatArray = NDArray[np.float64]


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
