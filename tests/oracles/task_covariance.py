"""Slow transcription of SpreadGNN's formulas on tasks, from the paper.

Rows of ``phi`` are tasks. Sec. 2.2, 2.3, 4.4; written entry by entry, from the paper's
equations and not from our code.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import sqrtm


def closed_form(phi):
    """(Phi Phi^T)^(1/2) / tr(...) by scipy's matrix square root."""
    root = np.real(sqrtm(phi @ phi.T))
    return root / np.trace(root)


def penalty(phi, omega):
    """tr(Phi^T Omega^-1 Phi) as a sum over pairs of tasks and coordinates."""
    inverse = np.linalg.inv(omega)
    total = 0.0
    for s in range(len(phi)):
        for t in range(len(phi)):
            for k in range(phi.shape[1]):
                total += phi[s, k] * inverse[s, t] * phi[t, k]
    return total


def penalty_gradient(phi, omega, step=1e-6):
    """Central differences of the penalty in every entry of Phi."""
    gradient = np.zeros_like(phi)
    for at in np.ndindex(*phi.shape):
        moved = [phi.copy(), phi.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        gradient[at] = (penalty(moved[0], omega) - penalty(moved[1], omega)) / 2 / step
    return gradient


def align(covariances, tasks):
    """Average entry by entry over those that have both tasks; given as (ids, omega)."""
    found = np.zeros((len(tasks), len(tasks)))
    for i, s in enumerate(tasks):
        for j, t in enumerate(tasks):
            known = [
                omega[list(ids).index(s), list(ids).index(t)]
                for ids, omega in covariances
                if s in ids and t in ids
            ]
            if known:
                found[i, j] = sum(known) / len(known)
            elif s == t:
                found[i, j] = 1 / len(tasks)
    return found


def update(covariances, phi, tasks, eta):
    """Mix with the closed form, clip eigenvalues at 1e-8, divide by the trace."""
    mixed = (1 - eta) * align(covariances, tasks) + eta * closed_form(phi)
    values, vectors = np.linalg.eigh((mixed + mixed.T) / 2)
    clipped = sum(
        max(value, 1e-8) * np.outer(v, v)
        for value, v in zip(values, vectors.T, strict=True)
    )
    return clipped / np.trace(clipped)
