"""Server side of FedGTA: averages over clients whose label moments look alike.

Li et al. 2023, arXiv:2401.11755.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedgta import CONFIDENCE, MOMENTS, FedGTAParams

from .personal import AbstractPersonalStrategy
from .replies import Layout


def moment_cosine(moments: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """s_ij = cos(M_i, M_j), shape (n, n); 0 where a vector is zero."""
    m = np.stack(moments).astype(np.float64)
    m /= np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1e-300)
    cosines: NDArray[np.float64] = m @ m.T
    return cosines


def confident_average(
    similarity: NDArray[np.float64],
    confidence: NDArray[np.float64],
    epsilon: float,
) -> NDArray[np.float64]:
    """q_ij = H_j / sum of H over A_i for j in A_i, shape (n, n); 0 for others.

    A_i holds i and all j with s_ij > epsilon. If nobody in A_i has any confidence, all
    of A_i count alike.

    Source
    ------
    Authors' code, ``federated/fedgta``. Differs: i is in A_i at any epsilon, and a sum
    of 0 is not divided by.
    """
    near = np.minimum(similarity, 1.0) > epsilon  # rounding may exceed 1
    alike = near | np.eye(len(similarity), dtype=bool)
    raw = np.where(alike, confidence[None, :], 0.0)
    raw = np.where(raw.sum(axis=1, keepdims=True) > 0, raw, alike)
    weights: NDArray[np.float64] = raw / raw.sum(axis=1, keepdims=True)
    return weights


@final
class FedGTA(AbstractPersonalStrategy):
    """Every client receives an average of its own; S, the cosines, are stored."""

    params: FedGTAParams

    @override
    def extra_uplink(self, server_round: int, client: int) -> Layout:
        """Expect raw and central moments for each class, and the confidence."""
        width = 2 * self.params.moment_orders * self.clients[client].num_classes
        return {MOMENTS: ("float32", (width,)), CONFIDENCE: ("float32", (1,))}

    @override
    def personalise(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> NDArray[np.float64]:
        similarity = moment_cosine([p.arrays[MOMENTS] for p in replies.values()])
        confidence = np.array(
            [max(0.0, p.arrays[CONFIDENCE][0]) for p in replies.values()], float
        )
        self.keep("S", replies, similarity)
        return confident_average(similarity, confidence, self.params.epsilon)
