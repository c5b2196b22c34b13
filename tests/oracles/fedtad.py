"""FedTAD, loop by loop, from our specification of the method and not from our code."""

from __future__ import annotations

import math

import numpy as np
import torch
from oracles.adam import Adam


def reliability(x, adjacency, labels, train, classes, kind):
    """Phi of one client; ``adjacency`` of 0 and 1, without loops."""
    n, degree = len(x), adjacency.sum(1)
    walk = np.array(
        [[adjacency[u, v] / max(degree[v], 1) for v in range(n)] for u in range(n)]
    )
    powers = [np.linalg.matrix_power(walk, k) for k in range(1, 6)]
    phi = [0.0] * classes
    for v in train:
        rows = [list(row) for row in x]
        if kind == "landing":
            rows = [[*x[u], *(p[u, u] for p in powers)] for u in range(n)]
        found = 1.0
        for u in range(n):
            if adjacency[v, u]:
                size = math.hypot(*rows[v]) * math.hypot(*rows[u])
                found += float(np.dot(rows[v], rows[u])) / size
        share = max(found / (1 + degree[v]), 0.0)
        phi[labels[v]] += 1.0 if kind == "counts" else share
    return phi


def pseudo_graph(x, neighbours=5):
    """A + I, of 0 and 1, as a list of rows."""
    n = len(x)
    a = [[float(u == v) for v in range(n)] for u in range(n)]
    for u in range(n):
        cosines = [
            x[u] @ x[v] / math.sqrt(x[u] @ x[u] * (x[v] @ x[v])) for v in range(n)
        ]
        for v in sorted(range(n), key=lambda v: -cosines[v])[:neighbours]:
            a[u][v] = a[v][u] = 1.0
    return a


def diversity(z, x):
    """exp(-mean over pairs)."""
    pairs = [
        np.mean((z[i] - z[j]) ** 2) * np.mean(np.abs(x[i] - x[j]))
        for i in range(len(x))
        for j in range(len(x))
    ]
    return math.exp(-np.mean(pairs))


def per_class(values, labels, shares):
    """sum_k sum_c share_k[c] mean over nodes of class c of values[k][v]."""
    total = 0.0
    for k, row in enumerate(shares):
        for c, share in enumerate(row):
            of_class = [values[k][v] for v in range(len(labels)) if labels[v] == c]
            total = total + share * sum(of_class) / len(of_class)
    return total


def logits(model, x, loops):
    """Two convolutions without dropout, and no linear layer; all of them tensors."""
    a = torch.tensor(loops, dtype=x.dtype)
    root = torch.diag(a.sum(1) ** -0.5)
    a = root @ a @ root
    w1, b1, w2, b2 = model
    return a @ torch.relu(a @ x @ w1.T + b1) @ w2.T + b2


def features(g, labels, z):
    """What the generator makes; g is [classes, W_1, b_1, ..., W_4, b_4]."""
    h = torch.cat([g[0][labels], z], 1)
    for k in range(1, len(g) - 2, 2):
        h = torch.tanh(h @ g[k].T + g[k + 1])
    return h @ g[-2].T + g[-1]


class Server:
    """Generator, averaged model and both optimisers, over several rounds."""

    def __init__(self, g, labels, shares, semantic_weight, neighbours):
        self.g, self.labels, self.shares = g, labels, shares
        self.weight, self.neighbours = semantic_weight, neighbours
        self.of_g = [Adam(1e-3, decay=5e-4) for _ in g]
        self.of_model = [Adam(1e-3, decay=5e-4) for _ in range(4)]

    def distil(self, model, teachers, noise):
        """Return the model after a pseudo graph for each of ``noise``."""
        for z in noise:
            self.g = [p.detach().requires_grad_() for p in self.g]
            x = features(self.g, self.labels, z)
            loops = pseudo_graph(x.detach().numpy(), self.neighbours)
            taught = [logits(t, x, loops) for t in teachers]
            learned = logits(model, x, loops)
            entropies = [
                [-torch.log_softmax(t[v], 0)[c] for v, c in enumerate(self.labels)]
                for t in taught
            ]
            apart = [(learned - t.detach()).abs().mean(1) for t in taught]
            far = (z[:, None] - z).square().mean(2) * (x[:, None] - x).abs().mean(2)
            loss = self.weight * per_class(entropies, self.labels, self.shares)
            loss = loss - per_class(apart, self.labels, self.shares)
            loss = loss + len(teachers) * torch.exp(-far.mean())
            self.g = self._step(loss, self.g, self.of_g)
            x = features(self.g, self.labels, z).detach()
            loops = pseudo_graph(x.numpy(), self.neighbours)
            for _ in range(5):
                model = [p.detach().requires_grad_() for p in model]
                learned = logits(model, x, loops)
                apart = [
                    (learned - logits(t, x, loops)).abs().mean(1) for t in teachers
                ]
                loss = per_class(apart, self.labels, self.shares)
                model = self._step(loss, model, self.of_model)
        return model

    @staticmethod
    def _step(loss, values, optimisers):
        found = torch.autograd.grad(loss, values)
        pairs = zip(optimisers, values, found, strict=True)
        return [o.step(v.detach(), g) for o, v, g in pairs]
