"""MVGRL with dense matrices in doubles."""

from __future__ import annotations

import numpy as np
from oracles.jsd import dense, doubles, jsd, prelu, project


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
