"""Client side of FedAvg, FedProx and self-train, for graphs and for nodes."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.methods.fedavg import FedAvgParams, FedProxParams, LocalParams

from .graphs.batching import Batch
from .losses.terms import pull
from .mixins import SelfTrain
from .tasks.graph_classifier import GraphClassifierClient
from .tasks.node_classifier import NodeClassifierClient


@final
class FedAvgClient(GraphClassifierClient[FedAvgParams]):
    """Send the trained shared tensors (McMahan et al. 2017, Algorithm 1)."""


@final
class NodeFedAvgClient(NodeClassifierClient[FedAvgParams]):
    """The same for nodes."""


@final
class FedProxClient(GraphClassifierClient[FedProxParams]):
    """FedAvg with a pull towards the received tensors (Li et al. 2020, Eq. 2).

    Differs from the GCFL authors' ``client.py:train_gc_prox``, whose reference point in
    round 1 is the client's own start: here it is always what was received in this
    round.
    """

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross-entropy + (mu / 2) ||w - w_received||^2 over the shared tensors."""
        plain, weight = super().loss(batch, generator), self.params.mu / 2
        return plain + pull(self.tensors(), self.round.received, weight)


@final
class NodeFedProxClient(NodeClassifierClient[FedProxParams]):
    """The same for nodes."""

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Cross-entropy + (mu / 2) ||w - w_received||^2 over the shared tensors."""
        plain, weight = super().loss(batch, generator), self.params.mu / 2
        return plain + pull(self.tensors(), self.round.received, weight)


class LimitedSelfTrain(SelfTrain[LocalParams]):
    """Mixin: self-train as long as a federated run or for ``local.epochs``."""

    @override
    def num_epochs(self) -> int:
        """Epochs left of ``local.epochs``, at most ``local-epochs``; 0: no limit."""
        per_round = self.job.settings.local_epochs
        if not self.params.epochs:
            return per_round
        done = per_round * (self.round.number - 1)
        return min(per_round, max(0, self.params.epochs - done))


@final
class LocalClient(LimitedSelfTrain, GraphClassifierClient[LocalParams]):
    """Self-train."""


@final
class NodeLocalClient(LimitedSelfTrain, NodeClassifierClient[LocalParams]):
    """The same for nodes."""
