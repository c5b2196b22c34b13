"""FGCL's local training as a whole, graph by graph, written from the specification.

Yang et al. 2022, arXiv:2207.11836, Sec. III. Nothing of the
code under test is used: what chance decides there (noisy views, batches and which
entries of the store are drawn) is given. Encoder GCN, no dropout, doubles.
"""

from __future__ import annotations

import torch

DOUBLE = torch.float64


def matrix(triangle, num_nodes):
    """Symmetric weights from those of pairs u < v, row by row; nothing on itself."""
    weights = [[0.0] * num_nodes for _ in range(num_nodes)]
    pair = 0
    for u in range(num_nodes):
        for v in range(u + 1, num_nodes):
            weights[u][v] = weights[v][u] = float(triangle[pair])
            pair += 1
    assert pair == len(triangle)
    return torch.tensor(weights, dtype=DOUBLE)


def gcn(w, name, x, weights):
    """Row v: sum_u (w_uv + [u = v]) / sqrt(d_u d_v) Theta x_u + b, d_v = 1 + sum_u."""
    degree = 1 + weights.sum(1)
    looped = weights + torch.eye(len(x), dtype=DOUBLE)
    share = looped / torch.outer(degree, degree) ** 0.5
    return share @ (x @ w[f"{name}.weight"].T) + w[f"{name}.bias"]


def affine(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def embed(w, x, weights):
    """h_G: two convolutions, the readout of [x || H], the mean over nodes."""
    h = torch.clamp(gcn(w, "encoder.first", x, weights), min=0)
    h = gcn(w, "encoder.second", h, weights)
    r = torch.clamp(affine(w, "readout_in", torch.cat([x, h], 1)), min=0)
    return torch.clamp(affine(w, "readout_out", r), min=0).mean(0)


def cosine(a, b):
    lengths = (torch.dot(a, a) * torch.dot(b, b)) ** 0.5
    return torch.dot(a, b) / lengths


def contrast(first, second, negatives, tau):
    """One graph's term of (6): negatives are compared with view 1; none, no term."""
    if not negatives:
        return torch.zeros((), dtype=DOUBLE)
    positive = torch.exp(cosine(first, second) / tau)
    others = sum(torch.exp(cosine(h, second) / tau) for h in negatives)
    return -torch.log(positive / (positive + others))


def cross_entropy(scores, labels):
    """Mean over the observed labels of all graphs; NaN is not observed."""
    terms = []
    for row, y in zip(scores, labels, strict=True):
        for z, label in zip(row, y.tolist(), strict=True):
            if label == label:
                p = 1 / (1 + torch.exp(-z))
                terms.append(-torch.log(p if label else 1 - p))
    return sum(terms) / len(terms)


def may_be_negative(entry, position, labels):
    """Another graph whose labels differ in a task that both have."""
    differ = any(
        a == a and b == b and a != b
        for a, b in zip(labels[entry].tolist(), labels[position].tolist(), strict=True)
    )
    return differ and entry != position


class Client:
    """What lasts from round to round is the store: (graph, its weights in view 1)."""

    def __init__(self, features, labels, *, size, k, gamma, tau):
        self.features, self.labels = features, labels
        self.size, self.k = size, k
        self.gamma, self.tau = gamma, tau
        self.store = []

    def push(self, position, weights):
        self.store.append((position, weights))
        self.store = self.store[-self.size :]

    def view(self, triangles, position):
        return matrix(triangles[position], len(self.features[position]))

    def loss(self, w, views, batch, chosen):
        """Gamma L_c + L_e (10) of the graphs of a batch, which then join the store."""
        found, terms, encoded = [[], []], [], {}
        for position, entries in zip(batch, chosen, strict=True):
            x = self.features[position]
            for k in (0, 1):
                found[k].append(embed(w, x, self.view(views[k], position)))
            negatives = []
            for entry in entries:
                past, weights = self.store[entry]
                assert may_be_negative(past, position, self.labels)
                if entry not in encoded:
                    h = embed(w, self.features[past], weights)
                    encoded[entry] = h
                negatives.append(encoded[entry])
            if not negatives:
                assert not any(
                    may_be_negative(past, position, self.labels)
                    for past, _ in self.store
                )
            terms.append(contrast(found[0][-1], found[1][-1], negatives, self.tau))
        labels = [self.labels[position] for position in batch]
        entropies = [
            cross_entropy([affine(w, "head", h) for h in hs], labels) for hs in found
        ]
        for position in batch:
            self.push(position, self.view(views[1], position))
        return self.gamma * sum(terms) / len(terms) + sum(entropies) / 2

    def train(self, start, train, epochs, adams):
        """One round: the weights, and the last epoch's mean loss per graph.

        ``epochs``: for each the triangles of both views by graph, and its steps, each
        the graphs of a batch and which entries of the store are their negatives.
        ``adams``: the optimiser of each tensor.
        """
        w = {n: torch.tensor(a, dtype=DOUBLE) for n, a in start.items()}
        if not self.store:
            for position in train[-self.k :]:
                self.push(position, self.view(epochs[0][0][1], position))
        for views, steps in epochs:
            total, count = 0.0, 0
            for batch, chosen in steps:
                w = {n: t.detach().requires_grad_() for n, t in w.items()}
                loss = self.loss(w, views, batch, chosen)
                slopes = torch.autograd.grad(loss, list(w.values()))
                total += loss.item() * len(batch)
                count += len(batch)
                w = {
                    n: adams[n].step(w[n].detach(), slope)
                    for n, slope in zip(w, slopes, strict=True)
                }
        return {n: t.detach() for n, t in w.items()}, total / count
