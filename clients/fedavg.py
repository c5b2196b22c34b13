"""Client side of FedAvg, FedProx and self-train, for graphs and for nodes."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from fedgraph_flwr.methods.fedavg import FedProxParams, LocalParams

from .base import GraphClient
from .losses.terms import proximal_term
from .mixins import SelfTrain
from .tasks.graph_classifier import GraphClassifierClient
from .tasks.node_classifier import NodeClassifierClient


class Proximal(GraphClient):
    """Mixin: a pull towards the received tensors (Li et al. 2020, Eq. 2)."""

    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Loss of the task + (mu / 2) ||w - w_received||^2 over the shared tensors.

        Differs from the GCFL authors' ``client.py:train_gc_prox``, whose reference
        point in round 1 is the client's own start: here it is always what was
        received in this round.
        """
        plain = super().loss(batch, generator)  # type: ignore[safe-super]
        mu = self.proximal_mu()
        if not mu:
            return plain
        return plain + proximal_term(self.tensors(), self.received, mu)

    def proximal_mu(self) -> float:
        """Weight mu of the pull."""
        assert isinstance(self.job.params, FedProxParams)
        return self.job.params.mu


class LimitedSelfTrain(SelfTrain):
    """Mixin: self-train as long as a federated run or for ``local.epochs``."""

    def num_epochs(self, server_round: int) -> int:
        """Epochs left of ``local.epochs``, at most ``local-epochs``; 0: no limit."""
        assert isinstance(self.job.params, LocalParams)
        per_round = self.job.settings.local_epochs
        if not self.job.params.epochs:
            return per_round
        return min(
            per_round, max(0, self.job.params.epochs - per_round * (server_round - 1))
        )


@final
class FedAvgClient(GraphClassifierClient):
    """Send the trained shared tensors (McMahan et al. 2017, Algorithm 1)."""


@final
class NodeFedAvgClient(NodeClassifierClient):
    """The same for nodes."""


@final
class FedProxClient(Proximal, GraphClassifierClient):
    """FedAvg with the proximal term."""


@final
class NodeFedProxClient(Proximal, NodeClassifierClient):
    """The same for nodes."""


@final
class LocalClient(LimitedSelfTrain, GraphClassifierClient):
    """Self-train."""


@final
class NodeLocalClient(LimitedSelfTrain, NodeClassifierClient):
    """The same for nodes."""
