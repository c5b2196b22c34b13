"""Server side of the self-weight control: each client's model, pulled to the mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.robust_settings import RobustSettings
from fedgraph_flwr.core.wire import NamedArrays, Parcel
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .personal import AbstractPersonalStrategy


def self_weights(num_clients: int, a: float) -> NDArray[np.float64]:
    """q_ij = a [i = j] + (1 - a) / n, shape (num_clients, num_clients)."""
    uniform = np.full((num_clients, num_clients), (1 - a) / num_clients)
    return uniform + a * np.eye(num_clients)


@final
class SelfWeight(AbstractPersonalStrategy):
    """W_i <- a W_i + (1 - a) mean_j W_j; of sums the mean, which clients mix."""

    params: SelfWeightParams

    @classmethod
    @override
    def why_no_sums(
        cls, robust: RobustSettings, settings: RunSettings, **options: Any
    ) -> str:
        is_even = settings.weighting == "uniform"
        return "" if is_even else 'its mean is of equal weights (weighting "uniform")'

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        if self.secagg.on:  # also for who was away: it mixes its own model with it
            self.personal = dict.fromkeys(self.personal, self.personal[min(replies)])

    @override
    def models(self) -> dict[str, NamedArrays]:
        known = super().models()
        return {"mean": min(known.items())[1]} if self.secagg.on else known

    @override
    def personalise(
        self,
        server_round: int,
        replies: Mapping[int, Parcel],
    ) -> NDArray[np.float64]:
        return self_weights(len(replies), self.params.a)
