"""FED-PUB's server, loop by loop and without our code (Baek et al. 2023)."""

from __future__ import annotations

import math


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
