"""Clients that train GraphSAGE or GAT on the labels of their own tasks.

As it is the client of FedAvg; base of FedGMTL and SpreadGNN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.tasks import MultiTaskSettings

from .graphs.batching import Batch
from .graphs.node_rows import MoleculeData, Nodes
from .graphs.structure import clean_structure
from .job import ModelSpec, P
from .models.sage_gat import MultiTaskGNN
from .tasks.multitask import MultiTaskClient


class MultiTaskGNNClient(MultiTaskClient[P]):
    """Masked loss of a GNN with one head row per task."""

    WHY_NOT = ""
    model: MultiTaskGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> nn.Module:
        assert isinstance(spec.task, MultiTaskSettings)
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
        pairs = zip(data.evaluation, data.evaluation_nodes, strict=True)
        return torch.cat([model(n, clean_structure(b), None) for b, n in pairs])

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
