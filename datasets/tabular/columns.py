"""Numbers of one column, and what in it may stand for "not known"."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from .cells import is_empty, is_missing

MIN_COUNT = 10  # graphs or nodes, for a category to be named
_ENDS = 8  # different values that are counted at each end
_MOST_CODES = 3  # as of 97, 98, 99


@dataclass
class Numbers:
    """Statistics of numbers, gathered block by block.

    ``ends`` counts the smallest and the largest different values; no other single
    number is kept.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    is_integer: bool = True
    ends: dict[float, int] = field(default_factory=dict)

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, values: np.ndarray) -> None:
        """Take in some finite numbers."""
        if not len(values):
            return
        self.is_integer &= bool((values == np.rint(values)).all())
        mean, total = float(values.mean()), self.count + len(values)
        gap = mean - self.mean
        self.squares += float((np.square(values - mean)).sum())
        self.squares += gap * gap * self.count * len(values) / total
        self.mean += gap * len(values) / total
        self.count = total
        found, counts = np.unique(values, return_counts=True)
        at = np.arange(len(found))
        at = np.r_[at[:_ENDS], at[_ENDS:][-_ENDS:]]
        for value, times in zip(found[at].tolist(), counts[at].tolist(), strict=True):
            self.ends[value] = self.ends.get(value, 0) + times
        kept = sorted(self.ends)
        for value in kept[_ENDS:-_ENDS]:
            del self.ends[value]

    @property
    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def codes(self, enough: int) -> dict[float, int]:
        """Count values apart from all others, each of which ``enough`` rows share.

        Of few whole numbers, these are outside of the longest run without a gap, which
        -1 does not begin. Else they are up to three at either end, two standard
        deviations of the others away, or the only negative ones.
        """
        is_short = self.is_integer and len(self.ends) < 2 * _ENDS
        found = self._beside_run() if is_short else {}
        for is_high in (False, True, False):
            ends = sorted(self.ends.items(), reverse=is_high)
            for at in range(1, min(_MOST_CODES + 1, len(ends) - 1)):
                (value, times), (then, _), (last, _) = ends[at - 1 : at + 2]
                gap, taken = abs(then - value), found | dict(ends[:at])
                if times < max(enough, 2) or len(ends) - len(taken) < 2:
                    break
                is_far = gap >= 2 * self._spread(taken) or value < 0 <= then
                if is_far and gap > 2 * abs(last - then):
                    found = taken
        return {v: n for v, n in found.items() if n >= max(enough, 2)}

    def _beside_run(self) -> dict[float, int]:
        """Return values that are not in the longest run of whole numbers."""
        runs: dict[float, list[float]] = {}
        for at, value in enumerate(sorted(self.ends)):
            runs.setdefault(value - at if value != -1 else math.inf, []).append(value)
        run = max(runs.values(), key=len, default=[])
        is_run = len(run) > 1 and 2 * len(run) >= len(self.ends)
        return {v: n for v, n in self.ends.items() if is_run and v not in run}

    def _spread(self, without: dict[float, int]) -> float:
        """Return the standard deviation of all but some values."""
        count = self.count - sum(without.values())
        gaps = [(value - self.mean, n) for value, n in without.items()]
        away = sum(gap * n for gap, n in gaps)
        squares = self.squares - sum(gap * gap * n for gap, n in gaps)
        return math.sqrt(max(squares - away * away / count, 0.0) / count)


@dataclass
class Unknown:
    """Counts cells that may stand for "not known": marks in words, and numbers."""

    rows: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    numbers: Numbers = field(default_factory=Numbers)

    def add(self, cells: Sequence[str], values: np.ndarray | None = None) -> None:
        """Take in some cells, and their numbers if they are meant as such."""
        self.rows += len(cells)
        if values is None or np.isnan(values).any():
            marks = {c for c in set(cells) if is_missing(c) and not is_empty(c)}
            self.marks.update(filter(marks.__contains__, cells))
        if values is not None:
            self.numbers.add(values[np.isfinite(values)])

    def notes(
        self,
        what: str,
        enough: int,
        *,
        listed: Collection[str] = (),
        shown: Callable[[float], str] = "{:.12g}".format,
    ) -> list[str]:
        """Name such cells with their share; not those that a schema lists."""
        marks = {repr(c): n for c, n in sorted(self.marks.items()) if c not in listed}
        codes = {shown(v): n for v, n in self.numbers.codes(enough).items()}
        kinds = (
            (marks, "not known (if one is a class or category, list it in the schema)"),
            (codes, "numbers, far from all others (empty them if they mean not known)"),
        )
        return [
            f"{what}: {n} of {self.rows} cells ({n / self.rows:.1%}) are {cell}, and"
            f" count as {text}"
            for found, text in kinds
            for cell, n in found.items()
        ]
