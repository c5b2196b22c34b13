"""FCLG transcribed from the paper, graph by graph, in doubles and without our code.

Li, Agrawal, Ramnath, Jin: Federated Contrastive Learning of Graph-Level
Representations, arXiv:2411.12098. Numbers in brackets are its equations. A model is a
dict of tensors by name, a graph the pair (x, A) or the triple (x, A, S) of dense
matrices, where S[u, v] weighs the message from u to v. Teachers are copies of the
model, evaluated anew for every batch. MOON is the contrast of Li, He, Song,
arXiv:2103.16257, on GIN for classification.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from .jsd import dense


def ppr(adjacency, alpha, threshold):
    """S of personalised PageRank: small entries dropped, columns summing to 1."""
    n = len(adjacency)
    looped = np.array(adjacency, np.float64) + np.eye(n)
    degree = [sum(looped[u, v] for u in range(n)) for v in range(n)]
    walk = np.zeros((n, n))
    for u in range(n):
        for v in range(n):
            walk[u, v] = looped[u, v] / math.sqrt(degree[u] * degree[v])
    term, total = np.eye(n), np.zeros((n, n))
    for _ in range(600):  # alpha sum_k (1 - alpha)^k T^k
        total += alpha * term
        term = (1 - alpha) * term @ walk
    total[total < threshold * (1 - 1e-9)] = 0.0
    for v in range(n):
        total[:, v] /= total[:, v].sum()
    return total


def triples(graphs, *, alpha=0.2, threshold=0.01):
    """Give (x, A, S) of every graph, S rounded to float32 as ours is stored."""
    found = []
    for g in range(len(graphs)):
        x, adjacency = dense(graphs, g)
        s = ppr(adjacency, alpha, threshold).astype(np.float32)
        found.append((x, adjacency, s.astype(np.float64)))
    return found


# Encoder -------------------------------------------------------------------------


def affine(w, name, row):
    return w[f"{name}.weight"] @ row + w[f"{name}.bias"]


def mlp(w, name, row):
    return affine(w, f"{name}.2", torch.clamp(affine(w, f"{name}.0", row), min=0))


def convolve(w, name, rows, messages):
    """H_v <- MLP(H_v + sum_u a_uv H_u), node after node."""
    found = []
    for v in range(len(rows)):
        total = rows[v]
        for u in range(len(rows)):
            if messages[u, v] != 0:
                total = total + float(messages[u, v]) * rows[u]
        found.append(mlp(w, name, total))
    return found


def nodes(w, x, messages):
    """H = [H^1 | .. | H^L] as a list of one vector per node."""
    rows, layers, k = list(torch.from_numpy(np.asarray(x, np.float64))), [], 0
    while f"convs.{k}.mlp.0.weight" in w:
        rows = convolve(w, f"convs.{k}.mlp", rows, messages)
        layers.append(rows)
        k += 1
    return [torch.cat([rows[v] for rows in layers]) for v in range(len(x))]


def pool(rows):
    """U = sum_v H_v."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


# Losses --------------------------------------------------------------------------


def length(a):
    return torch.sqrt((a * a).sum())


def unit(a):
    return a / length(a)


def cosine(a, b):
    return (a * b).sum() / (length(a) * length(b))


def nt_xent(us, vs, temperature):
    """Mean of L over both orders of every pair (5), (6)."""
    us, vs = [unit(u) for u in us], [unit(v) for v in vs]
    everything = [*us, *vs]

    def pair(anchor, partner):
        dots = [
            (everything[anchor] * z).sum() / temperature
            for other, z in enumerate(everything)
            if other != anchor
        ]
        own = (everything[anchor] * everything[partner]).sum() / temperature
        return -own + torch.logsumexp(torch.stack(dots), 0)

    b = len(us)
    total = sum(pair(k, b + k) + pair(b + k, k) for k in range(b))
    return total / (2 * b)


def contrast(ours, glob, prev, temperature):
    """-log of the softmax weight of ``glob`` against ``prev`` (7)."""
    s = cosine(ours, glob) / temperature
    c = cosine(ours, prev) / temperature
    return torch.log(torch.exp(s) + torch.exp(c)) - s


def inter_graphs(us, globs, prevs, temperature):
    terms = [contrast(*row, temperature) for row in zip(us, globs, prevs, strict=True)]
    return sum(terms) / len(terms)


def inter_nodes(hs, globs, prevs, temperature):
    """(8): mean over the nodes of a graph, then over graphs."""
    of_graphs = []
    for rows in zip(hs, globs, prevs, strict=True):
        terms = [contrast(*row, temperature) for row in zip(*rows, strict=True)]
        of_graphs.append(sum(terms) / len(terms))
    return sum(of_graphs) / len(of_graphs)


def distill_kl(us, globs, temperature, *, normalize):
    """(2): the expectation is under the global model."""
    total = 0.0
    for u, g in zip(us, globs, strict=True):
        if normalize:
            u, g = unit(u), unit(g)
        q, p = torch.softmax(u / temperature, 0), torch.softmax(g / temperature, 0)
        total = total + sum(p[k] * (p[k].log() - q[k].log()) for k in range(len(p)))
    return total / len(us)


