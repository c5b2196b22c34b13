"""Clients that train GraphSAGE or GAT on the labels of their own tasks.

Base of FedGMTL and SpreadGNN, and their baselines FedAvg and self-train.
"""

from __future__ import annotations

from typing import TypeVar, final

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.methods.multitask import GNNParams, MultiTaskParams

from .graphs.batching import Batch
from .graphs.node_rows import Nodes
from .graphs.structure import clean_structure
from .job import ModelSpec
from .losses.multitask import Loss, masked_mse
from .mixins import SelfTrain
from .models.sage_gat import MultiTaskGNN
from .tasks.multitask import MultiTaskClient

G = TypeVar("G", bound=GNNParams)


class MultiTaskGNNClient(MultiTaskClient[G]):
    """Masked loss of a GNN with one head row per task."""

    model: MultiTaskGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[G]) -> MultiTaskGNN:
        """Make encoder, readout and head, the same for every client."""
        return MultiTaskGNN(
            spec.params.encoder,
            spec.num_features,
            spec.num_classes,
            hidden_dim=spec.settings.hidden_dim,
            num_layers=spec.settings.num_layers,
            dropout=spec.settings.dropout,
            generator=spec.common_generator(),
        )

    @override
    def loss_function(self) -> Loss:
        """Mean squared error of numbers, if ``regression_loss`` says so."""
        if self.is_regression and self.params.regression_loss == "mse":
            return masked_mse
        return super().loss_function()

    @override
    def logits(self, batch: Batch, nodes: Nodes) -> Tensor:
        return self.model(nodes, clean_structure(batch), None)  # type: ignore[no-any-return]

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean over the entries that are observed and of the client's tasks.

        Other tasks' training labels are missing from the client's data already.
        """
        nodes = self.data.nodes_of(batch)
        predicted = self.model(nodes, clean_structure(batch), generator)
        return self.loss_function()(predicted, batch.y)


@final
class MultiTaskFedAvgClient(MultiTaskGNNClient[MultiTaskParams]):
    """Send the trained tensors."""


@final
class LocalMultiTaskClient(
    SelfTrain[MultiTaskParams], MultiTaskGNNClient[MultiTaskParams]
):
    """Self-train: a client alone."""
