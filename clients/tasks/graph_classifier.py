"""Clients that classify graphs with GIN: the task of GCFL, FedAvg, FedProx and MOON."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import PAPER
from fedgraph_flwr.core.wire import Parcel

from ..base import GraphClient
from ..graphs.batching import Batch, ClientData
from ..job import ModelSpec, P
from ..models.encoders import EdgeGNN, edge_gnn
from ..models.gin import GIN
from ..training import evaluate
from .scores import class_scores


class GraphClassifierClient(GraphClient[P]):
    """Cross-entropy and accuracy; part of the GIN may stay private."""

    WHY_NOT = ""
    TAKES_ENCODER = PER_GRAPH = True
    model: Any  # GIN, or an EdgeGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> GIN | EdgeGNN:
        """GIN, or the run's encoder.

        The start is common in ``convs``, and the client's own elsewhere.

        With ``shared_group = "all"`` everything starts alike, whoever the client is.
        """
        if spec.settings.encoder != PAPER:
            return edge_gnn(spec, "graphs")
        return GIN(
            spec.num_features,
            spec.num_classes,
            **spec.shape(),
            shared_generator=spec.common_generator(),
            private_generator=spec.private_generator(),
        )

    @override
    @classmethod
    def predict(cls, model: nn.Module, data: ClientData, params: P) -> Tensor:
        return torch.cat([model(batch, None) for batch in data.evaluation])

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy of the batch, weighted by classes if the run says so."""
        logits, weight = self.model(batch, generator), self.class_weights
        return nn.functional.cross_entropy(logits, batch.y, weight)

    @override
    def scores(self, point: str) -> Parcel:
        found = evaluate(self.model, self.data)
        return class_scores(self.scored, point, *found, self.round.facts)
