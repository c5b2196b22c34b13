"""The baseline: a plain loop of PyTorch Geometric, as its examples write it."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, one_hot
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool


class PlainGIN(nn.Module):
    """The network of GCFL."""

    def __init__(self, num_features, num_classes, hidden):
        super().__init__()
        self.pre = nn.Linear(num_features, hidden)
        square = partial(nn.Linear, hidden, hidden)
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(square(), nn.ReLU(), square())) for _ in range(3)
        )
        self.post = square()
        self.readout = nn.Linear(hidden, num_classes)

    def forward(self, batch):
        """Logits, shape (num_graphs, num_classes)."""
        x = self.pre(batch.x)
        for conv in self.convs:
            x = dropout(conv(x, batch.edge_index).relu(), 0.5, self.training)
        g = self.post(global_add_pool(x, batch.batch)).relu()
        return self.readout(dropout(g, 0.5, self.training))


class PlainClient:
    """``DataLoader``, a network and Adam, for one client's graphs.

    Parameters
    ----------
    partition : GraphPartition
    settings : RunSettings
        Width, batch size, learning rate and weight decay.
    """

    def __init__(self, partition, settings):
        g = partition.graphs
        self.model = PlainGIN(g.num_features, g.num_classes, settings.hidden_dim)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        train, *held_out = (
            to_pyg(partition, partition.positions(split))
            for split in ("train", "val", "test")
        )
        self.train = DataLoader(train, settings.batch_size, shuffle=True)
        self.held_out = [DataLoader(graphs, settings.batch_size) for graphs in held_out]

    def round(self):
        """Evaluate, train one epoch, evaluate: what a federated round does."""
        self.evaluate()
        self.model.train()
        for batch in self.train:
            self.optimizer.zero_grad()
            cross_entropy(self.model(batch), batch.y).backward()
            self.optimizer.step()
        self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        """Compute accuracy and loss on validation and test graphs."""
        self.model.eval()
        for loader in self.held_out:
            hits = loss = 0.0
            for batch in loader:
                logits = self.model(batch)
                hits += int((logits.argmax(1) == batch.y).sum())
                loss += float(cross_entropy(logits, batch.y)) * len(logits)


def to_pyg(partition, positions):
    """Return graphs as PyG's objects, one-hot features written out."""
    found, graphs = [], partition.graphs
    for position in positions:
        one = graphs.take(position[None])
        x = torch.from_numpy(one.x)
        if x.dim() == 1:
            x = one_hot(x.long(), graphs.num_features)
        edges = torch.from_numpy(one.edge_index).long()
        y = torch.from_numpy(one.y)
        found.append(Data(x=x.float(), edge_index=edges, y=y))
    return found
