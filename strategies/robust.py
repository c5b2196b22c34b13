"""Means that a few clients cannot turn.

A rule is given updates, one client a row, in doubles and in ascending client order. It
returns the joined update and the part of it that is of each row, averaged over the
numbers: 1 / n each in a plain mean, 0 for a row that is left out. Ties go to the lowest
row. ``hostile`` is f of the papers.

Source
------
Yin et al. 2018, arXiv:1803.01498, Definitions 1 and 2 (median, trimmed mean); Blanchard
et al. 2017, arXiv:1703.02757, Sec. 4 (Multi-Krum, here with m = n - f); Pillutla et al.
2022, arXiv:1912.13445, Algorithm 2 (RFA); Allouah et al. 2023, arXiv:2302.01772,
Algorithm 2 (nearest); Karimireddy et al. 2022, arXiv:2006.09365, Algorithm 1, s = 2
(buckets).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from fedgraph_flwr.core.robust_settings import NO_MIX, RobustSettings

from .averaging import FloatArray, on_all_cores

Joined: TypeAlias = tuple[FloatArray, FloatArray]  # the update, the rows' parts of it
_BLOCK = 1 << 18  # numbers of each client that are sorted at a time; bounds memory
_STEPS, _NU = 8, 1e-6  # of :func:`rfa`
_FAR_COUNTS = 4  # times as much data, from which clients that count alike are named


def join(
    updates: FloatArray,
    weights: FloatArray,
    how: RobustSettings,
    rng: np.random.Generator,
) -> Joined:
    """Mix updates and join them, as ``how`` says; it has no rule for the mean.

    Updates are of shape (num_clients, num_numbers). Weights are above 0; only "rfa"
    without a mix reads them. ``rng`` draws the buckets.
    """
    rule, n = RULES[how.rule], len(updates)
    if how.mix == NO_MIX:
        return rule(updates, weights, how.hostile)
    is_near = how.mix == "nearest"
    mixing = nearest(updates, how.hostile) if is_near else buckets(n, rng)
    rows = np.stack([_weighed(updates, shares) for shares in mixing])
    joined, part = rule(rows, np.ones(len(rows)), how.hostile)
    return joined, part @ mixing


def trimmed(rows: FloatArray, _weights: FloatArray, hostile: int) -> Joined:
    """Mean of each number without its ``hostile`` smallest and largest values.

    Rows with equal values share the places that these have among the kept ones.
    """
    n, size = rows.shape
    joined, part = np.empty(size), np.zeros(n)
    for begin in range(0, size, _BLOCK):
        u = rows[:, begin : begin + _BLOCK]
        kept = np.sort(u, axis=0)[hostile : n - hostile]
        joined[begin : begin + _BLOCK] = kept.mean(axis=0)
        low, high = kept[0], kept[-1]
        shares = ((u > low) & (u < high)).astype(np.float64)
        for edge, at in ((low, u == low), (high, (u == high) & (u > low))):
            shares += at * ((kept == edge).sum(axis=0) / np.maximum(at.sum(axis=0), 1))
        part += shares.sum(axis=1)
    return joined, part / part.sum()


def median(rows: FloatArray, weights: FloatArray, _hostile: int) -> Joined:
    """Median of each number; of even many the mean of the two in the middle."""
    return trimmed(rows, weights, (len(rows) - 1) // 2)


def multi_krum(rows: FloatArray, _weights: FloatArray, hostile: int) -> Joined:
    """Mean of the n - f rows that are closest to their n - f - 2 nearest others."""
    n = len(rows)
    ascending = np.sort(distances(rows), axis=1)  # of each row, itself first
    scores = ascending[:, 1 : n - hostile - 1].sum(axis=1)
    chosen = np.argsort(scores, kind="stable")[: n - hostile]
    part = np.zeros(n)
    part[chosen] = 1 / (n - hostile)
    return _weighed(rows, part), part


def clip(rows: FloatArray, _weights: FloatArray, _hostile: int) -> Joined:
    """Mean of updates, the longer half of which is cut to the median length."""
    lengths = np.linalg.norm(rows, axis=1)
    limit = np.median(lengths)
    kept = np.divide(limit, lengths, out=np.ones(len(rows)), where=lengths > limit)
    return _weighed(rows, kept / len(rows)), kept / len(rows)


def rfa(
    rows: FloatArray, weights: FloatArray, _hostile: int, nu: float = _NU
) -> Joined:
    """Geometric median, by eight smoothed Weiszfeld steps.

    No distance counts for less than ``nu`` times the median length of updates. Differs:
    weights are :func:`capped`, and steps begin at :func:`clip`, which no client moves
    far: from the mean, eight steps do not come back from an update of 1e30.
    """
    w, (z, part) = capped(weights), clip(rows, weights, 0)
    least = nu * float(np.median(np.linalg.norm(rows, axis=1))) or _NU
    for _ in range(_STEPS):
        part = w / np.maximum(least, np.linalg.norm(rows - z, axis=1))
        part /= part.sum()
        z = _weighed(rows, part)
    return z, part


RULES: Mapping[str, Callable[[FloatArray, FloatArray, int], Joined]] = {
    "median": median,
    "trimmed": trimmed,
    "multi-krum": multi_krum,
    "rfa": rfa,
    "clip": clip,
}


def capped(weights: FloatArray) -> FloatArray:
    """Cut the largest weights so that none is above 2 / n of their sum."""
    most = 2 / len(weights)
    descending = np.sort(weights)[::-1]
    for k, largest in enumerate(descending):
        cap = most * descending[k:].sum() / (1 - most * k)  # if the k largest are cut
        if largest <= cap:
            return np.asarray(np.minimum(weights, cap))
    raise AssertionError("fewer than half are ever cut")


def distances(rows: FloatArray) -> FloatArray:
    """Squared distances of all pairs, by differences, which lose no digits."""

    def to_earlier(i: int) -> list[float]:
        return [float(np.square(rows[i] - row).sum()) for row in rows[:i]]

    found = np.zeros((len(rows), len(rows)))
    for i, line in enumerate(on_all_cores(to_earlier, range(len(rows)))):
        found[i, :i] = found[:i, i] = line
    return found


def nearest(rows: FloatArray, hostile: int) -> FloatArray:
    """Mix each row with its n - f nearest, itself included: shape (n, n)."""
    n = len(rows)
    apart = distances(rows)
    np.fill_diagonal(apart, -1.0)  # nearer than its equals
    near = np.argsort(apart, axis=1, kind="stable")[:, : n - hostile]
    mixing = np.zeros((n, n))
    np.put_along_axis(mixing, near, 1 / (n - hostile), axis=1)
    return mixing


def buckets(n: int, rng: np.random.Generator) -> FloatArray:
    """Mix rows in random pairs, of odd many one alone: shape (ceil(n / 2), n)."""
    order = rng.permutation(n)
    mixing = np.zeros((math.ceil(n / 2), n))
    for k, shares in enumerate(mixing):
        pair = order[2 * k : 2 * k + 2]
        shares[pair] = 1 / len(pair)
    return mixing


def _weighed(rows: FloatArray, shares: FloatArray) -> FloatArray:
    """Sum rows times shares, ascending, which fixes the rounding."""
    total = np.zeros(rows.shape[1])
    for row, share in zip(rows, shares, strict=True):
        if share:
            total += share * row
    return total


def levelled(weights: Mapping[int, float], how: RobustSettings) -> str:
    """Say whose data count less than they would in a mean; "" if about alike."""
    known = sorted((w, c) for c, w in weights.items() if w > 0)
    times = known[-1][0] / known[0][0] if known else 1.0
    if times <= _FAR_COUNTS or not how.counts_alike:
        return ""
    return (
        f"robust.rule {how.rule!r} counts clients alike, though client {known[-1][1]}"
        f" tells of {times:.3g} times as much training data as client {known[0][1]}"
    )
