"""Client side of FedGKD's control: the same local training, and nothing distilled."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .losses.terms import pull
from .marks import done_by_stacks
from .tasks.node_classifier import NodeClassifierClient


@final
class SelfWeightClient(NodeClassifierClient[SelfWeightParams]):
    """Sends its trained model and nothing else."""

    @done_by_stacks
    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Cross-entropy + lambda ||W - W_received||^2 over all tensors.

        Source
        ------
        Pan et al. 2023 (FedGKD), Algorithm 1.
        """
        plain = super().loss(batch, generator)
        return plain + pull(self.tensors(), self.round.received, self.pull_weight())

    def pull_weight(self) -> float:
        """Lambda."""
        return self.params.proximal_lambda
