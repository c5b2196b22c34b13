"""Server side of FedAvg, FedProx (the same server) and self-train.

McMahan et al. 2017, arXiv:1602.05629: theta <- sum_i (n_i / n) theta_i, or the plain
mean with ``weighting = "uniform"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED

from .base import AbstractGraphStrategy
from .replies import Layout, layout_of


class FedAvg(AbstractGraphStrategy):
    """One global model: the mean of the clients', weighted as ``weighting`` says."""

    ONE_MODEL = True
    NO_HOLD_OUT = ""
    NO_RULE = ""

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        self.theta = arrays

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        return dict.fromkeys(self.clients, with_prefix(SHARED, self.theta))

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect the model, in every round but the opening."""
        return layout_of(with_prefix(SHARED, self.theta)) if server_round else {}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Average the models; the old one stays if nobody who replied has trained.

        Parameters
        ----------
        replies : dict of int to Parcel
            Of the clients whose replies are good, ascending; at least one. The model
            of client ``c`` is ``select(SHARED, replies[c].arrays)``: in the parcel,
            names begin with ``SHARED``, which is "shared/".

        The new model goes into ``self.theta``, with names, shapes and types of the old.
        """
        weights = {c: self.weight(c) for c in replies}
        if sum(weights.values()) != 0:
            models = {c: select(SHARED, p.arrays) for c, p in replies.items()}
            self.theta = self.combine(models, weights, self.theta)

    @override
    def models(self) -> dict[str, NamedArrays]:
        return {"global": self.theta}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return self.theta, {}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta = arrays


@final
class Centralized(FedAvg):
    """The ceiling: the first client trains on the items of all, the others measure."""

    IN_ONE_PLACE = True

    @override
    def weight(self, client: int) -> float:
        """1 for the client that trains."""
        return float(client == self.settings.first_trainer)

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        return super().uplink(server_round, client) if self.weight(client) else {}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Take the model over; the old one stays if its client did not reply."""
        of_one = {c: p for c, p in replies.items() if self.weight(c)}
        super().step(server_round, of_one)


class Local(AbstractGraphStrategy):
    """Self-train: hand out the common start, then send and receive no model."""

    HAS_MODEL = False
    OWN_CLUSTERS = True

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        self.start_arrays = arrays
        self.started: set[int] = set()

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Send the start to clients that have not trained yet, nothing to others."""
        start, nothing = with_prefix(SHARED, self.start_arrays), NamedArrays()
        return {c: nothing if c in self.started else start for c in self.clients}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Aggregate nothing: the clients' models stay with them."""
        self.started |= set(replies)

    @override
    def models(self) -> dict[str, NamedArrays]:
        return {}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return self.start_arrays, {"started": sorted(self.started)}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.start_arrays, self.started = arrays, set(facts["started"])