def distill_mse(us, globs, *, normalize):
    """(3)."""
    total = 0.0
    for u, g in zip(us, globs, strict=True):
        if normalize:
            u, g = unit(u), unit(g)
        total = total + ((u - g) * (u - g)).sum()
    return total / len(us)


def loss(
    w,
    glob,
    prev,
    graphs,
    *,
    inter,
    temperature=0.5,
    inter_temperature=0.5,
    inter_weight=1.0,
):
    """Intra + weight * inter (9) of one batch of graphs (x, A, S)."""
    own = [nodes(w, x, a) for x, a, _ in graphs]
    other = [nodes(w, x, s) for x, _, s in graphs]
    us, vs = [pool(h) for h in own], [pool(h) for h in other]
    total = nt_xent(us, vs, temperature)
    if inter == "none":
        return total
    with torch.no_grad():
        by_glob = [nodes(glob, x, a) for x, a, _ in graphs]
        by_prev = [nodes(prev, x, a) for x, a, _ in graphs]
        glob_us, prev_us = [pool(h) for h in by_glob], [pool(h) for h in by_prev]
    if inter == "nodes":
        second = inter_nodes(own, by_glob, by_prev, inter_temperature)
    elif inter == "kl":
        second = distill_kl(us, glob_us, inter_temperature, normalize=True)
    elif inter == "mse":
        second = distill_mse(us, glob_us, normalize=True)
    else:
        second = inter_graphs(us, glob_us, prev_us, inter_temperature)
    return total + inter_weight * second


# One round at a client -----------------------------------------------------------


def frozen(w):
    return {n: t.detach().clone() for n, t in w.items()}


class AdamW:
    """Loshchilov, Hutter, arXiv:1711.05101, Algorithm 2, entry-wise."""

    def __init__(self, lr, decay):
        self.lr, self.decay, self.t, self.m, self.v = lr, decay, 0, {}, {}

    def step(self, w, grads):
        self.t += 1
        for n, g in grads.items():
            self.m[n] = 0.9 * self.m.get(n, 0.0) + 0.1 * g
            self.v[n] = 0.999 * self.v.get(n, 0.0) + 0.001 * g * g
            m = self.m[n] / (1 - 0.9**self.t)
            v = self.v[n] / (1 - 0.999**self.t)
            w[n] = w[n] - self.lr * (m / (torch.sqrt(v) + 1e-8) + self.decay * w[n])


def descend(w, value, optimizer):
    used = [n for n in w if w[n].requires_grad]
    grads = torch.autograd.grad(value, [w[n] for n in used])
    with torch.no_grad():
        optimizer.step(w, dict(zip(used, grads, strict=True)))
    for n in used:
        w[n] = w[n].detach().requires_grad_()


def local_round(received, graphs, epochs, *, lr, decay, before=None, **options):
    """Train one round (Algorithm 1, lines 10 to 20) and return the weights.

    ``epochs`` lists, per local epoch, the batches as lists of rows of ``graphs``.
    ``before``, the model of the previous round, replaces the model of the previous
    epoch in ``inter = "previous-round"``.
    """
    w = {n: t.detach().clone().requires_grad_() for n, t in received.items()}
    glob, prev = frozen(received), frozen(received)
    if options["inter"] == "previous-round" and before is not None:
        prev = frozen(before)
    optimizer = AdamW(lr, decay)
    for batches in epochs:
        for rows in batches:
            batch = [graphs[g] for g in rows]
            descend(w, loss(w, glob, prev, batch, **options), optimizer)
        if options["inter"] != "previous-round":
            prev = frozen(w)
    return frozen(w)


# MOON ----------------------------------------------------------------------------


def represent(w, x, adjacency):
    """The input of the last layer of the GIN for classification, no dropout."""
    rows = [affine(w, "pre", r) for r in torch.from_numpy(np.asarray(x, np.float64))]
    k = 0
    while f"convs.{k}.mlp.0.weight" in w:
        rows = convolve(w, f"convs.{k}.mlp", rows, adjacency)
        rows = [torch.clamp(row, min=0) for row in rows]
        k += 1
    return torch.clamp(affine(w, "post", pool(rows)), min=0)


def moon_loss(w, glob, prev, graphs, labels, *, mu, temperature):
    zs = [represent(w, x, a) for x, a in graphs]
    with torch.no_grad():
        globs = [represent(glob, x, a) for x, a in graphs]
        prevs = [represent(prev, x, a) for x, a in graphs]
    classified = 0.0
    for z, label in zip(zs, labels, strict=True):
        scores = affine(w, "readout", z)
        classified = classified + torch.logsumexp(scores, 0) - scores[int(label)]
    second = inter_graphs(zs, globs, prevs, temperature)
    return classified / len(zs) + mu * second


def moon_round(received, graphs, labels, epochs, *, lr, decay, before=None, **options):
    """One local round; ``before`` is the client's model after its last round."""
    w = {n: t.detach().clone().requires_grad_() for n, t in received.items()}
    glob = frozen(received)
    prev = frozen(received if before is None else before)
    optimizer = AdamW(lr, decay)
    for batches in epochs:
        for rows in batches:
            batch, classes = [graphs[g] for g in rows], [labels[g] for g in rows]
            descend(w, moon_loss(w, glob, prev, batch, classes, **options), optimizer)
    return frozen(w)
