"""Robust rules by loops over clients and numbers, in doubles: rows, weights, f."""

from __future__ import annotations

from math import dist, hypot
from statistics import fmean, median


def by_number(rows, of):
    """Apply ``of`` to the clients' values of each number."""
    return [of(list(column)) for column in zip(*rows, strict=True)]


def by_median(rows, _weights, _f):
    """Yin et al. 2018, Definition 1."""
    return by_number(rows, median)


def by_trimming(rows, _weights, f):
    """Yin et al. 2018, Definition 2, with beta = f / n."""
    return by_number(rows, lambda values: fmean(sorted(values)[f : len(values) - f]))


def by_multi_krum(rows, _weights, f):
    """Blanchard et al. 2017, Sec. 3 and 4: mean of the n - f rows of lowest scores."""
    n, scores = len(rows), []
    for i, row in enumerate(rows):
        others = sorted(dist(row, r) ** 2 for j, r in enumerate(rows) if j != i)
        scores.append((sum(others[: n - f - 2]), i))
    return by_number([rows[i] for _, i in sorted(scores)[: n - f]], fmean)


def by_clipping(rows, _weights, _f):
    """Mean of updates whose length is at most the median one."""
    tau = median(hypot(*row) for row in rows)
    return by_number([[x * min(1, tau / hypot(*r)) for x in r] for r in rows], fmean)


def by_rfa(rows, weights, _f):
    """Pillutla et al. 2022, Algorithm 2, from the clipped mean; weights as given."""
    z = by_clipping(rows, weights, 0)
    nu = 1e-6 * median(hypot(*row) for row in rows)
    for _ in range(8):
        b = [w / max(nu, dist(r, z)) for w, r in zip(weights, rows, strict=True)]
        scaled = [[x * s for x in r] for r, s in zip(rows, b, strict=True)]
        z = [x / sum(b) for x in by_number(scaled, sum)]
    return z


def nearest(rows, f):
    """Allouah et al. 2023, Algorithm 2: each row with its n - f nearest."""
    mixed = []
    for i, row in enumerate(rows):
        near = sorted((dist(row, r), j != i, j) for j, r in enumerate(rows))
        mixed.append(by_number([rows[j] for *_, j in near[: len(rows) - f]], fmean))
    return mixed


def buckets(rows, order):
    """Karimireddy et al. 2022, Algorithm 1, s = 2, in a given order."""
    pairs = [order[k : k + 2] for k in range(0, len(rows), 2)]
    return [by_number([rows[k] for k in pair], fmean) for pair in pairs]


RULES = {
    "median": by_median,
    "trimmed": by_trimming,
    "multi-krum": by_multi_krum,
    "rfa": by_rfa,
    "clip": by_clipping,
}
