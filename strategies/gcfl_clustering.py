"""How GCFL measures and splits a cluster: pure functions on update vectors.

Xie et al. 2021, arXiv:2106.13423, Sec. 4. Symbols: Delta_i update of client i (a
vector of all shared tensors), alpha cosine similarity, beta DTW distance.
"""

from __future__ import annotations

from typing import TypeAlias

import networkx as nx
import numpy as np
from dtaidistance import dtw
from numpy.typing import NDArray

from fedgraph_flwr.wire import NamedArrays

FloatArray: TypeAlias = NDArray[np.float64]


def flatten(model: NamedArrays) -> FloatArray:
    """Concatenate all tensors, by name, into one float64 vector."""
    return np.concatenate([model[n].ravel().astype(np.float64) for n in sorted(model)])


def unflatten(vector: FloatArray, like: NamedArrays) -> NamedArrays:
    """Cut a vector that :func:`flatten` made back into tensors shaped as ``like``."""
    cuts = np.cumsum([like[n].size for n in sorted(like)])[:-1]
    parts = dict(zip(sorted(like), np.split(vector, cuts), strict=True))
    return {n: parts[n].reshape(a.shape).astype(a.dtype) for n, a in like.items()}


def mean_update_norm(updates: FloatArray) -> float:
    """Norm of the mean update, delta_mean; ``updates`` has one row per client.

    Source
    ------
    Xie et al. 2021, Eq. (4). Differs: uniform weights, as in the authors'
    ``server.py:compute_mean_update_norm``, with which the thresholds were tuned.
    """
    uniform = np.full(len(updates), 1 / len(updates))
    return float(np.linalg.norm(uniform @ updates))


def max_update_norm(updates: FloatArray) -> float:
    """Largest norm of a client's update, delta_max (Eq. 5)."""
    return float(np.linalg.norm(updates, axis=1).max())


def cosine_weights(updates: FloatArray) -> FloatArray:
    """Similarities 1 + cos(Delta_p, Delta_q), shape (n, n), in [0, 2].

    Source
    ------
    Xie et al. 2021, Sec. 4.2. Differs: clamped at 0, because for opposite updates
    rounding makes 1 + cos negative and the minimum cut fails.
    """
    norms = np.linalg.norm(updates, axis=1)
    products = np.maximum(np.outer(norms, norms), 1e-12)
    return np.clip(1.0 + (updates @ updates.T) / products, 0.0, 2.0)


def dtw_weights(series: FloatArray, *, standardize: bool = False) -> FloatArray:
    """Similarities max(beta) - beta from DTW distances beta between series.

    Parameters
    ----------
    series : float array, shape (num_clients, seq_length)
        Histories of norms.
    standardize : bool
        Divide each series by its standard deviation (ddof 0; no mean removal), unless
        that is below 1e-12.

    Returns
    -------
    float array, shape (num_clients, num_clients)

    Source
    ------
    Xie et al. 2021, Sec. 4.3, Eq. (8); standardised variant:
    ``server.py:compute_pairwise_distances``.
    """
    rows = np.ascontiguousarray(series, np.float64)
    if standardize:
        deviation = rows.std(axis=1, keepdims=True)
        rows = rows / np.where(deviation < 1e-12, 1.0, deviation)
    n = len(rows)
    beta = np.zeros((n, n))
    for p in range(n):
        for q in range(p + 1, n):
            beta[p, q] = beta[q, p] = dtw.distance(rows[p], rows[q])
    return np.asarray(beta.max() - beta)


def min_cut(weights: FloatArray) -> tuple[list[int], list[int]]:
    """Split one cluster in two along its global minimum cut.

    Parameters
    ----------
    weights : float array, shape (n, n)
        Symmetric, >= 0; larger is more alike. The diagonal is ignored.

    Returns
    -------
    left, right : lists of int
        Row numbers, ascending; together ``range(n)``; row 0 is in ``left``.

    Raises
    ------
    ValueError
        Fewer than two rows.

    Source
    ------
    Stoer & Wagner 1997, as in Xie et al. 2021, Sec. 4.2.
    """
    n = len(weights)
    if n < 2:
        raise ValueError(f"a cut needs at least 2 clients, got {n}")
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from(
        (p, q, float(weights[p, q])) for p in range(n) for q in range(p + 1, n)
    )
    _, (one, other) = nx.stoer_wagner(graph)
    left, right = sorted(one), sorted(other)
    return (left, right) if left[0] == 0 else (right, left)
