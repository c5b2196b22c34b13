"""Statistics of one column of a site's tables, from which its schema is inferred."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .cells import form_of, read_day
from .column_stats import MIN_COUNT, Numbers, Unknown
from .encode import read_numbers

_MOST_DISTINCT = 1000  # categories of one column, before it counts as text
_ODD = 10  # cells of a column of numbers, of which one may be no number


@dataclass
class Profile:
    """Statistics of one column, gathered block by block; few single cells are kept.

    ``holders`` says of each different cell in how many graphs or nodes it stands, up to
    ``enough``; None once there are too many different cells. ``num_odd`` cells are
    neither missing nor finite numbers; ``forms`` counts what these look like, and
    ``firsts`` has the line and text of the first of each form, and of all by "odd".
    ``owners`` are those of cells that are numbers or dates.
    """

    enough: int
    count: int = 0
    num_missing: int = 0
    num_odd: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, tuple[int, str]] = field(default_factory=dict)
    all_differ: bool = True
    unknown: Unknown = field(default_factory=Unknown)
    days: Numbers = field(default_factory=Numbers)
    owners: set[str] = field(default_factory=set)
    holders: dict[str, set[str]] | None = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def add(
        self, cells: Sequence[str], owners: Sequence[str], lines: Sequence[int]
    ) -> None:
        """Take in some cells, each with its graph or node, and its line."""
        values = read_numbers(cells)
        present, finite = ~np.isnan(values), np.isfinite(values)
        self.unknown.add(cells, values)
        odd = np.flatnonzero(present & ~finite).tolist()
        self.num_odd += len(odd)
        self.num_missing += int((~present).sum())
        self.count += int(present.sum())
        rows = np.flatnonzero(finite).tolist()
        form = {cell: form_of(cell) for cell in {cells[row] for row in odd}}
        for row in odd:
            kind = form[cells[row]]
            self.forms[kind] += 1
            self.firsts.setdefault("odd", (lines[row], cells[row]))
            self.firsts.setdefault(kind, (lines[row], cells[row]))
        dated = [row for row in odd if form[cells[row]] == "date"]
        self.days.add(np.array([read_day(cells[row]) for row in dated]))
        if len(self.owners) < self.enough:
            self.owners.update(owners[row] for row in (*rows, *dated))
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

    @property
    def numbers(self) -> Numbers:
        """Statistics of the cells that are numbers."""
        return self.unknown.numbers

    @property
    def is_number(self) -> bool:
        """Whether all cells that are not missing are numbers, or truth values."""
        return not self.num_odd or self.is_flag

    @property
    def is_mostly_number(self) -> bool:
        """Whether so many are that the others look like mistakes."""
        few = _ODD * self.num_odd <= self.count and not self.has_codes
        return self.is_flag or (few and not self.forms["points"])

    @property
    def is_meant(self) -> bool:
        """Whether it would be numbers if all were written with a point alone."""
        meant = self.forms["number"] + self.forms["points"]
        return meant > 0 and self._are_most(self.numbers.count + meant)

    @property
    def is_date(self) -> bool:
        """Whether nearly all are dates that can be read."""
        return self._are_most(self.days.count)

    @property
    def is_dated(self) -> bool:
        """Whether nearly all are dates or times, in whatever form."""
        return self._are_most(self.days.count + self.forms["day"])

    def _are_most(self, count: int) -> bool:
        return self.count > 0 and _ODD * (self.count - count) <= self.count

    @property
    def is_constant(self) -> bool:
        """Whether all cells that are not missing have one value."""
        if self.holders is not None and len(self.holders) == 1:
            return True
        return any(
            one.count == self.count > 0 and len(one.ends) == 1
            for one in (self.numbers, self.days)
        )

    @property
    def has_codes(self) -> bool:
        """Whether many graphs or nodes have each cell, some of them no number."""
        if not self.num_odd or self.holders is None:
            return False
        return all(len(owners) >= self.enough for owners in self.holders.values())

    @property
    def is_id(self) -> bool:
        """Whether it looks like row numbers: whole numbers, all different."""
        return (
            self.is_mostly_number
            and self.numbers.count > 0
            and self.numbers.is_integer
            and self.all_differ
            and self.count >= MIN_COUNT
        )

    @property
    def is_flag(self) -> bool:
        """Whether all values are 0 or 1, or truth values."""
        values = read_numbers(self.distinct(), truth=True)
        return bool(len(values)) and bool(np.isin(values, (0, 1)).all())

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
