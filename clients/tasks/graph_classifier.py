"""Clients that classify graphs with GIN: the task of GCFL, FedAvg, FedProx and MOON."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import Parcel

from ..base import GraphClient
from ..graphs.batching import Batch, ClientData
from ..job import ModelSpec, P
from ..models.gin import GIN
from ..training import evaluate
from .scores import class_scores


class GraphClassifierClient(GraphClient[P]):
    """Cross-entropy and accuracy; part of the GIN may stay private."""

    WHY_NOT = ""
    model: GIN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> GIN:
        """GIN with the common start in ``convs`` and a start of its own elsewhere.

        With ``shared_group = "all"`` everything starts alike, whoever the client is.
        """
        is_common = spec.settings.shared_group == "all"
        owner = "common" if is_common else f"client-{spec.client_id}"
        private = torch.Generator()
        private.manual_seed(derive_seed(spec.settings.seed, owner, "init-private"))
        return GIN(
            spec.num_features,
            spec.num_classes,
            **spec.shape(),
            shared_generator=spec.common_generator(),
            private_generator=private,
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
        """Score predictions of validation and test graphs by :func:`class_scores`."""
        logits, losses = evaluate(self.model, self.data)
        return class_scores(
            self.data.partition,
            point,
            logits.cpu().numpy(),
            losses.cpu().numpy(),
            self.round.facts,
        )
