"""Server side of the self-weight control: each client's model, pulled to the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .averaging import check_same_layout
from .personal import AbstractPersonalStrategy

# Fewer models are averaged by the matrix: to the bit as in runs that were published.
_MANY = 100


def self_weights(num_clients: int, a: float) -> NDArray[np.float64]:
    """q_ij = a [i = j] + (1 - a) / n, shape (num_clients, num_clients)."""
    uniform = np.full((num_clients, num_clients), (1 - a) / num_clients)
    return uniform + a * np.eye(num_clients)


def pull_to_mean(models: Sequence[NamedArrays], a: float) -> list[NamedArrays]:
    """Make a W_i + (1 - a) mean_j W_j for each i, in time linear in their number.

    Parameters
    ----------
    models : sequence of dict of str to array
        In ascending client order.
    a : float
        In [0, 1].

    Returns
    -------
    list of dict of str to array
        As ``mix`` by :func:`self_weights`, up to rounding in double precision.

    Raises
    ------
    WireError
        Names or shapes differ, or a floating array is not finite.
    """
    check_same_layout(models)
    pulled: list[NamedArrays] = [{} for _ in models]
    for name, first in models[0].items():
        if not np.issubdtype(first.dtype, np.floating):
            for target in pulled:
                target[name] = first.copy()
            continue
        mean = np.zeros(first.shape, np.float64)
        for model in models:
            mean += model[name].astype(np.float64) / len(models)
        for target, model in zip(pulled, models, strict=True):
            own = model[name].astype(np.float64)
            target[name] = (a * own + (1 - a) * mean).astype(first.dtype)
    return pulled


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

    @override
    def average(
        self,
        server_round: int,
        replies: Mapping[int, Parcel],
        models: Sequence[NamedArrays],
    ) -> tuple[list[NamedArrays], NDArray[np.float64], NDArray[np.float64]]:
        """Average many models without the matrix, which is known and not kept."""
        n, a = len(models), self.params.a
        if n < _MANY:
            return super().average(server_round, replies, models)
        own = np.full(n, a + (1 - a) / n)
        return pull_to_mean(models, a), own, np.ones(n)
