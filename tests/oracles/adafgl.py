"""AdaFGL's own stage, loop by loop, from our specification and not from our code.

Only its training is left to torch: gradients and Adam.
"""

from __future__ import annotations

import math

import numpy as np
import torch


def softmax(row):
    grown = [math.exp(v - max(row)) for v in row]
    return [g / sum(grown) for g in grown]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def links(knowledge, least):
    """1 between nodes whose softmaxed predictions have a larger cosine."""
    q = [softmax(row) for row in knowledge]
    n = len(q)
    return np.array(
        [[float(u != v and cosine(q[u], q[v]) > least) for v in range(n)]
         for u in range(n)]
    )  # fmt: skip


def normalized(weights):
    """Symmetric normalisation of weights with loops of 1."""
    n = len(weights)
    loops = [[weights[u][v] + (u == v) for v in range(n)] for u in range(n)]
    d = [sum(row) for row in loops]
    return np.array(
        [[loops[u][v] / math.sqrt(d[u] * d[v]) for v in range(n)] for u in range(n)]
    )


def smoothed(x, weights, hops):
    """Features, then features smoothed once, twice, ..."""
    spread, parts = normalized(weights), [np.asarray(x, float)]
    for _ in range(hops):
        parts.append(spread @ parts[-1])
    return np.hstack(parts)


def signed_similarity(features, found, beta):
    """Q' entry by entry."""
    rows, n = [softmax(row) for row in features], len(features)
    q = np.zeros((n, n))
    for u in range(n):
        for v in range(n):
            alike = 0.0 if u == v else cosine(rows[u], rows[v])
            q[u, v] = beta * found[u][v] + (1 - beta) * alike
    mean, most = q.sum() / n**2, q.max()
    for u in range(n):
        for v in range(n):
            value = q[u, v]
            q[u, v] = (value - mean) / (most - mean) if value > mean else -value / mean
            q[u, v] += u == v
    return q


def spread(features, signed, slope):
    """Half of what similar nodes say, less what others say, and the node itself."""
    n, classes = len(features), len(features[0])

    def bent(value):
        return value if value > 0 else slope * value

    found = []
    for u in range(n):
        near, far = [0.0] * classes, [0.0] * classes
        for v in range(n):
            for c in range(classes):
                near[c] += bent(signed[u][v]) * features[v][c]
                far[c] += bent(-signed[u][v]) * features[v][c]
        both = zip(softmax(near), softmax(far), features[u], strict=True)
        found.append([(a - b + own) / 2 for a, b, own in both])
    return np.array(found)


def homophily(adjacency, y, kept, check, classes):
    """Share of checked nodes whose propagated label is right; ties: lowest class."""
    hat, n = normalized(adjacency), len(y)
    start = np.full((n, classes), 1 / classes)
    for v in kept:
        start[v] = [float(c == y[v]) for c in range(classes)]
    now = start.copy()
    for _ in range(10):
        now = 0.5 * hat @ now + 0.5 * start
        for v in kept:
            now[v] += start[v]
    return sum(int(np.argmax(now[v])) == y[v] for v in check) / len(check)


def fused(homo, others, knowledge, share):
    """Probabilities of both branches together."""
    found = []
    for v, row in enumerate(homo):
        first = zip(softmax(row), softmax(knowledge[v]), strict=True)
        hom = [(a + b) / 2 for a, b in first]
        votes = [softmax(z[v]) for z in others]
        het = [sum(vote) / 3 for vote in zip(*votes, strict=True)]
        found.append(
            [share * a + (1 - share) * b for a, b in zip(hom, het, strict=True)]
        )
    return np.array(found)


def own_stage(tensors, x, edges, y, train, knowledge, how, *, steps):
    """Logits Z_h, Z_o, Z_s, Z_p after ``steps`` of Adam without dropout, and links S.

    ``tensors`` of the branches by name; ``how``: settings by their keys.
    """
    t = {n: v.double().requires_grad_() for n, v in tensors.items()}
    alpha, beta, hops = (how[k] for k in ("alpha", "beta", "hops"))
    known = torch.from_numpy(np.asarray(knowledge, float))
    found = links(knowledge, how["link-cosine"])
    mixed = alpha * np.asarray(edges) + (1 - alpha) * found
    wide, found = torch.from_numpy(smoothed(x, mixed, hops)), torch.from_numpy(found)
    plain = torch.from_numpy(np.asarray(x, float))

    def perceptron(name, h, slope, layers):
        for k in range(layers):
            weight, bias = (t[f"{name}.layers.{k}.{p}"] for p in ("weight", "bias"))
            h = h @ weight.T + bias
            if k < layers - 1:
                h = torch.where(h > 0, h, slope * h)
        return h

    def outputs():
        one, two, three = (t[f"slopes.{k}"] for k in range(3))
        f = perceptron("spread", wide, three, 3)
        unit = torch.softmax(f, 1)
        unit = unit / unit.square().sum(1, keepdim=True).sqrt()
        alike = (unit @ unit.T) * (1 - torch.eye(len(f)))
        q = beta * found + (1 - beta) * alike
        above = (q - q.mean()) / (q.max() - q.mean())
        q = torch.where(q > q.mean(), above, -q / q.mean()) + torch.eye(len(f))
        near, far = (torch.where(w > 0, w, three * w) @ f for w in (q, -q))
        return (
            perceptron("homo", wide, one, 2),
            perceptron("plain", plain, two, 3),
            perceptron("smooth", wide, two, 3),
            (torch.softmax(near, 1) - torch.softmax(far, 1) + f) / 2,
        )

    def cross_entropy(z):
        return -torch.log_softmax(z, 1)[train, y[train]].mean()

    optimizer = torch.optim.Adam(
        t.values(), lr=how["learning-rate"], weight_decay=how["weight-decay"]
    )
    for _ in range(steps):
        optimizer.zero_grad()
        first, *others = outputs()
        loss = cross_entropy(first) + (first - known).square().mean()
        loss = loss + sum(map(cross_entropy, others))
        loss.backward()
        optimizer.step()
    return [*(z.detach() for z in outputs()), found]
