"""Clients that classify graphs with GIN: the task of GCFL, FedAvg, FedProx and MOON."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.seeding import derive_seed
from fedgraph_flwr.wire import Parcel

from ..base import GraphClient
from ..graphs.batching import Batch
from ..job import ModelSpec, P
from ..marks import done_by_stacks
from ..models.forms import Architecture
from ..models.gin import GIN
from ..training import evaluate
from .class_scores import class_scores


def build_gin(
    settings: RunSettings, num_features: int, num_classes: int, *, client_id: int
) -> GIN:
    """GIN with the common start in ``convs`` and a start of its own elsewhere.

    With ``shared_group = "all"`` everything starts alike, whoever the client is.
    """
    owner = "common" if settings.shared_group == "all" else f"client-{client_id}"
    private = torch.Generator()
    private.manual_seed(derive_seed(settings.seed, owner, "init-private"))
    spec = ModelSpec(
        settings=settings,
        params=Settings(),
        task=Settings(),
        num_features=num_features,
        num_classes=num_classes,
    )
    made: GIN = spec.architecture("gin").build(spec.common_generator(), private)
    return made


class GraphClassifierClient(GraphClient[P]):
    """Cross-entropy and accuracy; part of the GIN may stay private."""

    model: GIN

    @done_by_stacks
    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> GIN:
        widths = spec.num_features, spec.num_classes
        return build_gin(spec.settings, *widths, client_id=spec.client_id)

    @done_by_stacks
    @override
    @classmethod
    def architecture(cls, spec: ModelSpec[P]) -> Architecture:
        return spec.architecture("gin")

    @done_by_stacks
    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy of the batch."""
        return nn.functional.cross_entropy(self.model(batch, generator), batch.y)

    @done_by_stacks
    @override
    def scores(self, point: str) -> Parcel:
        """Accuracy and mean cross-entropy on validation and test graphs.

        On test graphs also macro-F1 and ROC-AUC.
        """
        logits, losses = evaluate(self.model, self.data)
        return class_scores(
            self.data.partition, point, logits.cpu().numpy(), losses.cpu().numpy()
        )
