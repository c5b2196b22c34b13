"""Server side of FED-PUB: weights by the cosine of functional embeddings.

Baek et al. 2023, arXiv:2206.10206.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedpub import ALPHA, EMBEDDING

from .personal import AbstractPersonalStrategy, cosine_attention
from .replies import Layout


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
