"""Server side of FedAvg, FedProx (the same server) and self-train.

McMahan et al. 2017, arXiv:1602.05629: theta <- sum_i (n_i / n) theta_i, or the plain
mean with ``weighting = "uniform"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.wire import NamedArrays, Parcel, select, with_prefix

from .averaging import weighted_mean
from .base import AbstractGraphStrategy
from .replies import Layout, layout_of


class FedAvg(AbstractGraphStrategy):
    """One global model: the mean of the clients', weighted as ``weighting`` says."""

    def initialise(self, arrays: NamedArrays) -> None:
        """See base class."""
        self.theta = arrays

    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:  # noqa: ARG002
        """See base class."""
        return dict.fromkeys(self.clients, with_prefix(SHARED, self.theta))

    def uplink(self, server_round: int, client: int) -> Layout:  # noqa: ARG002
        """See base class: the model, once there is one to train."""
        return layout_of(with_prefix(SHARED, self.theta)) if server_round else {}

    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:  # noqa: ARG002
        """See base class; the model stays if nobody who replied has trained."""
        weights = [self.weight(c) for c in replies]
        if any(weights):
            models = [select(SHARED, p.arrays) for p in replies.values()]
            self.theta = weighted_mean(models, weights)

    def models(self) -> dict[str, NamedArrays]:
        """See base class."""
        return {"global": self.theta}

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """See base class."""
        return self.theta, {}

    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See base class."""
        self.theta = arrays


@final
class Local(AbstractGraphStrategy):
    """Self-train: hand out the common start, then send and receive no model."""

    HAS_MODEL = False

    def initialise(self, arrays: NamedArrays) -> None:
        """See base class."""
        self.start_arrays = arrays
        self.started: set[int] = set()

    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:  # noqa: ARG002
        """Send the start to clients that have not trained yet, nothing to others."""
        start, nothing = with_prefix(SHARED, self.start_arrays), NamedArrays()
        return {c: nothing if c in self.started else start for c in self.clients}

    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:  # noqa: ARG002
        """Aggregate nothing: the clients' models stay with them."""
        self.started |= set(replies)

    def models(self) -> dict[str, NamedArrays]:
        """See base class: there is none."""
        return {}

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """See base class."""
        return self.start_arrays, {"started": sorted(self.started)}

    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        """See base class."""
        self.start_arrays, self.started = arrays, set(facts["started"])

    def clusters(self) -> list[list[int]]:
        """Every client on its own."""
        return [[client] for client in sorted(self.clients)]
