"""The baseline: a plain loop of PyTorch Geometric, as its examples write it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import (
    GATConv,
    GINConv,
    SAGEConv,
    global_add_pool,
    global_mean_pool,
)

from fedgraph_flwr.data import GraphPartition


class PlainPyG:
    """``DataLoader``, a model of PyG's layers, and Adam, without any federation.

    Parameters
    ----------
    model : module
        Maps a batch to logits.
    partition : GraphPartition
    batch_size : int
    loss : callable
        Maps (logits, labels) to a mean.
    learning_rate, weight_decay : float
    """

    def __init__(
        self,
        model: nn.Module,
        partition: GraphPartition,
        batch_size: int,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        self._model, self._loss = model, loss
        self._optimizer = torch.optim.Adam(
            model.parameters(), lr=learning_rate, weight_decay=weight_decay
        )
        train, *others = (
            to_pyg(partition, partition.positions(split))
            for split in ("train", "val", "test")
        )
        self._train = DataLoader(train, batch_size, shuffle=True)
        self._held_out = [DataLoader(graphs, batch_size) for graphs in others]

    def epoch(self) -> None:
        """Train one epoch."""
        self._model.train()
        for batch in self._train:
            self._optimizer.zero_grad()
            self._loss(self._model(batch), batch.y).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def round(self) -> None:
        """Evaluate, train one epoch, evaluate: what a federated round does."""
        self.evaluate()
        self.epoch()
        self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Compute accuracy and loss on validation and test graphs."""
        self._model.eval()
        for loader in self._held_out:
            hits = loss = 0.0
            for batch in loader:
                logits = self._model(batch)
                hits += int((logits.argmax(1) == batch.y).sum())
                loss += float(self._loss(logits, batch.y)) * len(logits)


def to_pyg(partition: GraphPartition, positions: NDArray[np.int64]) -> list[Data]:
    """Return graphs as PyG's objects, one-hot features written out."""
    found = []
    graphs = partition.graphs
    for position in positions:
        one = graphs.take(position[None])
        x = torch.from_numpy(one.x)
        if x.dim() == 1:
            x = nn.functional.one_hot(x.long(), graphs.num_features)
        found.append(
            Data(
                x=x.float(),
                edge_index=torch.from_numpy(one.edge_index).long(),
                y=torch.from_numpy(one.y),
            )
        )
    return found


def masked(each: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the mean of a loss over the labels that are there."""

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        mask = ~y.isnan()
        return (
            each(logits, y.nan_to_num(), reduction="none") * mask
        ).sum() / mask.sum()

    return loss


class PlainGIN(nn.Module):
    """The network of GCFL."""

    def __init__(self, num_features: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.pre = nn.Linear(num_features, hidden)
        self.convs = nn.ModuleList(
            GINConv(
                nn.Sequential(
                    nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
                )
            )
            for _ in range(3)
        )
        self.post = nn.Linear(hidden, hidden)
        self.readout = nn.Linear(hidden, num_classes)

    def forward(self, batch: Data) -> Tensor:
        """Logits, shape (num_graphs, num_classes)."""
        x = self.pre(batch.x)
        for conv in self.convs:
            x = nn.functional.dropout(
                conv(x, batch.edge_index).relu(), 0.5, self.training
            )
        g = self.post(global_add_pool(x, batch.batch)).relu()
        logits: Tensor = self.readout(nn.functional.dropout(g, 0.5, self.training))
        return logits


class PlainMultiTask(nn.Module):
    """The network of SpreadGNN."""

    def __init__(
        self,
        encoder: str,
        num_features: int,
        num_tasks: int,
        *,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.is_gat, self.dropout = encoder == "gat", dropout
        if self.is_gat:
            self.first = GATConv(num_features, hidden, heads=2, dropout=dropout)
            self.second = GATConv(2 * hidden, hidden, dropout=dropout)
        else:
            self.first = SAGEConv(num_features, hidden, bias=False)
            self.second = SAGEConv(hidden, hidden, bias=False)
        self.readout_in = nn.Linear(num_features + hidden, hidden)
        self.readout_out = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, num_tasks)

    def forward(self, data: Data) -> Tensor:
        """Logits, shape (num_graphs, num_tasks)."""
        x, edges = data.x, data.edge_index
        if self.is_gat:
            h = nn.functional.elu(self.first(self._drop(x), edges))
            h = nn.functional.elu(self.second(self._drop(h), edges))
        else:
            h = self._drop(self.first(x, edges).relu())
            h = self.second(h, edges).relu()
        r = self.readout_in(torch.cat([x, h], 1)).relu()
        r = self.readout_out(r).relu()
        return self.head(global_mean_pool(r, data.batch))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.dropout)
