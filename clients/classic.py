"""Flower's ``NumPyClient`` methods for a client that answers parcels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import (
    LAST_ROUND,
    NUM_EXAMPLES,
    SERVER_ROUND,
    Parcel,
    Scalar,
    with_prefix,
)
from fedgraph_flwr.methods.fedavg import SHARED

if TYPE_CHECKING:
    from flwr.client import NumPyClient
else:
    try:
        from flwr.client import NumPyClient
    except ModuleNotFoundError:  # a trained model predicts without Flower
        NumPyClient = object

Array = NDArray[np.generic]
Header = Mapping[str, Scalar]  # of a message: what holds for all of its parcels


class ClassicClient(NumPyClient):
    """Flower's ``fit`` and ``evaluate``, by ``participate`` and ``assess``.

    Arrays without names are those of ``shared_keys``, in that order. ``config`` is the
    header, with ``server-round``. It may have ``last-round``, the last round that the
    client did, 0 for none; by default that is the round before.
    """

    shared_keys: list[str]

    @abstractmethod
    def participate(self, parcel: Parcel, header: Header) -> Parcel:
        """Answer a message to train."""

    @abstractmethod
    def assess(self, parcel: Parcel, header: Header) -> Parcel:
        """Answer a message to evaluate."""

    @override
    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Answer as :meth:`participate`, by arrays in the order of ``shared_keys``.

        An empty list keeps the stored tensors. What a method sends beside the shared
        tensors comes after them.
        """
        reply = self.participate(self._parcel(parameters, config), config)
        return list(reply.arrays.values()), *_counted(reply)

    @override
    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Answer as :meth:`assess`; losses are among the metrics, by split."""
        reply = self.assess(self._parcel(parameters, config), config)
        return 0.0, *_counted(reply)

    def _parcel(self, parameters: list[Array], config: dict[str, Any]) -> Parcel:
        facts = {LAST_ROUND: config.get(LAST_ROUND, int(config[SERVER_ROUND]) - 1)}
        if not parameters:
            return Parcel(facts=facts)
        if len(parameters) != len(self.shared_keys):
            raise WireError(
                f"received {len(parameters)} arrays, the client's model shares"
                f" {len(self.shared_keys)}; both ends must run the same settings"
            )
        named = dict(zip(self.shared_keys, parameters, strict=True))
        return Parcel(arrays=with_prefix(SHARED, named), facts=facts)


def _counted(reply: Parcel) -> tuple[int, dict[str, Any]]:
    """Separate the number of examples from other metrics and facts."""
    metrics = dict(reply.metrics)
    return int(metrics.pop(NUM_EXAMPLES)), {**metrics, **reply.facts}
