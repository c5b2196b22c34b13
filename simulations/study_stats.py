"""Paired differences of a study's rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit
from scipy.stats import bootstrap

from .study_runs import Result

CONFIDENCE = 0.95
INTERVALS = ("t", "bootstrap")
RESAMPLES = 10_000


@dataclass(frozen=True)
class Paired:
    """Differences in points, one for each pair of runs on the same seeds and split."""

    values: tuple[float, ...]

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.values)

    def interval(self, kind: str) -> tuple[float, float]:
        """95 % interval of the mean; NaN with fewer than two pairs.

        ``kind``: "t" (Student's), or "bootstrap" (percentiles of the means of 10000
        resamples; too narrow for a handful of pairs).
        """
        n = self.num_pairs
        if n < 2:
            return math.nan, math.nan
        if kind == "bootstrap":
            found = bootstrap(
                (self.values,),
                statistics.fmean,
                confidence_level=CONFIDENCE,
                n_resamples=RESAMPLES,
                method="percentile",
                vectorized=False,
                rng=np.random.default_rng(0),
            ).confidence_interval
            return float(found.low), float(found.high)
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
        half *= statistics.stdev(self.values) / math.sqrt(n)
        return self.mean - half, self.mean + half


def pair(ours: Sequence[Result], theirs: Sequence[Result], rule: str) -> Paired:
    """Subtract ``theirs`` from ``ours`` where seed, split seed and split agree."""
    others = {r.key[1:]: getattr(r, rule) for r in theirs}
    return Paired(
        tuple(
            100 * (getattr(r, rule) - others[r.key[1:]])
            for r in sorted(ours, key=lambda r: r.key)
            if r.key[1:] in others
        )
    )
