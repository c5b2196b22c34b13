"""Intervals of the mean of paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
