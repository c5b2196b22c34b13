"""The Jensen-Shannon loss pair by pair, and its projection network on one vector.

Formulae of Sun et al. 2020 (InfoGraph), in doubles.
"""

from __future__ import annotations

import math

import numpy as np


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def jsd(nodes, graphs, graph_of_node):
    """E_negative - E_positive; without the former if there is one graph."""
    positive = negative = 0.0
    for v in range(len(nodes)):
        for g in range(len(graphs)):
            r = sum(
                float(a) * float(b) for a, b in zip(nodes[v], graphs[g], strict=True)
            )
            if graph_of_node[v] == g:
                positive += math.log(2) - softplus(-r)
            else:
                negative += softplus(-r) + r - math.log(2)
    n, b = len(nodes), len(graphs)
    return (negative / (n * (b - 1)) if b > 1 else 0.0) - positive / n


def affine(w, name, x):
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def prelu(x, slope):
    return np.where(x > 0, x, slope * x)


def project(w, name, x):
    """Three layers and a shortcut; ReLU where ``w`` has no slope for PReLU."""
    h = x
    for layer in (0, 2, 4):
        slope = w.get(f"{name}.block.{layer + 1}.weight", 0.0)
        h = prelu(affine(w, f"{name}.block.{layer}", h), slope)
    return h + affine(w, f"{name}.shortcut", x)


def doubles(model):
    """State of a torch module as float64 arrays."""
    return {
        name: tensor.detach().numpy().astype(np.float64)
        for name, tensor in model.state_dict().items()
    }


def dense(graphs, g):
    """Graph ``g``: features (n, F), one-hot written out, and adjacency (n, n)."""
    nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
    edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
    x = graphs.x[nodes]
    if x.ndim == 1:
        x = np.eye(graphs.num_features)[x]
    adjacency = np.zeros((len(x), len(x)))
    adjacency[edges[0], edges[1]] = 1
    return x.astype(np.float64), adjacency
