"""FedStar's structure encoding with dense matrices (Tan et al. 2023)."""

from __future__ import annotations

import numpy as np


def encode(adjacency, walk_length, max_degree):
    n = len(adjacency)
    degree = adjacency.sum(0)
    inverse = np.array([1 / d if d else 0.0 for d in degree])
    walk = adjacency @ np.diag(inverse)
    encoding = np.zeros((n, walk_length + max_degree))
    for v in range(n):
        for k in range(1, walk_length + 1):
            encoding[v, k - 1] = np.linalg.matrix_power(walk, k)[v, v]
        column = int(min(max(degree[v], 1), max_degree)) - 1
        encoding[v, walk_length + column] = 1
    return encoding
