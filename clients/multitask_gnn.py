"""Clients that train GraphSAGE or GAT on the labels of their own tasks.

Base of FedGMTL and SpreadGNN, and their baselines FedAvg and self-train.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.methods.multitask import GNNParams

from .base import common_generator
from .graphs.batching import Batch
from .graphs.node_rows import Nodes
from .graphs.structure import clean_structure
from .losses.multitask import Loss, masked_mse
from .mixins import SelfTrain
from .models.sage_gat import MultiTaskGNN
from .tasks.multitask import MultiTaskClient


class MultiTaskGNNClient(MultiTaskClient):
    """Masked loss of a GNN with one head row per task."""

    model: MultiTaskGNN

    @classmethod
    def build_model(
        cls,
        settings: RunSettings,
        params: Settings,
        *,
        num_features: int,
        num_classes: int,
        client_id: int,  # noqa: ARG003
    ) -> MultiTaskGNN:
        """Make encoder, readout and head, the same for every client."""
        assert isinstance(params, GNNParams)
        return MultiTaskGNN(
            params.encoder,
            num_features,
            num_classes,
            hidden_dim=settings.hidden_dim,
            num_layers=settings.num_layers,
            dropout=settings.dropout,
            generator=common_generator(settings),
        )

    def loss_function(self) -> Loss:
        """See base class; mean squared error where ``regression_loss`` says so."""
        assert isinstance(self.job.params, GNNParams)
        if self.is_regression and self.job.params.regression_loss == "mse":
            return masked_mse
        return super().loss_function()

    def logits(self, batch: Batch, nodes: Nodes) -> Tensor:
        """See base class."""
        return self.model(nodes, clean_structure(batch), None)  # type: ignore[no-any-return]

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean over the entries that are observed and of the client's tasks.

        Other tasks' training labels are missing from the client's data already.
        """
        nodes = self.data.nodes_of(batch)
        predicted = self.model(nodes, clean_structure(batch), generator)
        return self.loss_function()(predicted, batch.y)


@final
class MultiTaskFedAvgClient(MultiTaskGNNClient):
    """Send the trained tensors."""


@final
class LocalMultiTaskClient(SelfTrain, MultiTaskGNNClient):
    """Self-train: a client alone."""
