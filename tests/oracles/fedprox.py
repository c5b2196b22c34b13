"""FedProx's proximal term (Li et al. 2020, Eq. 2), entry by entry in float64."""

from __future__ import annotations

import numpy as np


def penalty(weights, received, mu):
    """(mu / 2) sum over shared tensors and entries of (w - w_received)^2."""
    total = 0.0
    for name, reference in received.items():
        pairs = zip(weights[name].ravel(), reference.ravel(), strict=True)
        for w, r in pairs:
            total += (float(w) - float(r)) ** 2
    return mu / 2 * total


def penalty_gradient(weights, received, mu, *, step=1e-4):
    """Its gradient by central differences, one tensor after the other."""
    gradient = {}
    for name in received:
        entry = np.zeros(weights[name].shape)
        for index in np.ndindex(entry.shape):
            moved = [np.array(weights[name], np.float64) for _ in range(2)]
            moved[0][index] += step
            moved[1][index] -= step
            high, low = (penalty({name: m}, {name: received[name]}, mu) for m in moved)
            entry[index] = (high - low) / (2 * step)
        gradient[name] = entry
    return gradient
