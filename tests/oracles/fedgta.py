"""FedGTA, loop by loop, from our specification of the method and not from our code."""

from __future__ import annotations

import math

import numpy as np


def soft_labels(predicted, labels, train, adjacency, *, steps, alpha, reinforce, t):
    """Propagated labels of every node, training nodes with their own label."""
    n, classes = len(predicted), len(predicted[0])
    loops = [[float(adjacency[u][v]) + (u == v) for v in range(n)] for u in range(n)]
    degree = [sum(row) for row in loops]
    start = [list(map(float, row)) for row in predicted]
    for v in train:
        start[v] = [float(c == labels[v]) for c in range(classes)]
    y = [row[:] for row in start]
    for _ in range(steps):
        new = []
        for u in range(n):
            row = []
            for c in range(classes):
                near = sum(
                    loops[u][v] * y[v][c] / math.sqrt(degree[u] * degree[v])
                    for v in range(n)
                )
                row.append(alpha * near + (1 - alpha) * start[u][c])
            new.append(row)
        if reinforce:
            for v in train:
                new[v] = [a + b for a, b in zip(new[v], start[v], strict=True)]
        y = new
    soft = []
    for v in range(n):
        grown = [math.exp(value / t) for value in y[v]]
        soft.append([g / sum(grown) for g in grown])
    for v in train:
        soft[v] = start[v]
    return np.array(soft)


def confidence(soft, adjacency):
    """Degree-weighted distance of entropy terms from their largest."""
    total = 0.0
    for row, edges in zip(soft, adjacency, strict=True):
        terms = [1 / math.e + p * math.log(p + 1e-8) for p in row]
        total += sum(edges) * sum(terms)
    return total


def moments(soft, orders, kind):
    """Row-major (orders, classes), raw above central for hybrid."""
    n, classes = len(soft), len(soft[0])
    means = [sum(row[c] for row in soft) / n for c in range(classes)]
    found = []
    for which in {"raw": [0], "central": [1], "hybrid": [0, 1]}[kind]:
        for p in range(1, orders + 1):
            for c in range(classes):
                powers = [(row[c] - which * means[c]) ** p for row in soft]
                found.append(sum(powers) / n)
    return found


def weights(moment_vectors, confidences, epsilon):
    """Rows of the average that each client receives."""
    found = []
    for i, mine in enumerate(moment_vectors):
        row = []
        for j, other in enumerate(moment_vectors):
            dot = sum(a * b for a, b in zip(mine, other, strict=True))
            size = math.sqrt(sum(a * a for a in mine) * sum(b * b for b in other))
            row.append(confidences[j] if i == j or dot / size > epsilon else 0.0)
        found.append([value / sum(row) for value in row])
    return found
