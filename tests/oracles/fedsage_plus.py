"""FedSage+'s cross-client feature loss, loop by loop (Zhang et al. 2021)."""

from __future__ import annotations


def cross_loss(generated, others):
    """Nearest row of each other client to each generated one; mean of all entries."""
    total = 0.0
    for rows in others:
        for made in generated:
            distances = []
            for row in rows:
                squares = [(a - b) ** 2 for a, b in zip(made, row, strict=True)]
                distances.append(sum(squares) / len(squares))
            total += min(distances)
    return total / (len(others) * len(generated))
