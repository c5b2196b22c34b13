"""Clients that train GraphSAGE or GAT on the labels of their own tasks.

As it is the client of FedAvg; base of FedGMTL and SpreadGNN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import PAPER
from fedgraph_flwr.core.tasks import MultiTaskSettings

from .graphs.batching import Batch
from .graphs.node_rows import MoleculeData, Nodes
from .graphs.structure import clean_structure
from .job import ModelSpec, P
from .models.encoders import EdgeGNN, edge_gnn
from .models.sage_gat import MultiTaskGNN
from .tasks.multitask import MultiTaskClient


class MultiTaskGNNClient(MultiTaskClient[P]):
    """Masked loss of a GNN with one head row per task."""

    WHY_NOT = ""
    TAKES_ENCODER = PER_GRAPH = True
    model: Any  # MultiTaskGNN, or an EdgeGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> nn.Module:
        assert isinstance(spec.task, MultiTaskSettings)
        if spec.settings.encoder != PAPER:
            return edge_gnn(spec, "graphs")
        return MultiTaskGNN(
            spec.task.encoder,
            spec.num_features,
            spec.num_classes,
            **spec.shape(),
            generator=spec.common_generator(),
        )

    @override
    @classmethod
    def predict(cls, model: nn.Module, data: MoleculeData, params: P) -> Tensor:
        if isinstance(model, EdgeGNN):
            return torch.cat([model(b, None) for b in data.evaluation])
        pairs = zip(data.evaluation, data.evaluation_nodes, strict=True)
        return torch.cat([model(n, clean_structure(b), None) for b, n in pairs])

    @override
    def logits(self, batch: Batch, nodes: Nodes) -> Tensor:
        return self._outputs(batch, nodes, None)

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean over the entries that are observed and of the client's tasks.

        Other tasks' training labels are missing from the client's data already.
        """
        predicted = self._outputs(batch, None, generator)
        return self.loss_function()(predicted, batch.y)

    @override
    def weight(self, batch: Batch) -> Tensor:
        """Observed labels by tasks: a graph's loss is a sum over its own labels."""
        return (~torch.isnan(batch.y)).sum() / batch.y.shape[1]

    def _outputs(
        self, batch: Batch, nodes: Nodes | None, generator: torch.Generator | None
    ) -> Tensor:
        """Predict for a batch; ``nodes`` are its own if they are known."""
        if isinstance(self.model, EdgeGNN):
            return self.model(batch, generator)  # type: ignore[no-any-return]
        nodes = self.data.nodes_of(batch) if nodes is None else nodes
        return self.model(nodes, clean_structure(batch), generator)  # type: ignore[no-any-return]
