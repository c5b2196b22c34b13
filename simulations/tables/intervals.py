"""Intervals of the mean of paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

CONFIDENCE = 0.95


def t_interval(
    values: Sequence[float], splits: Sequence[int]
) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None with fewer than two trials."""
    return _student(trials(values, splits), shared=0.0)


def split_t_interval(
    values: Sequence[float], splits: Sequence[int]
) -> tuple[float, float] | None:
    """By Student's t over the means of splits; None with fewer than two splits."""
    return _student(split_means(values, splits), shared=0.0)


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


def corrected_t_interval(
    values: Sequence[float], splits: Sequence[int], *, test_to_train: float
) -> tuple[float, float] | None:
    """By Student's t over the means of different splits of one data set.

    Such splits share training and test data, so that their means are correlated and
    the variance of the mean exceeds s^2 / n. It is taken as s^2 (1/n + test/train),
    after Nadeau and Bengio, *Inference for the Generalization Error*, Machine Learning
    52, 2003. None with fewer than two splits.
    """
    return _student(split_means(values, splits), shared=test_to_train)


def _student(values: Sequence[float], *, shared: float) -> tuple[float, float] | None:
    n = len(values)
    if n < 2:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(values) * math.sqrt(1 / n + shared)
    mean = statistics.fmean(values)
    return mean - half, mean + half


INTERVALS: Mapping[
    str, Callable[[Sequence[float], Sequence[int]], tuple[float, float] | None]
] = {
    "t": t_interval,
    "split-t": split_t_interval,
    "corrected-t": partial(corrected_t_interval, test_to_train=10 / 80),
    "corrected-t-nodes": partial(corrected_t_interval, test_to_train=35 / 30),
}
