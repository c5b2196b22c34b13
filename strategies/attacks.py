"""Attacks on updates, played at the server: some of them need to know all of a round.

Source
------
Xie et al. 2020, arXiv:1903.03936 (inner product manipulation); Baruch et al. 2019,
arXiv:1902.06156, Algorithm 3 (a little is enough). Differs: z of the latter is 0 where
few clients would make it negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from fedgraph_flwr.core.attack_settings import OF_UPDATES, AttackSettings

from .averaging import FloatArray


def falsify(
    updates: Mapping[int, FloatArray],
    rngs: Mapping[int, np.random.Generator],
    attack: AttackSettings,
) -> dict[int, FloatArray]:
    """Make what hostile clients send instead of their updates, by client.

    Parameters
    ----------
    updates : mapping of int to float array
        Honest updates of all clients of the round, ascending.
    rngs : mapping
        Generators of noise, by hostile client. If nobody else replied, these know each
        other alone.
    """
    hostile = [c for c in updates if c in rngs]
    if attack.kind not in OF_UPDATES or not hostile:
        return {}
    honest = [u for c, u in updates.items() if c not in rngs]
    known, s = np.stack(honest or [*updates.values()]), attack.strength

    def noise(client: int) -> FloatArray:
        own = updates[client]
        deviation = s * np.linalg.norm(own) / np.sqrt(own.size)
        return rngs[client].normal(0, deviation, own.shape)

    def alie(_: int) -> FloatArray:
        z = hiding_offset(len(updates), len(hostile))
        return np.asarray(known.mean(axis=0) - s * z * known.std(axis=0))

    make: dict[str, Callable[[int], FloatArray]] = {
        "sign": lambda c: -s * updates[c],
        "scale": lambda c: s * updates[c],
        "noise": noise,
        "ipm": lambda _: np.asarray(-s * known.mean(axis=0)),
        "alie": alie,
    }
    return {c: make[attack.kind](c) for c in hostile}


def hiding_offset(n: int, f: int) -> float:
    """Compute z of Baruch et al.: how many deviations off a majority still lies."""
    needed = n // 2 + 1 - f
    share = (n - f - needed) / (n - f) if n > f else 0.5
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))


def distances_from_mean(updates: Sequence[FloatArray]) -> FloatArray:
    """Distance of each update from the mean of all, in lengths of that mean.

    The root of their mean square is h, how unlike clients are. None of a mean of 0.
    """
    rows = np.stack(updates) if updates else np.zeros((0, 1))
    mean = rows.sum(axis=0) / max(len(rows), 1)
    apart, length = np.linalg.norm(rows - mean, axis=1), np.linalg.norm(mean)
    return np.asarray(apart / length if length else apart[:0])
