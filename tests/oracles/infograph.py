"""InfoGraph node by node in doubles."""

from __future__ import annotations

import numpy as np
from oracles.jsd import affine, dense, doubles, jsd, project


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
