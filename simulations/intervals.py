"""Intervals of the mean of paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit
from scipy.stats import bootstrap

CONFIDENCE = 0.95
RESAMPLES = 10_000


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None with fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Percentiles of the means of 10000 resamples, too narrow for a handful of values.

    None with fewer than three: of two it would be the two themselves.
    """
    if len(values) < 3:
        return None
    found = bootstrap(
        (values,),
        statistics.fmean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


INTERVALS = {"t": t_interval, "bootstrap": bootstrap_interval}
