"""Mean difference of graphs within and between groups, and its significance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray

from .walks import FloatArray


@dataclass(frozen=True)
class PairTable:
    """Differences of pairs of graphs, by the groups of the two.

    Each array has shape (num_groups, num_groups) and is symmetric. The diagonal is
    about pairs of different graphs of one group. ``mean`` and ``std`` are NaN where
    ``count``, the number of pairs with a known difference, is 0.
    """

    mean: FloatArray
    std: FloatArray
    count: IntArray


def pair_table(apart: FloatArray, groups: IntArray) -> PairTable:
    """Average differences over pairs of graphs.

    Parameters
    ----------
    apart : float array, shape (n, n)
        Symmetric; NaN if unknown. The diagonal is not read.
    groups : int array, shape (n,)
        Group of each graph, every number of ``range(num_groups)`` at least once.

    Returns
    -------
    PairTable
        Standard deviations are over pairs, with divisor ``count``.
    """
    known = _known(apart)
    values = np.where(known, apart, 0.0)
    member = _member(groups)
    twice = 1 + np.eye(member.shape[1])  # a group's own pairs are counted twice
    count = member.T @ known @ member / twice
    blank = np.where(count > 0, 1.0, np.nan)
    divisor = np.maximum(count, 1)
    mean = member.T @ values @ member / twice / divisor
    off = np.where(known, (values - mean[groups][:, groups]) ** 2, 0.0)
    std = np.sqrt(member.T @ off @ member / twice / divisor)
    return PairTable(mean * blank, std * blank, count.astype(np.int64))


def overall(apart: FloatArray, groups: IntArray) -> tuple[float, float]:
    """Mean over all pairs within groups, and over all pairs between groups."""
    known = _known(apart)
    same = groups[:, None] == groups
    return _mean(apart[known & same]), _mean(apart[known & ~same])


def chance_p(
    apart: FloatArray,
    groups: IntArray,
    units: IntArray,
    *,
    shuffles: int,
    rng: np.random.Generator,
) -> float:
    """How often random groups differ as little within as these.

    Parameters
    ----------
    apart, groups
        See :func:`pair_table`.
    units : int array, shape (n,)
        Graphs with an equal number stay together when groups are shuffled: clients, if
        groups are clusters of clients; all different, if groups are clients. All
        graphs of a unit are of one group.
    shuffles : int
        >= 1.
    rng : Generator
        Shuffles.

    Returns
    -------
    float
        (1 + shuffles with a mean within groups at most as large) / (1 + shuffles); NaN
        with one group, or without pairs within or between groups.
    """
    if not np.isfinite(overall(apart, groups)).all():
        return float("nan")
    known = _known(apart)
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    together = _member(unit)  # (n, num_units)
    total = together.T @ np.where(known, apart, 0.0) @ together
    count = together.T @ known @ together

    def within(group_of_unit: IntArray) -> float:
        same = group_of_unit[:, None] == group_of_unit
        pairs = float(count[same].sum())
        return float(total[same].sum()) / pairs if pairs else np.inf

    labels = groups[first]
    ours = within(labels) * (1 + 1e-12)  # an equal sum may be rounded otherwise
    as_low = sum(within(rng.permutation(labels)) <= ours for _ in range(shuffles))
    return (1 + as_low) / (1 + shuffles)


def _known(apart: FloatArray) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = np.isfinite(apart) & ~np.eye(len(apart), dtype=bool)
    return known


def _member(groups: IntArray) -> FloatArray:
    """One-hot rows, shape (n, num_groups)."""
    return np.eye(int(groups.max()) + 1)[groups]


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")
