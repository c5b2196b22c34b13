"""Clients that classify the nodes of one graph, trained on all of it at once."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings

from ..base import GraphClient, Metrics, common_generator
from ..graphs.batching import ClientData
from ..graphs.whole_graph import NodeData, WholeGraph
from ..models.node_gnn import GCNConv, NodeGNN
from ..models.sharing import shared_keys


class NodeClassifierClient(GraphClient):
    """Cross-entropy and accuracy of a GCN; one optimiser step is one local epoch.

    Everybody starts from the same tensors, shared or not. A client without nodes to
    train sends back what it received; one without nodes of a split has no score there.
    """

    DATA: ClassVar[type[ClientData]] = NodeData
    CONV: ClassVar[type[nn.Module]] = GCNConv
    data: NodeData
    model: NodeGNN

    @classmethod
    def build_model(
        cls,
        settings: RunSettings,
        params: Settings,  # noqa: ARG003
        *,
        num_features: int,
        num_classes: int,
        client_id: int,  # noqa: ARG003
    ) -> NodeGNN:
        """See base class."""
        return NodeGNN(
            num_features,
            num_classes,
            hidden_dim=settings.hidden_dim,
            num_layers=settings.num_layers,
            dropout=settings.dropout,
            generator=common_generator(settings),
            conv=cls.CONV,
        )

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the convolutions' tensors, or of all."""
        return shared_keys(model, settings.shared_group)

    @property
    def graph(self) -> WholeGraph:
        """The client's graph."""
        return self.data.whole

    def logits(self, generator: torch.Generator | None) -> Tensor:
        """Logits of every node, (num_nodes, num_classes); dropout iff a generator."""
        return self.model(self.graph, generator)  # type: ignore[no-any-return]

    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy over the training nodes of ``batch``, a WholeGraph."""
        logits = self.logits(generator)[batch.train]
        return nn.functional.cross_entropy(logits, batch.y[batch.train])

    def run_epochs(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        *,
        order: torch.Generator,  # noqa: ARG002  there is one batch
        noise: torch.Generator,
    ) -> float:
        """See base class."""
        last = torch.zeros(())
        for epoch in range(num_epochs):
            self.begin_epoch(epoch)
            optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self.graph, noise)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            last = loss.detach()
        return float(last)

    @torch.no_grad()
    def scores(self, server_round: int, point: str) -> Metrics:  # noqa: ARG002
        """Accuracy and mean cross-entropy on validation and test nodes."""
        logits = self.logits(None)
        metrics: Metrics = {}
        for split in ("val", "test"):
            nodes = self.graph.nodes(split)
            metrics[f"count/{split}"] = len(nodes)
            if not len(nodes):
                continue
            found, y = logits[nodes], self.graph.y[nodes]
            hits = (found.argmax(1) == y).double().mean()
            loss = nn.functional.cross_entropy(found, y, reduction="none")
            metrics[f"eval/{split}/{point}/accuracy"] = float(hits)
            metrics[f"eval/{split}/{point}/loss"] = float(loss.double().mean())
        return metrics
