"""Server side of the self-weight control: each client's model, pulled to the mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .personal import AbstractPersonalStrategy


def self_weights(num_clients: int, a: float) -> NDArray[np.float64]:
    """q_ij = a [i = j] + (1 - a) / n, shape (num_clients, num_clients)."""
    uniform = np.full((num_clients, num_clients), (1 - a) / num_clients)
    return uniform + a * np.eye(num_clients)


@final
class SelfWeight(AbstractPersonalStrategy):
    """W_i <- a W_i + (1 - a) mean_j W_j."""

    params: SelfWeightParams

    @override
    def personalise(
        self,
        server_round: int,
        replies: Mapping[int, Parcel],
    ) -> NDArray[np.float64]:
        return self_weights(len(replies), self.params.a)
