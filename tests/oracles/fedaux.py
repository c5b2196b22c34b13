"""FedAux's pooling, node by node and without our code (Zhuo et al. 2025, Eq. 2-6)."""

from __future__ import annotations

import math


def scores(h, apv):
    """Cosine of each node's embedding with the projection; 0 for a zero embedding."""
    found = []
    for row in h:
        dot = sum(a * b for a, b in zip(row, apv, strict=True))
        size = math.sqrt(sum(a * a for a in row) * sum(b * b for b in apv))
        found.append(dot / size if size else 0.0)
    return found


def pooled(h, s, sigma):
    """Kernel mean of all nodes, for each node."""
    found = []
    for own in s:
        weights = [math.exp(-(((own - other) / sigma) ** 2)) for other in s]
        columns = zip(*h, strict=True)
        found.append(
            [
                sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights)
                for column in columns
            ]
        )
    return found
