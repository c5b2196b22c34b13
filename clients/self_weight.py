"""Local training of FedGKD and of its control: with a pull to the received model."""

from __future__ import annotations

from typing import final

from fedgraph_flwr.methods.fedgkd import FedGKDParams
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .fedavg import Proximal
from .tasks.node_classifier import NodeClassifierClient


class PulledClient(Proximal, NodeClassifierClient):
    """Cross-entropy + lambda ||W - W_received||^2 over all tensors.

    Source
    ------
    Pan et al. 2023 (FedGKD), Algorithm 1.
    """

    def proximal_mu(self) -> float:
        """Twice lambda, for FedProx's term is halved."""
        assert isinstance(self.job.params, FedGKDParams | SelfWeightParams)
        return 2 * self.job.params.proximal_lambda


@final
class SelfWeightClient(PulledClient):
    """Sends its trained model and nothing else."""
