"""Server side of FedGKD: relate clients by their distilled graphs, average for each.

Pan et al. 2023, Sec. 5.3 and Algorithm 1; the paper's two exchanges per round are one
here, as what is distilled depends on the client's own model alone. Symbols: M_i task
features of client i, R relatedness (Eq. 10), S kernel of the collaboration network (Eq.
11), q_i weights of client i (Eq. 9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.wire import NamedArrays, Parcel
from fedgraph_flwr.methods.fedgkd import (
    FEATURE_MAPS,
    FEATURES,
    NOISE_SEED,
    X0,
    Y0,
    FedGKDParams,
)

from .averaging import on_all_cores
from .personal import AbstractPersonalStrategy
from .replies import Layout

FloatArray: TypeAlias = NDArray[np.float64]
MIN_STD = 1e-8  # a column that varies less is constant
_BLOCK = 4_000_000  # numbers that are standardised at a time
_KEPT = "features/"


def common_start(
    seed: int, draw: int, *, nodes_per_class: int, num_features: int, num_classes: int
) -> NamedArrays:
    """X0 (nodes_per_class * num_classes, num_features), y0 and the seed of the noise.

    X0 is standard normal; y0 names each class ``nodes_per_class`` times, in order.
    Tensors travel, as another version of NumPy may draw others from the same seed.
    """
    y0 = np.repeat(np.arange(num_classes), nodes_per_class)
    rng = numpy_rng(seed, "server", draw, "x0")
    return {
        X0: rng.standard_normal((len(y0), num_features), np.float32),
        Y0: y0.astype(np.int64),
        NOISE_SEED: np.array([derive_seed(seed, "server", draw, "gumbel")]),
    }


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

    Source
    ------
    Pan et al. 2023, Eq. (10). Differs: constant columns, which dead ReLUs make, have
    no correlation. As a correlation is the inner product of standardised columns, R is
    a product of two matrices: O(n^2 num_rows num_columns).
    """
    num_clients, (num_rows, num_columns) = len(features), features[0].shape
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


def collapse_risk(num_clients: int, tau: float) -> bool:
    """Whether tiny differences of centrality are likely to decide the weights.

    All entries of R are close to 1, so that e^(tau R) grows like e^(tau n) / n.
    Collapses were seen from tau n = 5 on.
    """
    return tau * num_clients > 5


@final
class FedGKD(AbstractPersonalStrategy):
    """Averages for each client by weights q = softmax(tau_s S), S a kernel of R.

    The run stores R, S and q.
    """

    params: FedGKDParams

    @override
    def extra_downlink(self, server_round: int) -> NamedArrays:
        """Send what clients distil from, but for the closing evaluation."""
        if server_round > self.last_round:
            return {}
        info = next(iter(self.clients.values()))
        return common_start(
            self.settings.seed,
            server_round,
            nodes_per_class=self.params.nodes_per_class,
            num_features=info.num_features,
            num_classes=info.num_classes,
        )

    @override
    def extra_uplink(self, server_round: int, client: int) -> Layout:
        info = self.clients[client]
        rows = self.params.nodes_per_class * info.num_classes
        columns = {
            "x": info.num_features,
            "h": self.settings.hidden_dim,
            "y": info.num_classes,
        }
        return {
            FEATURES + part: ("float32", (rows, columns[part]))
            for part in FEATURE_MAPS[self.params.feature_map]
        }

    @override
    def personalise(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> FloatArray:
        p = self.params
        r = relatedness(self._features(replies))
        s = similarity(r, p.kernel, tau=p.tau)
        q = attention(s, p.tau_s)
        self.keep("R", replies, r)
        self.keep("S", replies, s)
        self._tell(server_round, r, q)
        return q

    def _features(
        self, replies: Mapping[int, Parcel]
    ) -> list[NDArray[np.floating[Any]]]:
        """M_i of the clients that replied."""
        parts = [FEATURES + part for part in FEATURE_MAPS[self.params.feature_map]]
        return [np.hstack([p.arrays[n] for n in parts]) for p in replies.values()]

    def _tell(self, server_round: int, r: FloatArray, q: FloatArray) -> None:
        p, n = self.params, len(q)
        others = r[~np.eye(n, dtype=bool)].max(initial=-1.0)
        words = (
            f"relatedness {r.min():.3f} to {others:.3f}, own weight"
            f" {np.diag(q).mean():.3f}, largest column sum {q.sum(axis=0).max():.2f}"
        )
        log(INFO, "round %d: %s of %d", server_round, words, n)
        is_first = server_round == self.first_round
        if is_first and p.kernel == "exponential" and collapse_risk(n, p.tau):
            words = (
                f"fedgkd.tau = {p.tau:g} times {n} clients is above 5: everybody may"
                " get the model of the most central client; lower fedgkd.tau"
            )
            log(WARNING, "%s", words)
