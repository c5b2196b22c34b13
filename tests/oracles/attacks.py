"""Attacks by loops over clients, numbers, nodes and edges, in doubles."""

from __future__ import annotations

from math import erf, sqrt
from statistics import fmean, pstdev


def falsified(rows, hostile, kind, s):
    """Rows that hostile clients send: all kinds but noise."""
    n, f = len(rows), len(hostile)
    columns = zip(*(r for c, r in enumerate(rows) if c not in hostile), strict=True)
    of_all = [(fmean(column), pstdev(column)) for column in columns]
    sent = {
        "sign": lambda row: [-s * x for x in row],
        "scale": lambda row: [s * x for x in row],
        "ipm": lambda _: [-s * mean for mean, _ in of_all],
        "alie": lambda _: [m - s * offset(n, f) * deviation for m, deviation in of_all],
    }[kind]
    return {c: sent(rows[c]) for c in sorted(hostile)}


def offset(n, f):
    """Baruch et al. 2019, Algorithm 3: Phi(z) = (n - f - s) / (n - f), by halving."""
    share = (n - f - (n // 2 + 1 - f)) / (n - f)
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + erf(middle / sqrt(2))) / 2 < share:
            low = middle
        else:
            high = middle
    return low


def clique(num_nodes, edges, size):
    """Nodes of highest degree, and a graph's edges once they are all joined."""
    degree = [sum(a == v for a, _ in edges) for v in range(num_nodes)]
    top = sorted(range(num_nodes), key=lambda v: (-degree[v], v))[:size]
    return top, {*edges, *((a, b) for a in top for b in top if a != b)}
