"""GIN with PyG's own layers.

Xu et al. 2019 (arXiv:1810.00826), grouped as in GCFL's ``models.py:GIN``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn import GINConv, global_add_pool


class PygGIN(nn.Module):
    """The same network from ``torch_geometric.nn``, without dropout.

    Parameter names map to ours by dropping ``.nn`` for ``.mlp``; see :func:`twin`.
    """

    def __init__(self, num_features, num_classes, hidden_dim, num_layers):
        super().__init__()
        self.pre = nn.Linear(num_features, hidden_dim)
        self.convs = nn.ModuleList(
            GINConv(
                nn.Sequential(
                    nn.Linear(hidden_dim, hidden_dim),
                    nn.ReLU(),
                    nn.Linear(hidden_dim, hidden_dim),
                )
            )
            for _ in range(num_layers)
        )
        self.post = nn.Linear(hidden_dim, hidden_dim)
        self.readout = nn.Linear(hidden_dim, num_classes)

    def forward(self, data):
        x = self.pre(data.x)
        for conv in self.convs:
            x = conv(x, data.edge_index).relu()
        g = global_add_pool(x, data.batch, size=data.num_graphs)
        return self.readout(self.post(g).relu())

    def ours(self):
        """Name parameters as our model does."""
        return {n.replace(".nn.", ".mlp."): p for n, p in self.named_parameters()}


def twin(model, num_features, num_classes):
    """PygGIN with the weights of our ``model`` copied in."""
    reference = PygGIN(
        num_features, num_classes, model.post.in_features, len(model.convs)
    )
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in reference.ours().items():
            parameter.copy_(named[name])
    return reference
