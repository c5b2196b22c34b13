"""MVGRL with dense matrices in doubles, and its encoders from PyG's ``GCNConv``."""

from __future__ import annotations

import numpy as np
import torch
from oracles.jsd import dense, doubles, jsd, prelu, project
from torch import nn
from torch_geometric.nn import GCNConv, global_add_pool


def normalised(adjacency):
    """D^-1/2 (A + I) D^-1/2, D the row sums of A + I."""
    looped = adjacency + np.eye(len(adjacency))
    root = np.diag(looped.sum(axis=1) ** -0.5)
    return root @ looped @ root


def encode(w, name, x, messages):
    """Nodes of the last layer, and sums over nodes of all layers, of one graph.

    ``messages[u, v]`` is the weight of the message from u to v.
    """
    h, sums, layer = x, [], 0
    while f"{name}.layers.{layer}.weight" in w:
        at = f"{name}.layers.{layer}"
        rows = []
        for v in range(len(h)):
            total = w[f"{at}.bias"].copy()
            for u in range(len(h)):
                total += messages[u, v] * (h[u] @ w[f"{at}.weight"])
            rows.append(prelu(total, w[f"{at}.act.weight"]))
        h = np.array(rows)
        sums.append(h.sum(axis=0))
        layer += 1
    return h, np.concatenate(sums)


def forward(model, graphs, diffusions):
    """Projected nodes and graphs of both views, and the graph of each node."""
    w = doubles(model)
    nodes, whole, of = ([], []), ([], []), []
    for g in range(len(graphs)):
        x, adjacency = dense(graphs, g)
        of += [g] * len(x)
        for k, messages in enumerate([normalised(adjacency), diffusions[g]]):
            local, pooled = encode(w, f"gcn{k + 1}", x, messages)
            nodes[k].extend(project(w, "mlp1", row) for row in local)
            whole[k].append(project(w, "mlp2", pooled))
    return nodes, whole, of


def embed(model, graphs, diffusions):
    _, whole, _ = forward(model, graphs, diffusions)
    return np.array(whole[0]) + np.array(whole[1])


def loss(model, graphs, diffusions):
    nodes, whole, of = forward(model, graphs, diffusions)
    return jsd(nodes[0], whole[1], of) + jsd(nodes[1], whole[0], of)


class PygGCN(nn.Module):
    """One encoder; normalises the edges it is given only if it gets no weights."""

    def __init__(self, num_features, hidden_dim, num_layers, *, weighted):
        super().__init__()
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        options = {"normalize": not weighted, "add_self_loops": not weighted}
        self.convs = nn.ModuleList(GCNConv(w, hidden_dim, **options) for w in widths)
        self.acts = nn.ModuleList(nn.PReLU() for _ in widths)

    def forward(self, data, edge_index, edge_weight=None):
        x, sums = data.x, []
        for conv, act in zip(self.convs, self.acts, strict=True):
            x = act(conv(x, edge_index, edge_weight))
            sums.append(global_add_pool(x, data.batch, size=data.num_graphs))
        return x, torch.cat(sums, 1)

    def ours(self):
        """Name parameters as our encoder does, with the shapes that ours have."""
        renamed = {}
        for number, (conv, act) in enumerate(zip(self.convs, self.acts, strict=True)):
            renamed[f"layers.{number}.weight"] = conv.lin.weight
            renamed[f"layers.{number}.bias"] = conv.bias
            renamed[f"layers.{number}.act.weight"] = act.weight
        return renamed


def twin(encoder, num_features, *, weighted):
    """PygGCN with the parameters of our ``encoder`` copied in."""
    hidden_dim = len(encoder.layers[0].bias)
    reference = PygGCN(num_features, hidden_dim, len(encoder.layers), weighted=weighted)
    reference.to(encoder.layers[0].bias.dtype)
    named = dict(encoder.named_parameters())
    with torch.no_grad():
        for name, parameter in reference.ours().items():
            ours = named[name]
            parameter.copy_(ours.t() if ours.dim() == 2 else ours)
    return reference
