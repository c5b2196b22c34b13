"""The task relator of FedGKD: pure functions from task features to weights.

Pan et al. 2023, Sec. 5.3. Symbols: M_i task features of client i, R relatedness (Eq.
10), S kernel of the collaboration network (Eq. 11), q_i weights of client i (Eq. 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import RunFailedError, WireError

from .averaging import on_all_cores

FloatArray: TypeAlias = NDArray[np.float64]

MIN_STD = 1e-8  # a column that varies less is constant
_BLOCK = 4_000_000  # numbers that are standardised at a time


def relatedness(features: Sequence[NDArray[np.floating]]) -> FloatArray:
    """Mean over columns of the correlation of two clients' task features.

    Parameters
    ----------
    features : sequence of float arrays, shape (num_rows, num_columns)
        M_i, one per client; rows of different clients belong together.

    Returns
    -------
    float array, shape (n, n)
        R, symmetric, in [-1, 1]; the diagonal is 1. Columns that are constant in
        either client do not count; without any other column the entry is 0.

    Raises
    ------
    WireError
        Shapes differ.

    Source
    ------
    Pan et al. 2023, Eq. (10). Differs: constant columns, which dead ReLUs make, have
    no correlation. As a correlation is the inner product of standardised columns, R is
    a product of two matrices: O(n^2 num_rows num_columns).
    """
    shapes = {m.shape for m in features}
    if len(shapes) != 1:
        raise WireError(
            f"task features have shapes {sorted(shapes)}; all clients must distil as"
            " many nodes, with as many features"
        )
    num_clients, (num_rows, num_columns) = len(features), shapes.pop()
    products = np.zeros((num_clients, num_clients))
    num_valid = np.zeros((num_clients, num_clients))
    step = max(1, _BLOCK // (num_clients * num_rows))

    def relate(begin: int) -> tuple[FloatArray, FloatArray]:
        parts = [m[:, begin : begin + step] for m in features]
        standard, is_valid = _standardise(np.stack(parts, dtype=np.float64))
        flat = standard.reshape(num_clients, -1)
        return flat @ flat.T, is_valid @ is_valid.T

    for product, valid in on_all_cores(relate, range(0, num_columns, step)):
        products += product
        num_valid += valid
    mean = np.divide(
        products, num_valid, out=np.zeros_like(products), where=num_valid > 0
    )
    np.fill_diagonal(mean, 1.0)
    return np.clip((mean + mean.T) / 2, -1.0, 1.0)


def _standardise(block: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns of mean 0 and norm 1, constant ones 0; and which are not constant.

    Shapes (n, num_rows, num_columns) -> the same and (n, num_columns). ``block`` is
    changed: another array of its size takes as long to get as to compute.
    """
    block -= block.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(block, axis=1, keepdims=True)
    is_valid = norm > MIN_STD * np.sqrt(block.shape[1])
    np.divide(block, norm, out=block, where=is_valid)
    np.copyto(block, 0, where=~is_valid)
    return block, is_valid[:, 0].astype(np.float64)


def similarity(relation: FloatArray, kernel: str, *, tau: float) -> FloatArray:
    """Similarity S of clients, of which weights are made, shape (n, n).

    Parameters
    ----------
    relation : float array, shape (n, n)
        R.
    kernel : str
        "local" (R), "square" (R R) or "exponential" (e^(tau R), the matrix
        exponential).
    tau : float
        >= 0; of "exponential" alone.

    Raises
    ------
    RunFailedError
        The exponential is beyond the floating-point range.

    Source
    ------
    Pan et al. 2023, Eq. (11) and Sec. 6.2.3. Differs: Eq. (11) is printed as a series
    from power 1 on; only from power 0 on hold the paper's claims about self-weights.
    """
    if kernel == "local":
        return relation.copy()
    if kernel == "square":
        return relation @ relation
    from scipy.linalg import expm  # here: this kernel alone needs it

    with np.errstate(over="ignore", invalid="ignore"):
        found = np.asarray(expm(tau * relation), np.float64)
    if not np.isfinite(found).all():
        raise RunFailedError(
            f"e^(tau R) of {len(relation)} clients overflows with fedgkd.tau ="
            f" {tau:g}; it grows like e^(tau n): keep tau times clients below 5"
        )
    return found


def attention(kernel: FloatArray, tau_s: float) -> FloatArray:
    """Weights q, shape (n, n): row i is the softmax of ``tau_s`` S_i.

    Source
    ------
    Pan et al. 2023, Eq. (9) with k(i, j) = e^(tau_s s_ij).
    """
    scores = np.exp(tau_s * (kernel - kernel.max(axis=1, keepdims=True)))
    weights: FloatArray = scores / scores.sum(axis=1, keepdims=True)
    return weights


def largest_column_sum(weights: FloatArray) -> float:
    """Largest weight of one client in all personal models; 1 if all weigh the same."""
    return float(weights.sum(axis=0).max())


def collapse_risk(num_clients: int, tau: float) -> bool:
    """Whether tiny differences of centrality are likely to decide the weights.

    All entries of R are close to 1, so that e^(tau R) grows like e^(tau n) / n.
    Collapses were seen from tau n = 5 on.
    """
    return tau * num_clients > 5
