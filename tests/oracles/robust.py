"""Robust rules (papers named below) by loops over clients and numbers, in doubles."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, median


def by_number(rows, of):
    """Apply ``of`` to the clients' values of each number."""
    return [of(list(column)) for column in zip(*rows, strict=True)]


def apart(x, y):
    """Euclidean distance."""
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def by_median(rows, _weights, _f):
    """Yin et al. 2018, Definition 1."""
    return by_number(rows, median)


def by_trimming(rows, _weights, f):
    """Yin et al. 2018, Definition 2, with beta = f / n."""
    return by_number(rows, lambda values: fmean(sorted(values)[f : len(values) - f]))


def krum_choice(rows, f):
    """Blanchard et al. 2017, Sec. 3 and 4: the n - f rows of the lowest scores."""
    n, scores = len(rows), []
    for i, row in enumerate(rows):
        others = sorted(apart(row, r) ** 2 for j, r in enumerate(rows) if j != i)
        scores.append((sum(others[: n - f - 2]), i))
    return sorted(i for _, i in sorted(scores)[: n - f])


def by_multi_krum(rows, _weights, f):
    """Mean of the chosen ones."""
    return by_number([rows[i] for i in krum_choice(rows, f)], fmean)


def by_clipping(rows, _weights, _f):
    """Mean of updates whose length is at most the median one."""
    lengths = [apart(row, [0.0] * len(row)) for row in rows]
    tau = median(lengths)
    cut = [
        [x * (tau / length if length > tau else 1.0) for x in row]
        for row, length in zip(rows, lengths, strict=True)
    ]
    return by_number(cut, fmean)


def by_rfa(rows, weights, _f, nu=1e-6):
    """Pillutla et al. 2022, Algorithm 2, from the clipped mean; weights as given."""
    z = by_clipping(rows, weights, 0)
    nu *= median(apart(row, [0.0] * len(row)) for row in rows)
    for _ in range(8):
        b = [w / max(nu, apart(r, z)) for w, r in zip(weights, rows, strict=True)]
        pairs = [[x * share for x in row] for row, share in zip(rows, b, strict=True)]
        z = by_number(pairs, sum)
        z = [x / sum(b) for x in z]
    return z


def nearest(rows, f):
    """Allouah et al. 2023, Algorithm 2: each row with its n - f nearest."""
    mixed = []
    for i, row in enumerate(rows):
        near = sorted((apart(row, r), j != i, j) for j, r in enumerate(rows))
        mixed.append(by_number([rows[j] for *_, j in near[: len(rows) - f]], fmean))
    return mixed


def buckets(rows, order):
    """Karimireddy et al. 2022, Algorithm 1, s = 2, in a given order."""
    ends = [*range(0, len(rows), 2), len(rows)]
    return [
        by_number([rows[k] for k in order[begin:end]], fmean)
        for begin, end in pairwise(ends)
    ]


RULES = {
    "median": by_median,
    "trimmed": by_trimming,
    "multi-krum": by_multi_krum,
    "rfa": by_rfa,
    "clip": by_clipping,
}
