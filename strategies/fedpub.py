"""Server side of FED-PUB: weights by the cosine of functional embeddings.

Baek et al. 2023, arXiv:2206.10206.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedpub import ALPHA, EMBEDDING

from .personal import AbstractPersonalStrategy
from .replies import Layout


def cosine_attention(
    embeddings: Sequence[NDArray[Any]], alpha: float
) -> NDArray[np.float64]:
    """q_ij = exp(alpha cos(e_i, e_j)) / sum over j, shape (n, n).

    Source
    ------
    Baek et al. 2023 and the authors' ``models/fedpub/server.py``. A zero embedding
    has cosine 0 with all others.
    """
    e = np.stack(embeddings).astype(np.float64)
    e /= np.maximum(np.linalg.norm(e, axis=1, keepdims=True), 1e-12)
    scores = np.exp(alpha * (e @ e.T - 1))  # cosines are at most 1
    weights: NDArray[np.float64] = scores / scores.sum(axis=1, keepdims=True)
    return weights


@final
class FedPub(AbstractPersonalStrategy):
    """Every client receives an average of its own, by cosine attention."""

    @override
    def extra_uplink(self, server_round: int, client: int) -> Layout:
        return {EMBEDDING: ("float32", (self.settings.hidden_dim,))}

    @override
    def personalise(
        self,
        server_round: int,
        replies: Mapping[int, Parcel],
    ) -> NDArray[np.float64]:
        embeddings = [p.arrays[EMBEDDING] for p in replies.values()]
        return cosine_attention(embeddings, ALPHA)
