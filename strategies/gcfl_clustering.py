"""How GCFL measures and splits a cluster: pure functions on update vectors.

Xie et al. 2021, arXiv:2106.13423, Sec. 4. Symbols: Delta_i update of client i (a
vector of all shared tensors), alpha cosine similarity, beta DTW distance.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.wire import NamedArrays

FloatArray: TypeAlias = NDArray[np.float64]
_BLOCK = 64  # rows whose distances to all others are computed at a time


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
    beta = dtw_distances(rows)
    return np.asarray(beta.max() - beta)


def dtw_distances(rows: FloatArray) -> FloatArray:
    """DTW distances of all pairs: squared steps, no window, root at the end.

    Parameters
    ----------
    rows : float array, shape (num_clients, length)

    Returns
    -------
    float array, shape (num_clients, num_clients)
        The numbers of ``dtaidistance.dtw.distance``, which rounds squares otherwise:
        at most one unit in the last place apart, one pair in a thousand.

    Notes
    -----
    The recursion runs once over the cells (i, j) of two series, for the pairs of a
    block of rows with all rows at a time: 1,000 clients take seconds, and memory stays
    at ``_BLOCK`` rows.
    """
    n, length = rows.shape
    found = np.empty((n, n))
    for begin in range(0, n, _BLOCK):
        block = rows[begin : begin + _BLOCK, None]  # (block, 1, length)
        shape = (len(block), n)
        above = [np.full(shape, np.inf) for _ in range(length + 1)]
        above[0] = np.zeros(shape)
        for i in range(length):
            line = [np.full(shape, np.inf)]
            for j in range(length):
                cost = np.square(block[..., i] - rows[None, :, j])
                nearest = np.minimum(above[j], above[j + 1])
                line.append(cost + np.minimum(nearest, line[j], out=nearest))
            above = line
        found[begin : begin + _BLOCK] = np.sqrt(above[-1])
    return found


def min_cut(weights: FloatArray) -> tuple[list[int], list[int]]:
    """Split one cluster in two along its global minimum cut.

    If several nodes are tied most closely to those that were added, the lowest row is
    the next. If several cuts have the smallest weight, the first that is found counts.

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
    between = np.array(weights, np.float64)  # of merged rows, in the lowest of them
    np.fill_diagonal(between, 0.0)
    merged = [[row] for row in range(n)]
    gone = np.zeros(n, bool)
    lightest, right = np.inf, [n]
    for size in range(n, 1, -1):
        before, last, weight = _phase(between, gone, size)
        if weight < lightest:
            lightest, right = weight, list(merged[last])
        merged[before] += merged[last]
        between[before] += between[last]
        between[:, before] = between[before]
        between[before, before] = 0.0
        gone[last] = True
    return sorted({*range(n)} - {*right}), sorted(right)


def _phase(
    between: FloatArray, gone: NDArray[np.bool_], size: int
) -> tuple[int, int, float]:
    """Add rows one by one, the most tightly tied first, from row 0.

    Returns
    -------
    before, last : int
        The last two rows that were added.
    weight : float
        What ties the last one to all others: the cut of the phase.
    """
    tie = np.where(gone, -np.inf, between[0])
    tie[0], row = -np.inf, 0
    for _ in range(size - 2):
        row = int(tie.argmax())  # the lowest of equals
        tie[row] = -np.inf  # and stays so, whatever is added
        tie += between[row]
    last = int(tie.argmax())
    return row, last, float(tie[last])
