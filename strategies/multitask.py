"""Server side of FedAvg on several tasks."""

from __future__ import annotations

from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.multitask import MultiTaskParams
from fedgraph_flwr.wire import Parcel, select

from .averaging import weighted_mean
from .fedavg import FedAvg


class MultiTaskFedAvg(FedAvg):
    """FedAvg, weighted by training graphs or uniformly."""

    params: MultiTaskParams

    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:  # noqa: ARG002
        """See base class."""
        by_samples = self.params.weighting == "samples"
        self.theta = weighted_mean(
            [select(SHARED, p.arrays) for p in replies.values()],
            [p.metrics["num-examples"] if by_samples else 1 for p in replies.values()],
        )
