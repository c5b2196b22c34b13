"""Differences of two rows, paired by seeds and split."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .embedding import START
from .intervals import INTERVALS, split_means, trials
from .results import Result

# Points. Files of results have six digits: rounding must not make a loss of a tie.
TIE = 1e-4
ENOUGH_PAIRS = 5
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Difference:
    """Differences in points, one for each pair of runs on the same seeds and split.

    ``split_seeds`` has the split seed of each. ``gains``: each client's mean difference
    over the pairs, in points of which more is better; empty if clients are not known.
    """

    values: tuple[float, ...]
    split_seeds: tuple[int, ...]
    gains: tuple[float, ...] = ()

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference, the middle of its interval: each split counts alike."""
        return statistics.fmean(trials(self.values, self.split_seeds))

    @property
    def num_not_worse(self) -> int:
        """Number of clients with a gain of 0 or more."""
        return sum(gain >= -TIE for gain in self.gains)

    @property
    def num_tied(self) -> int:
        """Number of clients with a gain of 0."""
        return sum(abs(gain) <= TIE for gain in self.gains)

    def by_split(self) -> list[float]:
        """Means for each split, by split seed; empty for a single split.

        Runs on one split share its test nodes. A difference that only one split shows
        may be a property of that split.
        """
        if len(set(self.split_seeds)) < 2:
            return []
        return split_means(self.values, self.split_seeds)

    def interval(self, kind: str) -> tuple[float, float]:
        """95 % interval of the mean, a key of ``INTERVALS``; NaN without two trials."""
        found = INTERVALS[kind](self.values, self.split_seeds)
        return found or (math.nan, math.nan)

    def verdict(self, kind: str) -> str:
        """:func:`verdict` on the interval of a kind, a key of ``INTERVALS``."""
        return verdict(*self.interval(kind), self.num_pairs)


def verdict(low: float, high: float, num_pairs: int) -> str:
    """Say whether an interval lies above 0, below 0, or neither.

    Fewer pairs than ``ENOUGH_PAIRS`` show nothing, wherever their interval lies. Nor do
    equal differences: their interval has no width, which would claim more than a
    handful of pairs can show. Scores have few values, so that some agree by chance.
    """
    if num_pairs < ENOUGH_PAIRS:
        return f"{NOT_SHOWN} (n={num_pairs} < {ENOUGH_PAIRS})"
    if high - low > TIE and (low > TIE or high < -TIE):
        return "shown" if low > TIE else "contradicted"
    return NOT_SHOWN


def pair(ours: Sequence[Result], theirs: Sequence[Result], measure: str) -> Difference:
    """Subtract ``theirs`` from ``ours`` for runs of equal seed, split seed and split.

    Runs that know their clients' scores are compared over the clients that both have.
    """
    others = {r.key[1:]: r for r in theirs}
    values, split_seeds, gains = [], [], []
    for r in sorted(ours, key=lambda r: r.key):
        other = others.get(r.key[1:])
        if other is None:
            continue
        clients = _subtract_clients(r, other, measure)
        value = _subtract(r, other, measure) if clients is None else _mean(clients)
        if value is not None:
            values.append(100 * value)
            split_seeds.append(r.split_seed)
            gains.append((-1 if r.is_error else 1, clients or {}))
    return Difference(tuple(values), tuple(split_seeds), _mean_gains(gains))


def from_start(results: Sequence[Result], measure: str) -> Difference | None:
    """Subtract the score before training; None if no result knows it."""
    metric = measure.partition(":")[2]
    start = f"{START}:{metric}" if metric else START
    known = [
        r
        for r in sorted(results, key=lambda r: r.key)
        if {measure, start} <= {*r.scores}
    ]
    if not known:
        return None
    return Difference(
        tuple(100 * (r.scores[measure] - r.scores[start]) for r in known),
        tuple(r.split_seed for r in known),
    )


def _subtract(one: Result, other: Result, measure: str) -> float | None:
    if measure not in one.scores or measure not in other.scores:
        return None
    return one.scores[measure] - other.scores[measure]


def _subtract_clients(
    one: Result, other: Result, measure: str
) -> dict[int, float] | None:
    """Subtract client by client; None if one side does not know its clients."""
    a, b = one.clients.get(measure), other.clients.get(measure)
    if a is None or b is None:
        return None
    return {client: a[client] - b[client] for client in sorted(a.keys() & b.keys())}


def _mean(of_clients: Mapping[int, float]) -> float | None:
    return statistics.fmean(of_clients.values()) if of_clients else None


def _mean_gains(pairs: Sequence[tuple[int, Mapping[int, float]]]) -> tuple[float, ...]:
    """Mean over pairs for each client that all pairs have."""
    if not pairs:
        return ()
    common = sorted(set.intersection(*(set(of) for _, of in pairs)))
    return tuple(
        100 * statistics.fmean(sign * of[c] for sign, of in pairs) for c in common
    )
