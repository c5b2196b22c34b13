"""What differences of runs show: means, intervals, verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE, POWER = 0.95, 0.8
# Points. Files of results have six digits: rounding must not make a loss of a tie.
TIE = 1e-4
ENOUGH_SPLITS = 5
SHOWN, BELOW, NOT_SHOWN = "shown", "shown below 0", "not shown"
FLOOR_RUNS = 20


def split_means(values: Iterable[float], splits: Iterable[Hashable]) -> list[float]:
    """Mean of the values of each split, in the order in which splits come first.

    Values of one split share its training and test data: they are no trials of their
    own. Each split counts alike.
    """
    found: dict[Hashable, list[float]] = {}
    for split, value in zip(splits, values, strict=True):
        found.setdefault(split, []).append(value)
    return [statistics.fmean(of) for of in found.values()]


def noise_floor(differences: Sequence[float]) -> float:
    """Say what 95 % of differences of a method from itself stay below, in points.

    NaN if there are fewer than ``FLOOR_RUNS``.
    """
    if len(differences) < FLOOR_RUNS:
        return math.nan
    return float(np.quantile(np.abs(differences), CONFIDENCE))


@dataclass(frozen=True)
class Difference:
    """Differences in points, one for each pair of runs on the same seeds and split.

    ``splits`` names the split of each. ``gains``: each client's mean difference over
    the splits, in points of which more is better, for ``clients``; empty if these are
    not known.
    """

    values: tuple[float, ...]
    splits: tuple[str, ...]
    gains: tuple[float, ...] = ()
    clients: tuple[int, ...] = ()

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def num_splits(self) -> int:
        """Number of splits, which are the trials."""
        return len(set(self.splits))

    @property
    def mean(self) -> float:
        """Mean difference, the middle of its interval: each split counts alike."""
        return statistics.fmean(self.by_split())

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
        """Mean of each split: what only one shows may be a property of that split."""
        return split_means(self.values, self.splits)

    def interval(self, held_out: float) -> tuple[float, float]:
        """95 % interval of the mean by Student's t over splits; NaN for a single one.

        Different splits of one data set share training and test data, so that their
        means are correlated and the variance of the mean exceeds s^2 / n. It is taken
        as s^2 (1/n + test/train), after Nadeau and Bengio, *Inference for the
        Generalization Error*, Machine Learning 52, 2003. ``held_out`` is the share that
        does not train, half of which tests; 0 if splits share no data.
        """
        error, n = self._estimate(held_out)
        half = _quantile((1 + CONFIDENCE) / 2, n) * error
        return self.mean - half, self.mean + half

    def detectable(self, held_out: float) -> float:
        """Size of a true difference that would be shown in 80 % of such comparisons.

        By the noncentral t, if splits vary as these do. NaN for a single split.
        """
        from scipy.special import nctdtrinc

        error, n = self._estimate(held_out)
        limit = _quantile((1 + CONFIDENCE) / 2, n)
        return error * float(nctdtrinc(n - 1, 1 - POWER, limit))

    def _estimate(self, held_out: float) -> tuple[float, int]:
        """Estimate the standard error of the mean, and count the splits."""
        n = self.num_splits
        if n < 2:
            return math.nan, 2
        test_to_train = held_out / 2 / (1 - held_out)
        spread = statistics.stdev(self.by_split())
        return spread * math.sqrt(1 / n + test_to_train), n

    def verdict(self, held_out: float, floor: float = math.nan) -> str:
        """Say whether the interval lies above 0, below 0, or neither.

        Fewer splits than ``ENOUGH_SPLITS`` have no verdict, wherever the interval lies.
        A mean within ``floor`` shows nothing. Nor do equal differences: their interval
        has no width, which would claim more than a handful of splits can show. Scores
        have few values, so that some agree by chance.
        """
        if self.num_splits < ENOUGH_SPLITS:
            return f"{self.num_splits} split{'s' * (self.num_splits != 1)}: no verdict"
        low, high = self.interval(held_out)
        if high - low <= TIE or abs(self.mean) <= floor:
            return NOT_SHOWN
        return SHOWN if low > TIE else BELOW if high < -TIE else NOT_SHOWN


def _quantile(share: float, trials: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(trials - 1, share))


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
