"""Edge-level differential privacy: Laplace noise on the adjacency, once per pair.

FGCL (Yang et al. 2022, arXiv:2207.11836), Eq. (3). Of an undirected graph the released
table has one row per unordered pair of nodes u < v with value A_uv. Neighbouring graphs
differ in one pair, so the L1 sensitivity is 1 and Laplace(0, 1/epsilon) on the pairs is
epsilon-differentially private. Mirroring is post-processing; noise drawn for (u, v) and
again for (v, u) would release each pair twice and cost 2 epsilon.

Not protected: labels, node features, numbers of nodes and graphs. Noise is drawn in
doubles (:mod:`clients.privacy.stream`): it is not hardened against attacks on the least
significant bits, and without a secret it hides nothing from one who knows the run seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import DataError

from .stream import Noise

FloatArray = NDArray[np.float32]
SIGNED_POSTS = ("abs-degree", "debiased")  # normalised by 1 + sum |w|
MAX_NODES = 4000  # of one graph: a matrix of 61 MiB, a step of 222 MiB (GAT: 747)
MAX_PAIRS = 2**28  # of one view of all graphs of a client: 1 GiB


@dataclass(frozen=True, kw_only=True)
class Triangles:
    """Strict upper triangles of symmetric matrices without diagonal, end to end.

    Parameters
    ----------
    values : float32 array, shape (num_pairs,)
        Entries (u, v), u < v, row by row, graph after graph.
    num_nodes : int64 array, shape (num_graphs,)
    positions : int64 array, shape (num_graphs,)
        Which of the client's graphs these are.
    """

    values: FloatArray
    num_nodes: IntArray
    positions: IntArray

    def __post_init__(self) -> None:
        assert len(self.values) == self.ptr[-1]

    @property
    def ptr(self) -> IntArray:
        """Graph ``g`` owns values ``ptr[g]:ptr[g + 1]``; shape (num_graphs + 1,)."""
        return pointer(num_pairs(self.num_nodes))

    def __len__(self) -> int:
        return len(self.num_nodes)

    def matrix(self, g: int) -> FloatArray:
        """Symmetric matrix of graph number ``g``, shape (num_nodes, num_nodes)."""
        n, ptr = int(self.num_nodes[g]), self.ptr
        full = np.zeros((n, n), np.float32)
        full[np.triu_indices(n, 1)] = self.values[ptr[g] : ptr[g + 1]]
        return full + full.T


class GraphAdjacency:
    """What is read of a client's graphs; every read is a use of private data.

    Parameters
    ----------
    graphs : GraphSet
        Undirected graphs; loops and repeated edges do not count.
    """

    def __init__(self, graphs: GraphSet) -> None:
        self._graphs = graphs

    def upper_triangle(self, position: int) -> FloatArray:
        """0/1 entries (u, v), u < v, row by row, of the graph at ``position``."""
        g = self._graphs
        n = int(g.node_ptr[position + 1] - g.node_ptr[position])
        edges = g.edge_index[:, g.edge_ptr[position] : g.edge_ptr[position + 1]]
        u, v = np.sort(edges.astype(np.int64), axis=0)
        found = np.zeros(int(num_pairs(np.array(n))), np.float32)
        found[pair_index(u, v, n)[u < v]] = 1.0
        return found


def num_pairs(num_nodes: IntArray) -> IntArray:
    """Unordered pairs of different nodes: n (n - 1) / 2, none for one node."""
    return np.asarray(num_nodes * (num_nodes - 1) // 2, np.int64)


def pair_index(u: IntArray, v: IntArray, num_nodes: int) -> IntArray:
    """Place of entry (u, v), u < v, in the triangle of a graph."""
    return u * num_nodes - u * (u + 1) // 2 + v - u - 1


def add_noise(triangle: NDArray[np.floating], epsilon: float, rng: Noise) -> FloatArray:
    """Release the pairs: ``triangle + Laplace(0, 1 / epsilon)``, independent entries.

    Parameters
    ----------
    triangle : float array, shape (num_pairs,)
        Pairs of one graph, or of many: different graphs hold different pairs.
    epsilon : float
        > 0 and finite. Each graph is protected with this epsilon, for one edge.
    """
    noise = rng.laplace(0.0, 1.0 / epsilon, len(triangle))
    return (triangle + noise).astype(np.float32)


def post_process(noisy: Triangles, epsilon: float, post: str) -> Triangles:
    """Turn released pairs into edge weights; free of privacy cost.

    Parameters
    ----------
    noisy : Triangles
        Results of :func:`add_noise` with ``epsilon``.
    post : str
        ``"clamp01"``: nearest number in [0, 1]. A pair without edge has mean
        ``c = (1 - exp(-epsilon)) / (2 epsilon)`` then, one with edge ``1 - c``.
        ``"round"``: 1 above one half, else 0; wrong with probability
        ``exp(-epsilon / 2) / 2`` per pair. A sparse graph for large epsilon.
        ``"relu"``: negative values become 0.
        ``"abs-degree"``: values as they are, negative ones too. Encoders divide by
        1 + sum of |w| instead of 1 + sum of w.
        ``"debiased"``: ``(clamp01 - c) / (1 - 2 c)``, whose mean is exactly A_uv. It
        varies less than the raw value, but can be negative: divided as "abs-degree".

    Source
    ------
    Ours: the paper does not say what it did.
    """
    w = noisy.values
    if post in ("clamp01", "debiased"):
        w = np.clip(w, 0.0, 1.0)
    if post == "debiased":
        c = clamp_bias(epsilon)
        w = ((w.astype(np.float64) - c) / (1.0 - 2.0 * c)).astype(np.float32)
    elif post == "round":
        w = (w > 0.5).astype(np.float32)
    elif post == "relu":
        w = np.maximum(w, 0.0)
    return Triangles(values=w, num_nodes=noisy.num_nodes, positions=noisy.positions)


def clamp_bias(epsilon: float) -> float:
    """Mean of a clamped pair without edge: (1 - exp(-epsilon)) / (2 epsilon)."""
    return -math.expm1(-epsilon) / (2.0 * epsilon)


def check_sizes(num_nodes: IntArray, positions: IntArray) -> None:
    """Raise DataError if views of these graphs would not fit; call before a draw."""
    if not len(num_nodes):
        return
    worst = int(np.argmax(num_nodes))
    if num_nodes[worst] > MAX_NODES:
        raise DataError(
            f"graph {positions[worst]} has {num_nodes[worst]} nodes, noisy views hold"
            f" at most {MAX_NODES}: a noisy graph has all {num_pairs(num_nodes)[worst]}"
            " edges. Leave such graphs out, or train without edge noise"
        )
    pairs = int(num_pairs(num_nodes).sum())
    if pairs > MAX_PAIRS:
        raise DataError(
            f"noisy views of {len(num_nodes)} graphs have {pairs} pairs of nodes each,"
            f" allowed are {MAX_PAIRS} ({4 * MAX_PAIRS / 2**30:g} GiB); use more"
            " clients or fewer or smaller graphs"
        )
