"""Local training of FedGKD and of its control: with a pull to the received model."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from fedgraph_flwr.methods.fedgkd import FedGKDParams
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .node_classifier import NodeClassifierClient
from .terms import proximal_term


class PulledClient(NodeClassifierClient):
    """Classifies nodes, not far from what the server sent."""

    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Cross-entropy + lambda ||W - W_received||^2 over all tensors.

        Twice the weight of FedProx's term, which halves it.

        Source
        ------
        Pan et al. 2023 (FedGKD), Algorithm 1.
        """
        assert isinstance(self.job.params, FedGKDParams | SelfWeightParams)
        weight = 2 * self.job.params.proximal_lambda
        pull = proximal_term(self.tensors(), self.received, weight)
        return super().loss(batch, generator) + pull


@final
class SelfWeightClient(PulledClient):
    """Sends its trained model and nothing else."""
