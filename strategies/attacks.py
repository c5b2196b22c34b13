"""Attacks on updates, played at the server: some of them need to know all of a round.

Source
------
Xie et al. 2020, arXiv:1903.03936, Sec. 4 (inner product manipulation); Baruch et al.
2019, arXiv:1902.06156, Algorithm 3 (a little is enough). Differs: of few clients, for
which z of the latter is below 0, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from statistics import NormalDist

import numpy as np

from fedgraph_flwr.core.attack_settings import AttackSettings

from .averaging import FloatArray


def falsify(
    updates: Mapping[int, FloatArray],
    hostile: Collection[int],
    attack: AttackSettings,
    rng_of: Callable[[int], np.random.Generator],
) -> dict[int, FloatArray]:
    """Make what hostile clients send instead of their updates, by client.

    Parameters
    ----------
    updates : mapping of int to float array
        Honest updates of all clients of the round, ascending.
    hostile : collection of int
        Those of them that attack. If nobody else replied, they know each other alone.
    rng_of : callable
        Gives the generator of a client's noise.
    """
    honest = [u for c, u in updates.items() if c not in hostile] or [*updates.values()]
    known, s = np.stack(honest), attack.strength

    z = hiding_offset(len(updates), len(updates) - len(honest))
    of_all = {  # the same from each of them
        "ipm": -s * known.mean(axis=0),
        "alie": known.mean(axis=0) - s * z * known.std(axis=0),
    }

    def noise(client: int, own: FloatArray) -> FloatArray:
        deviation = s * np.linalg.norm(own) / np.sqrt(own.size)
        return rng_of(client).normal(0, deviation, own.shape)

    own_kinds = {"sign": lambda _, u: -s * u, "scale": lambda _, u: s * u}
    make = {**own_kinds, "noise": noise}.get(attack.kind)
    return {
        c: make(c, updates[c]) if make else of_all[attack.kind]
        for c in updates
        if c in hostile
    }


def hiding_offset(n: int, f: int) -> float:
    """Compute z of Baruch et al.: how many deviations off a majority still lies."""
    needed = n // 2 + 1 - f
    share = (n - f - needed) / (n - f) if n > f else 0.5
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))


def distances_from_mean(updates: FloatArray) -> FloatArray:
    """Distance of each row from the mean of all, in lengths of that mean.

    The root of their mean square is h, how unlike clients are. None of a mean of 0.
    """
    mean = updates.mean(axis=0)
    apart = np.linalg.norm(updates - mean, axis=1)
    length = np.linalg.norm(mean)
    return np.asarray(apart / length if length else apart[:0])
