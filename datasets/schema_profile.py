"""Statistics of one column of a site's tables, from which its schema is inferred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .encode import read_numbers

MIN_COUNT = 10
_MOST_DISTINCT = 1000  # categories of one column, before it counts as text
_ODD = 10  # cells of a column of numbers, of which one may be no number


@dataclass
class Profile:
    """Statistics of one column, gathered block by block; no single number is kept.

    ``holders`` says of each different cell in how many graphs or nodes it stands, up to
    ``enough``; None once there are too many different cells. ``num_odd`` cells are
    neither missing nor finite numbers; ``first_odd`` is the line and text of the first.
    The statistics are those of the others, and so are ``owners``.
    """

    enough: int
    count: int = 0
    num_missing: int = 0
    num_odd: int = 0
    first_odd: tuple[int, str] = (0, "")
    is_integer: bool = True
    all_differ: bool = True
    mean: float = 0.0
    squares: float = 0.0
    owners: set[str] = field(default_factory=set)
    holders: dict[str, set[str]] | None = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def add(
        self, cells: Sequence[str], owners: Sequence[str], lines: Sequence[int]
    ) -> None:
        """Take in some cells, each with its graph or node, and its line."""
        values = read_numbers(cells)
        present, finite = ~np.isnan(values), np.isfinite(values)
        self._add_numbers(values[finite])
        odd = np.flatnonzero(present & ~finite).tolist()
        if odd and not self.num_odd:
            self.first_odd = lines[odd[0]], cells[odd[0]]
        self.num_odd += len(odd)
        self.num_missing += int((~present).sum())
        self.count += int(present.sum())
        rows = np.flatnonzero(finite).tolist()
        if len(self.owners) < self.enough:
            self.owners.update(owners[row] for row in rows)
        if self.all_differ:
            before = len(self._seen)
            self._seen.update(cells[row] for row in rows)
            self.all_differ = len(self._seen) == before + len(rows)
            if not self.all_differ:
                self._seen.clear()
        if self.holders is None:
            return
        for row in np.flatnonzero(present).tolist():
            known = self.holders.setdefault(cells[row], set())
            if len(known) < self.enough:
                known.add(owners[row])
        if len(self.holders) > _MOST_DISTINCT:
            self.holders = None

    @np.errstate(over="ignore", invalid="ignore")
    def _add_numbers(self, values: np.ndarray) -> None:
        self.is_integer &= bool((values == np.rint(values)).all())
        if not len(values):
            return
        count = self.num_numbers
        mean, total = float(values.mean()), count + len(values)
        gap = mean - self.mean
        self.squares += float((np.square(values - mean)).sum())
        self.squares += gap * gap * count * len(values) / total
        self.mean += gap * len(values) / total

    @property
    def num_numbers(self) -> int:
        """How many cells are finite numbers."""
        return self.count - self.num_odd

    @property
    def is_number(self) -> bool:
        """Whether all cells that are not missing are numbers."""
        return not self.num_odd

    @property
    def is_mostly_number(self) -> bool:
        """Whether so many are that the others look like mistakes."""
        return _ODD * self.num_odd <= self.count and not self.has_codes

    @property
    def has_codes(self) -> bool:
        """Whether many graphs or nodes have each cell, some of them no number."""
        if not self.num_odd or self.holders is None:
            return False
        return all(len(owners) >= self.enough for owners in self.holders.values())

    @property
    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.squares / self.num_numbers) if self.num_numbers else 0.0

    @property
    def is_id(self) -> bool:
        """Whether it looks like row numbers: whole numbers, all different."""
        return (
            self.is_mostly_number
            and self.is_integer
            and self.all_differ
            and self.count >= MIN_COUNT
        )

    @property
    def is_flag(self) -> bool:
        """Whether all values are 0 or 1."""
        return self.is_number and set(self.distinct()) <= {"0", "1", "0.0", "1.0"}

    def distinct(self) -> list[str]:
        """List different cells, in order; all of them only if there are not many."""
        if self.holders is None:
            return ["..."]
        return sorted(self.holders, key=_order)

    def frequent(self) -> list[str]:
        """List cells that enough graphs or nodes have."""
        found = (self.holders or {}).items()
        return sorted((c for c, o in found if len(o) >= self.enough), key=_order)


def _order(cell: str) -> tuple[bool, float, str]:
    value = float(read_numbers([cell])[0])
    return not math.isfinite(value), value if math.isfinite(value) else 0.0, cell
