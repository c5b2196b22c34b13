"""What differences of runs show: means, intervals, verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE, POWER = 0.95, 0.8


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


# By kind: whether splits are trials even if there is only one, and test / train data.
INTERVALS: Mapping[str, tuple[bool, float]] = {
    "t": (False, 0.0),
    "corrected-t": (True, 10 / 80),
    "corrected-t-nodes": (True, 35 / 30),
    "corrected-t-natural": (True, 20 / 60),
    "corrected-t-classes": (True, 40 / 20),
}


# Points. Files of results have six digits: rounding must not make a loss of a tie.
TIE = 1e-4
ENOUGH_PAIRS = 5
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Difference:
    """Differences in points, one for each pair of runs on the same seeds and split.

    ``split_seeds`` has the split seed of each. ``gains``: each client's mean difference
    over the pairs, in points of which more is better, for ``clients``; empty if these
    are not known.
    """

    values: tuple[float, ...]
    split_seeds: tuple[int, ...]
    gains: tuple[float, ...] = ()
    clients: tuple[int, ...] = ()

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference, the middle of its interval: each split counts alike."""
        return statistics.fmean(trials(self.values, self.split_seeds))

    @property
    def by_client(self) -> dict[int, float]:
        """Gains by client."""
        return dict(zip(self.clients, self.gains, strict=True))

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
        """95 % interval of the mean by Student's t, of a kind of ``INTERVALS``.

        NaN without two trials. Different splits of one data set share training and test
        data, so that their means are correlated and the variance of the mean exceeds
        s^2 / n. Corrected kinds take it as s^2 (1/n + test/train), after Nadeau and
        Bengio, *Inference for the Generalization Error*, Machine Learning 52, 2003.
        """
        mean, error, n = self._estimate(kind)
        half = _quantile((1 + CONFIDENCE) / 2, n) * error
        return mean - half, mean + half

    def detectable(self, kind: str) -> float:
        """Size of a true difference that would be shown in 80 % of such comparisons.

        NaN without two trials.
        """
        _, error, n = self._estimate(kind)
        return error * (_quantile((1 + CONFIDENCE) / 2, n) + _quantile(POWER, n))

    def _estimate(self, kind: str) -> tuple[float, float, int]:
        """Mean of the trials, its standard error, and how many they are."""
        by_split, test_to_train = INTERVALS[kind]
        used = (split_means if by_split else trials)(self.values, self.split_seeds)
        n = len(used)
        if n < 2:
            return math.nan, math.nan, 2
        error = statistics.stdev(used) * math.sqrt(1 / n + test_to_train)
        return statistics.fmean(used), error, n

    def verdict(self, kind: str) -> str:
        """:func:`verdict` on the interval of a kind, a key of ``INTERVALS``."""
        return verdict(*self.interval(kind), self.num_pairs)


def _quantile(share: float, trials: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(trials - 1, share))


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


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Mean ranks over data sets; 1 is best. NaN where a test cannot be made."""

    mean: Mapping[str, float]
    num_data: int
    p_value: float
    critical: float


def ranks(scores: Mapping[str, Mapping[str, float]]) -> Ranks | None:
    """Rank methods on each data set, and test ranks as Demšar does.

    Parameters
    ----------
    scores : mapping
        Data set -> method -> mean score, larger is better. Only methods that every
        data set has are ranked.

    Returns
    -------
    Ranks or None
        None with fewer than two methods or data sets. ``critical`` is Nemenyi's
        critical difference at 5 %, ``p_value`` that of Friedman's test, which needs
        three methods.

    Source
    ------
    Demšar, *Statistical Comparisons of Classifiers over Multiple Data Sets*, JMLR 7,
    2006, Sec. 3.2.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    first = next(iter(scores.values()), {})
    methods = [m for m in first if all(m in of for of in scores.values())]
    k, n = len(methods), len(scores)
    if k < 2 or n < 2:
        return None
    table = np.array([[round(of[m], 9) for m in methods] for of in scores.values()])
    ranked = rankdata(-table, axis=1)
    varies = bool(np.any(ranked != ranked[:, :1]))
    p = float(friedmanchisquare(*ranked.T).pvalue) if k > 2 and varies else math.nan
    q = float(studentized_range.ppf(0.95, k, np.inf)) / math.sqrt(2)
    mean = dict(zip(methods, ranked.mean(axis=0).tolist(), strict=True))
    return Ranks(
        mean=dict(sorted(mean.items(), key=lambda item: item[1])),
        num_data=n,
        p_value=p,
        critical=q * math.sqrt(k * (k + 1) / (6 * n)),
    )
