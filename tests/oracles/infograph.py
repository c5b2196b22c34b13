"""InfoGraph node by node in doubles, and its encoder from PyG's and torch's layers."""

from __future__ import annotations

import numpy as np
import torch
from oracles.jsd import affine, dense, doubles, jsd, project
from torch import nn
from torch_geometric.nn import GINConv, global_add_pool


def encode(w, graphs, *, batch_statistics):
    """Return per graph the (n, num_layers * hidden) matrix of its nodes.

    Without ``batch_statistics``, BatchNorm uses the running values in ``w``.
    """
    parts = [dense(graphs, g) for g in range(len(graphs))]
    hs = [x for x, _ in parts]
    outputs = [[] for _ in parts]
    layer = 0
    while f"layers.{layer}.inner.weight" in w:
        name = f"layers.{layer}"
        for g, (_, adjacency) in enumerate(parts):
            rows = []
            for v in range(len(hs[g])):
                total = hs[g][v].copy()
                for u in range(len(hs[g])):
                    total += adjacency[u, v] * hs[g][u]
                hidden = np.maximum(affine(w, f"{name}.inner", total), 0)
                rows.append(np.maximum(affine(w, f"{name}.outer", hidden), 0))
            hs[g] = np.array(rows)
        everything = np.concatenate(hs)
        if batch_statistics and len(everything) > 1:
            mean, variance = everything.mean(axis=0), everything.var(axis=0)
        else:
            mean = w[f"{name}.norm.running_mean"]
            variance = w[f"{name}.norm.running_var"]
        for g in range(len(parts)):
            scaled = (hs[g] - mean) / np.sqrt(variance + 1e-5)
            hs[g] = scaled * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]
            outputs[g].append(hs[g])
        layer += 1
    return [np.concatenate(o, axis=1) for o in outputs]


def embed(model, graphs):
    nodes = encode(doubles(model), graphs, batch_statistics=False)
    return np.array([n.sum(axis=0) for n in nodes])


def loss(model, graphs):
    w = doubles(model)
    encoded = encode(w, graphs, batch_statistics=model.training)
    nodes = [project(w, "node_projection", x) for n in encoded for x in n]
    whole = [project(w, "graph_projection", n.sum(axis=0)) for n in encoded]
    of = [g for g, n in enumerate(encoded) for _ in n]
    return jsd(nodes, whole, of)


class PygInfoGraph(nn.Module):
    """The encoder from ``GINConv`` and ``BatchNorm1d``, as in the authors' code."""

    def __init__(self, num_features, hidden_dim, num_layers):
        super().__init__()
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        self.convs = nn.ModuleList(
            GINConv(
                nn.Sequential(
                    nn.Linear(width, hidden_dim),
                    nn.ReLU(),
                    nn.Linear(hidden_dim, hidden_dim),
                )
            )
            for width in widths
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_dim) for _ in widths)

    def forward(self, data):
        x, outputs = data.x, []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, data.edge_index).relu())
            outputs.append(x)
        nodes = torch.cat(outputs, 1)
        return nodes, global_add_pool(nodes, data.batch, size=data.num_graphs)

    def ours(self):
        """Name parameters and running values as our model does."""
        renamed = {}
        for name, tensor in self.state_dict(keep_vars=True).items():
            group, number, *rest = name.split(".")
            last = rest[-1]
            if group == "norms" and last != "num_batches_tracked":
                renamed[f"layers.{number}.norm.{last}"] = tensor
            elif group == "convs" and last != "eps":
                part = {"0": "inner", "2": "outer"}[rest[1]]
                renamed[f"layers.{number}.{part}.{last}"] = tensor
        return renamed


def twin(model, num_features):
    """PygInfoGraph with the tensors of our ``model`` copied in."""
    layers = model.layers
    reference = PygInfoGraph(num_features, layers[0].outer.in_features, len(layers))
    reference.to(layers[0].norm.weight.dtype)
    named = model.state_dict()
    with torch.no_grad():
        for name, tensor in reference.ours().items():
            tensor.copy_(named[name])
    return reference
