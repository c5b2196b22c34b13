"""Clients that classify graphs with GIN: the task of GCFL, FedAvg, FedProx and MOON."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.seeding import derive_seed

from ..base import GraphClient, Metrics, common_generator
from ..graphs.batching import Batch
from ..models.gin import GIN
from ..models.sharing import shared_keys
from ..training import evaluate


def build_gin(
    settings: RunSettings, num_features: int, num_classes: int, *, client_id: int
) -> GIN:
    """GIN with the common start in ``convs`` and a start of its own elsewhere.

    With ``shared_group = "all"`` everything starts alike, whoever the client is.
    """
    owner = "common" if settings.shared_group == "all" else f"client-{client_id}"
    private = torch.Generator()
    private.manual_seed(derive_seed(settings.seed, owner, "init-private"))
    return GIN(
        num_features,
        num_classes,
        hidden_dim=settings.hidden_dim,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
        shared_generator=common_generator(settings),
        private_generator=private,
    )


class GraphClassifierClient(GraphClient):
    """Cross-entropy and accuracy; part of the GIN may stay private."""

    model: GIN

    @classmethod
    def build_model(
        cls,
        settings: RunSettings,
        params: Settings,  # noqa: ARG003
        *,
        num_features: int,
        num_classes: int,
        client_id: int,
    ) -> GIN:
        """See base class and :func:`build_gin`."""
        return build_gin(settings, num_features, num_classes, client_id=client_id)

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the convolutions' tensors, or of all."""
        return shared_keys(model, settings.shared_group)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy of the batch."""
        return nn.functional.cross_entropy(self.model(batch, generator), batch.y)

    def scores(self, server_round: int, point: str) -> Metrics:  # noqa: ARG002
        """Accuracy and mean cross-entropy on validation and test graphs."""
        metrics: Metrics = {}
        for split, score in evaluate(self.model, self.data).items():
            metrics[f"eval/{split}/{point}/accuracy"] = score.accuracy
            metrics[f"eval/{split}/{point}/loss"] = score.loss
            metrics[f"count/{split}"] = score.num_examples
        return metrics
