"""FED-PUB's server, loop by loop and without our code (Baek et al. 2023)."""

from __future__ import annotations

import math

import numpy as np


def weights(embeddings, alpha):
    """Rows of exp(alpha cos) over their sum."""
    found = []
    for e in embeddings:
        row = []
        for other in embeddings:
            dot = sum(a * b for a, b in zip(e, other, strict=True))
            length = math.sqrt(sum(a * a for a in e) * sum(b * b for b in other))
            row.append(math.exp(alpha * (dot / length if length else 0.0)))
        found.append([v / sum(row) for v in row])
    return found


def embedding(x, adjacency, layers, threshold):
    """Mean over nodes of a dense masked GCN's last convolution, without its ReLU.

    ``layers`` are (weight, bias, mask); entries of a mask below the threshold are 0.
    """
    with_loops = np.asarray(adjacency, np.float64) + np.eye(len(x))
    root = np.diag(with_loops.sum(1) ** -0.5)
    h = np.asarray(x, np.float64)
    for k, (weight, bias, mask) in enumerate(layers):
        h = h if k == 0 else np.maximum(h, 0)
        kept = np.where(np.abs(mask) < threshold, 0, mask)
        h = root @ with_loops @ root @ h @ (weight * kept).T + bias
    return h.sum(0) / len(h)
