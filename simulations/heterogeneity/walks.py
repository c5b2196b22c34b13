"""How graphs differ: anonymous walks for structure, cosines along edges for features.

A random walk starts at a node drawn uniformly and goes to a neighbour drawn uniformly.
Its anonymous walk replaces each node by the order in which the walk first visits it. A
graph is represented by the probabilities of all anonymous walks of one length.

Source: Ivanov and Burnaev 2018, Anonymous Walk Embeddings, Sec. 3.1; Xie et al. 2021,
arXiv:2106.13423, Sec. 4.1. Neither page of Xie et al. that we have gives length, number
of walks, bins, logarithm or similarity: ours are arguments, base 2, and the cosine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, pointer

FloatArray = NDArray[np.float64]

_BLOCK = 500_000  # walks, or cells of a mixture of distributions, held at once


@dataclass(frozen=True)
class Walker:
    """Graphs as one list of neighbours, for walks in all of them at once.

    ``starts`` has the first row of ``targets`` of each node, shape (num_nodes + 1,). A
    node without an edge that leaves it has itself as its only neighbour.
    """

    starts: IntArray
    targets: IntArray
    node_ptr: IntArray

    @classmethod
    def of(cls, graphs: GraphSet) -> Walker:
        """Put the nodes of all graphs in one row."""
        first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
        source, target = graphs.edge_index + first
        stuck = np.flatnonzero(graphs.degrees() == 0)
        source = np.concatenate([source, stuck])
        target = np.concatenate([target, stuck])
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=graphs.num_nodes)
        return cls(pointer(counts), target[order].astype(np.int64), graphs.node_ptr)

    def degrees(self) -> IntArray:
        """Count the neighbours of each node, shape (num_nodes,)."""
        return np.diff(self.starts)

    def num_walks(self, length: int) -> FloatArray:
        """Count the walks of ``length`` steps of each graph, shape (num_graphs,)."""
        counts = np.ones(len(self.starts) - 1)
        for _ in range(length):
            counts = np.add.reduceat(counts[self.targets], self.starts[:-1])
        return np.add.reduceat(counts, self.node_ptr[:-1])


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
    """Distribution of anonymous walks in each graph.

    Parameters
    ----------
    graphs : GraphSet
        Each has a node.
    length : int
        Steps of a walk, >= 1.
    exact_up_to : int
        A graph with at most so many walks gets its exact distribution.
    num_samples : int
        Walks drawn in each other graph, >= 1.
    rng : Generator
        Draws them; graph by graph, ascending.

    Returns
    -------
    shares : float array, shape (num_graphs, Bell(length + 1))
        Rows sum to 1; columns as in ``anonymous_walks``.
    is_exact : bool array, shape (num_graphs,)
    """
    walker = Walker.of(graphs)
    counts = walker.num_walks(length)
    is_exact = counts <= exact_up_to
    shares = np.zeros((len(graphs), len(anonymous_walks(length))))
    for some in _blocks(np.flatnonzero(is_exact), counts):
        shares[some] = _exact(walker, some, length)
    for graph in np.flatnonzero(~is_exact):
        shares[graph] = _sampled(walker, int(graph), length, num_samples, rng)
    return shares, is_exact


def _blocks(graphs: IntArray, counts: FloatArray) -> Iterator[IntArray]:
    """Cut a list of graphs into pieces with about ``_BLOCK`` walks each."""
    block = (np.cumsum(counts[graphs]) // _BLOCK).astype(np.int64)
    yield from (graphs[block == b] for b in np.unique(block))


def _exact(walker: Walker, graphs: IntArray, length: int) -> FloatArray:
    """Enumerate every walk of some graphs, with its probability."""
    sizes = np.diff(walker.node_ptr)
    nodes = [np.arange(*walker.node_ptr[g : g + 2]) for g in graphs]
    row = np.repeat(np.arange(len(graphs)), sizes[graphs])
    chance = 1.0 / sizes[graphs][row]
    walks = np.concatenate(nodes)[:, None]  # (num_walks, steps so far + 1)
    degrees = walker.degrees()
    for _ in range(length):
        last = walks[:, -1]
        fan = degrees[last]
        parent = np.repeat(np.arange(len(walks)), fan)
        within = np.arange(len(parent)) - np.repeat(pointer(fan)[:-1], fan)
        nxt = walker.targets[walker.starts[last][parent] + within]
        walks = np.column_stack([walks[parent], nxt])
        row, chance = row[parent], (chance / fan)[parent]
    width = len(anonymous_walks(length))
    at = row * width + columns_of(walks)
    flat = np.bincount(at, weights=chance, minlength=len(graphs) * width)
    return flat.astype(np.float64).reshape(len(graphs), width)


def _sampled(
    walker: Walker, graph: int, length: int, num: int, rng: np.random.Generator
) -> FloatArray:
    first, end = (int(node) for node in walker.node_ptr[graph : graph + 2])
    walks = np.empty((num, length + 1), np.int64)
    walks[:, 0] = rng.integers(first, end, size=num)
    degrees = walker.degrees()
    for step in range(length):
        last = walks[:, step]
        choice = rng.integers(degrees[last])
        walks[:, step + 1] = walker.targets[walker.starts[last] + choice]
    width = len(anonymous_walks(length))
    return np.bincount(columns_of(walks), minlength=width) / num


def columns_of(walks: IntArray) -> IntArray:
    """Look up the number of each walk's anonymous walk, shape (num_walks,).

    ``walks`` holds nodes, shape (num_walks, length + 1).
    """
    num, width = walks.shape
    base = width ** np.arange(width - 1, -1, -1, dtype=np.int64)
    names = np.zeros((num, width), np.int64)
    fresh = np.ones(num, np.int64)
    for j in range(1, width):
        is_known = walks[:, :j] == walks[:, j : j + 1]
        first = is_known.argmax(axis=1)
        names[:, j] = np.where(
            is_known.any(axis=1), names[np.arange(num), first], fresh
        )
        fresh = np.maximum(fresh, names[:, j] + 1)
    codes = np.array(anonymous_walks(width - 1), np.int64) @ base
    found: IntArray = np.searchsorted(codes, names @ base)
    return found


def feature_distributions(graphs: GraphSet, *, bins: int) -> FloatArray:
    """Histogram of cosine similarities along the edges of each graph.

    Parameters
    ----------
    graphs : GraphSet
        A pair of nodes without features has similarity 0.
    bins : int
        Of equal width, over [-1, 1].

    Returns
    -------
    float array, shape (num_graphs, bins)
        Rows sum to 1; NaN for a graph without edges.
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
    flat = np.bincount(
        row * bins + np.clip(at, 0, bins - 1), minlength=len(graphs) * bins
    )
    counts = flat.reshape(len(graphs), bins).astype(np.float64)
    counts[num_edges == 0] = np.nan
    shares: FloatArray = counts / np.maximum(num_edges, 1)[:, None]
    return shares


def divergences(left: FloatArray, right: FloatArray) -> FloatArray:
    """Jensen-Shannon divergence of each row of one array from each of another.

    Parameters
    ----------
    left, right : float arrays, shapes (n, k) and (m, k)
        Rows are distributions.

    Returns
    -------
    float array, shape (n, m)
        Base 2, in [0, 1]. Its root is the Jensen-Shannon distance.
    """
    own = _entropy(left)[:, None] + _entropy(right)
    size = max(1, _BLOCK // max(1, right.size))
    edges = [*range(0, len(left), size), len(left)]
    mixed = [_entropy((left[a:b, None] + right) / 2) for a, b in pairwise(edges)]
    found = np.concatenate(mixed) - own / 2 if mixed else own
    return np.clip(found, 0.0, 1.0)


def _entropy(shares: FloatArray) -> FloatArray:
    """Entropy in bits over the last axis; NaN if a share is NaN."""
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    total: FloatArray = -(shares * logs).sum(axis=-1)
    return total
