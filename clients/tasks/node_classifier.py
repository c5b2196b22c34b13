"""Clients that classify the nodes of one graph, trained on all of it at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import ALL, GCN2, PAPER
from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.wire import Parcel

from ..base import GraphClient
from ..graphs.batching import ClientData
from ..graphs.node_data import NodeData
from ..graphs.sampling import SampledGraph
from ..graphs.whole_graph import WholeGraph
from ..job import ModelSpec, P
from ..models.encoders import edge_gnn
from ..models.node_gnn import GCNConv, NodeGNN
from .scores import class_scores

_OF_TASKS = ("clients.base", __name__, "clients.tasks.edge_learner")


class NodeClassifierClient(GraphClient[P]):
    """Cross-entropy and accuracy of a GCN; one optimiser step is one local epoch.

    Everybody starts from the same tensors, shared or not. A client without nodes to
    train sends back what it received; one without nodes of a split has no score there.
    """

    DATA: ClassVar[type[ClientData]] = NodeData
    CONV: ClassVar[type[nn.Module]] = GCNConv
    HEAD: ClassVar[str] = "nodes"  # of encoders: what is predicted
    WHY_NOT = ""
    TAKES_ENCODER = True
    ENCODERS: ClassVar[tuple[str, ...]] = (PAPER, GCN2)
    data: NodeData
    model: Any  # NodeGNN, or an EdgeGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> nn.Module:
        if spec.settings.encoder not in cls.ENCODERS or cls.HEAD != "nodes":
            return edge_gnn(spec, cls.HEAD)
        return cls.gnn(spec, spec.common_generator())

    @classmethod
    def gnn(cls, spec: ModelSpec[P], generator: torch.Generator) -> NodeGNN:
        """Graph neural network of the run's sizes."""
        widths = spec.num_features, spec.num_classes
        return NodeGNN(
            *widths,
            **spec.shape(),
            generator=generator,
            conv=cls.CONV,
            ends_in_conv=spec.settings.encoder == GCN2,
        )

    @override
    @classmethod
    def predict(cls, model: nn.Module, data: NodeData, params: P) -> Tensor:
        return model(data.whole, None)[data.held_out]  # type: ignore[no-any-return]

    @property
    def graph(self) -> WholeGraph:
        """The client's graph."""
        return self.data.whole

    def logits(self, generator: torch.Generator | None) -> Tensor:
        """Logits of every node, (num_nodes, num_classes).

        With a generator those of training: on the graph that it sees, with dropout.
        """
        graph = self.graph if generator is None else self.data.shown
        return self.model(graph, generator)  # type: ignore[no-any-return]

    def held_out_logits(self) -> Tensor:
        """Logits of validation, then of test items."""
        return self.logits(None)[self.data.held_out]

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy over the training nodes of ``batch``, a WholeGraph."""
        if isinstance(batch, SampledGraph):
            logits, y = self.model(batch, generator)[batch.train], batch.y
        else:
            logits, y = self.logits(generator)[batch.train], batch.y[batch.train]
        return nn.functional.cross_entropy(logits, y, self.class_weights)

    @override
    def epoch(self, number: int) -> Tensor:
        settings = self.job.settings
        fanouts, size = settings.fanouts(), settings.batch_size
        is_whole = {*fanouts} == {ALL} and size >= len(self.trained_on())
        if not fanouts or is_whole:
            return self.step(self.graph)
        return super().epoch(number)

    @override
    @classmethod
    def takes_samples(cls) -> bool:
        # It trains as the task does.
        verbs = cls.loss, cls.epoch, cls.train, cls.logits
        return cls.TAKES_ENCODER and all(verb.__module__ in _OF_TASKS for verb in verbs)

    @cached_property
    def drawn(self) -> torch.Generator:
        """Stream of this round that draws neighbours, on the CPU."""
        return self._stream("neighbours", torch.device("cpu"))

    def around(self, nodes: Tensor) -> SampledGraph:
        """Nodes, each once, and neighbours drawn around them."""
        settings = self.job.settings
        neighbours = self.data.neighbours(settings.direction)
        return neighbours.around(nodes, settings.fanouts(), self.drawn)

    @override
    def batch(self, positions: IntArray) -> SampledGraph:
        nodes = torch.from_numpy(np.asarray(positions, np.int64))
        found = self.around(nodes)
        train = torch.arange(len(nodes), device=found.nodes.device)
        y = self.graph.y[found.nodes[train]]
        return replace(found, train=train, y=y, num_graphs=len(y))

    @override
    def whole_epoch(self) -> list[tuple[Any, float]]:
        return [(self.graph, 1.0)]

    @override
    @torch.no_grad()
    def scores(self, point: str) -> Parcel:
        logits, y = self.held_out_logits(), self.graph.y[self.data.held_out]
        losses = nn.functional.cross_entropy(logits, y, reduction="none")
        partition, facts = self.data.partition, self.round.facts
        return class_scores(partition, point, logits, losses, facts)
