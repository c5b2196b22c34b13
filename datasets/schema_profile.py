"""Statistics of one column of a site's tables, from which its schema is inferred."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .cells import read_day, shape
from .column_stats import MIN_COUNT, Numbers, Unknown
from .encode import read_numbers

_MOST_DISTINCT = 1000  # categories of one column, before it counts as text
_ODD = 10  # cells of a column of numbers, of which one may be no number
_NOISE = 1e-7  # of a mean, as a spread: numbers of 32 bits have it
_MOST_ODD = 12  # categories that look like numbers or dates in another form
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(?:\.\d{3})*|0")


@dataclass
class Profile:
    """Statistics of one column, gathered block by block; few single cells are kept.

    ``holders`` says of each different cell in how many graphs or nodes it stands, up to
    ``enough``; None once there are too many different cells. ``num_odd`` cells are
    neither missing nor finite numbers; ``first`` has the line and text of one of them.
    ``rows`` counts rows of each cell of ``holders``. ``owners`` are those of cells that
    are numbers or dates.
    """

    enough: int
    count: int = 0
    num_missing: int = 0
    num_odd: int = 0
    first: tuple[int, str] = (0, "")
    rows: Counter[str] = field(default_factory=Counter)
    all_differ: bool = True
    unknown: Unknown = field(default_factory=Unknown)
    days: Numbers = field(default_factory=Numbers)
    owners: set[str] = field(default_factory=set)
    holders: dict[str, set[str]] | None = field(default_factory=dict)
    _some: list[str] = field(default_factory=list)  # once there are too many
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
        if odd and not self.first[0]:
            self.first = lines[odd[0]], cells[odd[0]]
        day = {cell: read_day(cell) for cell in {cells[row] for row in odd}}
        dated = [row for row in odd if math.isfinite(day[cells[row]])]
        self.days.add(np.array([day[cells[row]] for row in dated]))
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
        self.rows.update(cells)
        for row in np.flatnonzero(present).tolist():
            known = self.holders.setdefault(cells[row], set())
            if len(known) < self.enough:
                known.add(owners[row])
        if len(self.holders) > _MOST_DISTINCT:
            self._some, self.holders = list(self.holders), None

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
        return self.is_flag or (few and not (self.num_odd and self.is_grouped))

    @property
    def is_grouped(self) -> bool:
        """Whether 1.234 may mean 1234: so are all, or whole numbers below 1000."""
        names = self._names
        are_so = any("." in name for name in names)
        return are_so and all(map(_THOUSANDS.fullmatch, names))

    @property
    def _names(self) -> list[str]:
        """Different cells, or the first of too many."""
        return self._some or list(self.holders or ())

    @property
    def is_left_out(self) -> bool:
        """Whether so many are written oddly that they are no category."""
        return self.is_written_oddly and len(self._names) > _MOST_ODD

    @property
    def is_written_oddly(self) -> bool:
        """Whether numbers or dates seem meant, written in a form that is not read.

        Nearly all different cells hold digits, and few forms are left without these; or
        half of the cells are numbers, and the others no category.
        """
        if self.is_mostly_number or self.is_date:
            return False
        forms = [shape(name) for name in self._names if re.search(r"\d", name)]
        is_most = _ODD * len(forms) >= (_ODD - 1) * len(self._names) > 0
        is_one_form = is_most and len(set(forms)) <= max(1, len(forms) // 4)
        return is_one_form or (2 * self.num_odd <= self.count and not self.has_codes)

    @property
    def is_date(self) -> bool:
        """Whether nearly all are dates that can be read."""
        return 0 < _ODD * self.count <= (_ODD * self.days.count) + self.count

    @property
    def is_constant(self) -> bool:
        """Whether all cells that are not missing have one value.

        Numbers do so, too, that differ by rounding, or in fewer than ``enough`` graphs
        or nodes.
        """
        if self.holders is not None and len(self.holders) == 1:
            return True
        if self.is_flag or not (self.is_mostly_number or self.is_date):
            return False
        one = self.days if self.is_date else self.numbers
        noise = 0.0 if self.is_date or one.is_integer else _NOISE * abs(one.mean)
        owners = dict(self.holders or {"": set[str]()})
        first = owners.pop(max(owners, key=self.rows.__getitem__))
        are_few = len(set[str]().union(*owners.values())) < self.enough <= len(first)
        return one.std <= noise or are_few

    @property
    def has_codes(self) -> bool:
        """Whether many graphs or nodes have each cell, some of them no number."""
        if not self.num_odd or self.holders is None:
            return False
        return all(len(owners) >= self.enough for owners in self.holders.values())

    @property
    def is_id(self) -> bool:
        """Whether it looks like row numbers: whole numbers, all different."""
        is_whole = self.is_mostly_number and self.numbers.is_integer
        return is_whole and self.all_differ and self.numbers.count >= MIN_COUNT

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
