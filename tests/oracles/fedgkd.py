"""FedGKD transcribed from the paper, loop by loop and without our code.

Pan et al. 2023. Numbers in brackets are its equations; matrices are NumPy arrays.
"""

from __future__ import annotations

import math

import numpy as np


def relatedness(features, min_std=1e-8):
    """R (10): mean of ``corrcoef`` over columns that vary in both clients."""
    n = len(features)
    r = np.eye(n)
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            found = []
            for k in range(features[i].shape[1]):
                a = features[i][:, k].astype(np.float64)
                b = features[j][:, k].astype(np.float64)
                if a.std() > min_std and b.std() > min_std:
                    found.append(np.corrcoef(a, b)[0, 1])
            r[i, j] = sum(found) / len(found) if found else 0.0
    return r


def exponential(r, tau, terms=60):
    """S (11): the series, term by term."""
    power = np.eye(len(r))
    total = power.copy()
    for kappa in range(1, terms):
        power = power @ (tau * r) / kappa
        total = total + power
    return total


def attention(s, tau_s):
    """q (9)."""
    n = len(s)
    q = np.zeros((n, n))
    for i in range(n):
        k = [math.exp(tau_s * s[i, j]) for j in range(n)]
        for j in range(n):
            q[i, j] = k[j] / sum(k)
    return q


def averages(models, q):
    """Personal means (8) of flat models."""
    return [sum(q[i, j] * models[j] for j in range(len(models))) for i in range(len(q))]


def gcn(x, adjacency, convs):
    """Symmetric normalisation with loops, linear map, bias, ReLU; node by node."""
    n = len(x)
    loops = adjacency + np.eye(n)
    degree = loops.sum(1)
    for weight, bias in convs:
        out = np.zeros((n, len(bias)))
        for u in range(n):
            for v in range(n):
                if loops[u, v]:
                    share = loops[u, v] / math.sqrt(degree[u] * degree[v])
                    out[u] += share * (weight @ x[v])
            out[u] += bias
        x = np.maximum(out, 0)
    return x


def proximal(w, reference, weight):
    """Lambda ||W - Wbar||^2 and its gradient (Algorithm 1)."""
    drift = w - reference
    return weight * float(drift @ drift), 2 * weight * drift
