"""Differences of two rows, paired by seeds and split, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .result_file import START, Result

CONFIDENCE = 0.95


def trials(values: Sequence[float], splits: Sequence[int]) -> Sequence[float]:
    """Means of splits, or the values of a single split.

    Values of one split share its training and test data: they are no trials of their
    own. Each split counts alike.
    """
    return split_means(values, splits) if len(set(splits)) > 1 else values


def split_means(values: Sequence[float], splits: Sequence[int]) -> list[float]:
    """Mean of the values of each split, in ascending order of ``splits``."""
    pairs = list(zip(splits, values, strict=True))
    return [
        statistics.fmean(v for s, v in pairs if s == of) for of in sorted(set(splits))
    ]


def interval(
    values: Sequence[float],
    splits: Sequence[int],
    *,
    by_split: bool = True,
    test_to_train: float = 0.0,
) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None with fewer than two values.

    The values are means of splits, or else :func:`trials`. Different splits of one data
    set share training and test data, so that their means are correlated and the
    variance of the mean exceeds s^2 / n. It is taken as s^2 (1/n + test/train), after
    Nadeau and Bengio, *Inference for the Generalization Error*, Machine Learning 52,
    2003.
    """
    used = (split_means if by_split else trials)(values, splits)
    n = len(used)
    if n < 2:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(used) * math.sqrt(1 / n + test_to_train)
    mean = statistics.fmean(used)
    return mean - half, mean + half


INTERVALS: Mapping[
    str, Callable[[Sequence[float], Sequence[int]], tuple[float, float] | None]
] = {
    "t": partial(interval, by_split=False),
    "split-t": interval,
    "corrected-t": partial(interval, test_to_train=10 / 80),
    "corrected-t-nodes": partial(interval, test_to_train=35 / 30),
}


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
        if (other := others.get(r.key[1:])) is None:
            continue
        a, b = r.clients.get(measure), other.clients.get(measure)
        clients = {}
        if a is not None and b is not None:
            clients = {c: a[c] - b[c] for c in sorted(a.keys() & b.keys())}
            value = statistics.fmean(clients.values()) if clients else None
        elif measure in r.scores and measure in other.scores:
            value = r.scores[measure] - other.scores[measure]
        else:
            continue
        if value is not None:
            values.append(100 * value)
            split_seeds.append(r.split_seed)
            gains.append((-1 if r.is_error else 1, clients))
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


def _mean_gains(pairs: Sequence[tuple[int, Mapping[int, float]]]) -> tuple[float, ...]:
    """Mean over pairs for each client that all pairs have."""
    if not pairs:
        return ()
    common = sorted(set.intersection(*(set(of) for _, of in pairs)))
    return tuple(100 * statistics.fmean(s * of[c] for s, of in pairs) for c in common)
