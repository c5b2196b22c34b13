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
_FAR, _FAR_CODE = 3.0, 1.5  # standard deviations of the others


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
        at = np.r_[
            : min(_ENDS, len(found)), max(_ENDS, len(found) - _ENDS) : len(found)
        ]
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
        """Find values far from all others, each of which ``enough`` rows share.

        Returns
        -------
        dict
            How many rows have each. Far is 3 standard deviations of the others, and 1.5
            of numbers such as -1, 999 or 88; or such a number is negative, no other
            is, and the gap to the others is wider than that between these.
        """
        found: dict[float, int] = {}
        for is_high in (False, True, False):
            ends = sorted(self.ends.items(), reverse=is_high)
            for at in range(1, min(_ENDS, len(ends) - 1)):
                if ends[at - 1][1] < max(enough, 2):
                    break
                taken = found | dict(ends[:at])
                (value, _), (then, _), (last, _) = ends[at - 1 : at + 2]
                gap, step = abs(then - value), abs(last - then)
                far, is_code = gap / (self._spread(taken) or 1e-300), _is_code(value)
                if len(ends) - len(taken) < 3 - is_code or gap <= 2 * step:
                    continue
                is_alone = is_code and value < 0 <= then
                if is_alone or far >= (_FAR_CODE if is_code else _FAR):
                    found = taken
        return found

    def _spread(self, without: dict[float, int]) -> float:
        """Return the standard deviation of all but some values."""
        count = self.count - sum(without.values())
        away = sum((value - self.mean) * n for value, n in without.items())
        squares = self.squares - sum(
            (value - self.mean) * (value - self.mean) * n
            for value, n in without.items()
        )
        return math.sqrt(max(squares - away * away / count, 0.0) / count)


def _is_code(value: float) -> bool:
    digits = set(f"{abs(value):.12g}".replace(".", ""))
    return digits in ({"9"}, {"8"}) or value in (-1, -32768, -(2**31), 2**31 - 1)


@dataclass
class Unknown:
    """Counts cells that may stand for "not known": marks in words, and numbers."""

    rows: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    numbers: Numbers = field(default_factory=Numbers)

    def add(self, cells: Sequence[str], values: np.ndarray | None = None) -> None:
        """Take in some cells, and their numbers if they are meant as such."""
        self.rows += len(cells)
        marks = {c for c in set(cells) if is_missing(c) and not is_empty(c)}
        if marks:
            self.marks.update(filter(marks.__contains__, cells))
        if values is not None:
            self.numbers.add(values[np.isfinite(values)])

    def notes(
        self,
        what: str,
        enough: int,
        *,
        listed: Collection[str] = (),
        shown: Callable[[float], str] = "{:g}".format,
    ) -> list[str]:
        """Name such cells with their share; not those that a schema lists."""
        marks = {c: n for c, n in sorted(self.marks.items()) if c not in listed}
        found = []
        if marks:
            found.append(
                f"{what}: {self._shares({repr(c): n for c, n in marks.items()})}; such"
                " cells count as not known (if one is a class or category, list it in"
                " the schema)"
            )
        if codes := self.numbers.codes(enough):
            found.append(
                f"{what}: {self._shares({shown(v): n for v, n in codes.items()})}, far"
                " from all others; if that stands for not known, empty these cells, for"
                " it counts as a number"
            )
        return found

    def _shares(self, counts: dict[str, int]) -> str:
        return ", ".join(
            f"{n} of {self.rows} cells ({n / self.rows:.0%}) are {text}"
            for text, n in counts.items()
        )
