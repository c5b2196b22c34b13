"""GCFL and GCFL+ transcribed from the paper, loop by loop and without our code.

Xie, Ma, Xiong, Yang: Federated Graph Classification over Non-IID Graphs, NeurIPS 2021.
Numbers in brackets are its equations. Vectors are lists of Python floats (doubles).
"""

from __future__ import annotations

import math
from itertools import combinations


def norm(v):
    return math.sqrt(sum(x * x for x in v))


def mean_norm(updates, weights):
    """Delta_mean: norm of sum_i (w_i / W) Delta_i (4)."""
    total = sum(weights)
    mean = [0.0] * len(updates[0])
    for update, weight in zip(updates, weights, strict=True):
        for k, x in enumerate(update):
            mean[k] += weight / total * x
    return norm(mean)


def max_norm(updates):
    """Delta_max (5)."""
    return max(norm(u) for u in updates)


def cosine_weights(updates):
    """Alpha_pq = 1 + cos(Delta_p, Delta_q), kept within [0, 2]."""
    n = len(updates)
    alpha = [[0.0] * n for _ in range(n)]
    for p in range(n):
        for q in range(n):
            dot = sum(a * b for a, b in zip(updates[p], updates[q], strict=True))
            length = max(norm(updates[p]) * norm(updates[q]), 1e-12)
            alpha[p][q] = min(2.0, max(0.0, 1.0 + dot / length))
    return alpha


def dtw(a, b):
    """Dynamic time warping: squared steps, no window, no penalty, root at the end."""
    inf = math.inf
    cost = [[inf] * (len(b) + 1) for _ in range(len(a) + 1)]
    cost[0][0] = 0.0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            before = min(cost[i - 1][j], cost[i][j - 1], cost[i - 1][j - 1])
            cost[i][j] = (a[i - 1] - b[j - 1]) ** 2 + before
    return math.sqrt(cost[-1][-1])


def standardized(series):
    """Divide by the population standard deviation; no mean is removed."""
    mean = sum(series) / len(series)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in series) / len(series))
    return series if deviation < 1e-12 else [x / deviation for x in series]


def dtw_weights(histories, *, standardize=False):
    """W = max(beta) - beta (8)."""
    if standardize:
        histories = [standardized(h) for h in histories]
    beta = [[dtw(a, b) for b in histories] for a in histories]
    largest = max(max(row) for row in beta)
    return [[largest - x for x in row] for row in beta]


def cut_weight(weights, left):
    """Sum of the weights between ``left`` and the rest."""
    right = [q for q in range(len(weights)) if q not in left]
    return sum(weights[p][q] for p in left for q in right)


def all_cuts(n):
    """Yield the 2^(n-1) - 1 ways to cut n rows in two, as the side that holds row 0."""
    for size in range(n - 1):
        for others in combinations(range(1, n), size):
            yield (0, *others)


def min_cut(weights):
    """Return (left, right) of the lightest of all cuts."""
    n = len(weights)
    left = min(all_cuts(n), key=lambda side: cut_weight(weights, side))
    return list(left), [q for q in range(n) if q not in left]


def aggregate(theta, deltas, sizes):
    """Theta + sum_i (n_i / N) Delta_i (7), with the mean that the code takes."""
    total = sum(sizes)
    new = list(theta)
    for delta, size in zip(deltas, sizes, strict=True):
        for k, x in enumerate(delta):
            new[k] += size / total * x
    return new


def server_round(
    clusters,
    thetas,
    histories,
    deltas,
    sizes,
    *,
    t,
    eps_1,
    eps_2,
    d,
    use_dtw,
    min_round=20,
    min_size=3,
    standardize=False,
):
    """One round of the server (Sec. 4.2, 4.3); returns clusters, thetas, histories.

    ``clusters`` and ``thetas`` are parallel lists, ``histories``, ``deltas`` and
    ``sizes`` go by client id; every client replied. A GCFL+ split empties all
    histories there and then, as in the authors' ``training.py:run_gcflplus``, so a
    second cluster cannot split in the same round.
    """
    histories = {c: [*histories[c], norm(deltas[c])] for c in histories}
    new_clusters, new_thetas = [], []
    for members, theta in zip(clusters, thetas, strict=True):
        updates = [deltas[c] for c in members]
        weights = [1.0 for _ in members]
        split = (
            mean_norm(updates, weights) < eps_1
            and max_norm(updates) > eps_2
            and len(members) >= min_size
            and t > min_round
            and (not use_dtw or all(len(h) >= d for h in histories.values()))
        )
        parts = [list(members)]
        if split:
            if use_dtw:
                recent = [histories[c][-d:] for c in members]
                similar = dtw_weights(recent, standardize=standardize)
                histories = {c: [] for c in histories}
            else:
                similar = cosine_weights(updates)
            if max(max(row) for row in similar) > 0:
                parts = [[members[i] for i in side] for side in min_cut(similar)]
        for part in parts:
            new_clusters.append(part)
            new_thetas.append(
                aggregate(theta, [deltas[c] for c in part], [sizes[c] for c in part])
            )
    return new_clusters, new_thetas, histories
