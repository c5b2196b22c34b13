"""Paired differences of a study's rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .intervals import INTERVALS, split_means
from .study_runs import Result


@dataclass(frozen=True)
class Paired:
    """Differences in points, one for each pair of runs on the same seeds and split.

    ``split_seeds`` has the split seed of each.
    """

    values: tuple[float, ...]
    split_seeds: tuple[int, ...]

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.values)

    def by_split(self) -> list[float]:
        """Means for each split, by seed; empty for a single pair.

        Runs on one split share its test nodes: only differences that agree between
        splits are more than a property of one of them.
        """
        if self.num_pairs < 2:
            return []
        return split_means(self.values, self.split_seeds)

    def interval(self, kind: str) -> tuple[float, float]:
        """95 % interval of the mean, a key of ``INTERVALS``; NaN without two trials."""
        found = INTERVALS[kind](self.values, self.split_seeds)
        return found or (math.nan, math.nan)


def pair(ours: Sequence[Result], theirs: Sequence[Result], rule: str) -> Paired:
    """Subtract ``theirs`` from ``ours`` where seed, split seed and split agree."""
    others = {r.key[1:]: getattr(r, rule) for r in theirs}
    paired = [r for r in sorted(ours, key=lambda r: r.key) if r.key[1:] in others]
    return Paired(
        tuple(100 * (getattr(r, rule) - others[r.key[1:]]) for r in paired),
        tuple(r.split_seed for r in paired),
    )


def from_start(results: Sequence[Result], rule: str) -> Paired | None:
    """Subtract the score before training; None where no result knows it."""
    known = [r for r in sorted(results, key=lambda r: r.key) if not math.isnan(r.start)]
    if not known:
        return None
    return Paired(
        tuple(100 * (getattr(r, rule) - r.start) for r in known),
        tuple(r.split_seed for r in known),
    )
