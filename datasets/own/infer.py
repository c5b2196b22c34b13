"""Infers a schema from one site's tables, column by column.

What goes into it: names of columns; categories and classes that at least ``min_count``
graphs (or nodes of one graph) have; mean and standard deviation of a column of numbers
or dates, only of as many graphs or nodes. The deviation has two digits; the mean has as
many, or more, if it takes these to come within a tenth of the deviation. Smallest and
largest values, rare categories, identifiers and texts never do.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.cells import (
    MIN_COUNT,
    Numbers,
    Unknown,
    as_whole,
    by_value,
    is_compact_day,
    odd_one,
    read_day,
    same_look,
    shape,
)
from ..tabular.encode import meaning, need_columns, read_numbers
from ..tabular.schema_file import (
    ALL,
    CATEGORY,
    DATE,
    GRAPH_CSV,
    GRAPHS_CSV,
    INDICATOR,
    KEYS,
    LABEL,
    NUMBER,
    REFUSE,
    RESERVED,
    SPLIT,
    TARGET_KINDS,
    Feature,
    Missing,
    Schema,
    is_name,
)
from ..tabular.table import Table
from .folder_tables import find_tables, holds_tables, is_one_graph, wanted_tables

_MOST_DISTINCT = 1000  # categories of one column, before it counts as text
_ODD = 10  # cells of a column of numbers, of which one may be no number
_NOISE = 1e-7  # of a mean, as a spread: numbers of 32 bits have it
_MOST_ODD = 12  # categories that look like numbers or dates in another form
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(?:\.\d{3})*|0")


class Profile:
    """Statistics of one column of a table.

    ``holders`` says in how many graphs or nodes each different cell stands; None if
    there are too many different cells. ``num_odd`` cells are neither missing nor finite
    numbers; ``first`` has the line and text of one of them. ``rows`` counts rows of
    each cell. ``num_owners`` graphs or nodes have a number or date. A cell that fewer
    than ``enough`` of them have is of single ones.
    """

    def __init__(self, table: Table, column: str, owner: str, enough: int) -> None:
        self.table, self.column, self.enough = table, column, enough
        cells = table.rows.cells[column]
        values, days = read_numbers(cells), np.full(len(cells), np.nan)
        odd = np.flatnonzero(np.isinf(values)).tolist()
        day = {cell: read_day(cell) for cell in {cells[row] for row in odd}}
        days[odd] = [day[cells[row]] for row in odd]
        is_number, is_day = np.isfinite(values), np.isfinite(days)
        frame = pd.DataFrame({"cell": cells, "owner": table.rows.cells[owner]})
        pairs = frame[~np.isnan(values)].drop_duplicates()
        holders = pairs.cell.value_counts(sort=False).to_dict()
        self.names = list(holders)
        self.holders = holders if len(holders) <= _MOST_DISTINCT else None
        self.rows = Counter(cells)
        usual = max(holders, key=self.rows.__getitem__, default="")
        self._has_usual = holders.get(usual, 0)  # graphs or nodes
        self._has_another = pairs.owner[pairs.cell != usual].nunique()
        self.unknown, self.days = Unknown.of(cells, values), Numbers(days[is_day])
        self.count = int((~np.isnan(values)).sum())
        self.num_missing, self.num_odd = len(cells) - self.count, len(odd)
        self.first = (table.rows.lines[odd[0]], cells[odd[0]]) if odd else (0, "")
        self.num_owners = frame.owner[is_number | is_day].nunique()
        self.all_differ = frame.cell[is_number].is_unique

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
        are_so = any("." in name for name in self.names)
        return are_so and all(map(_THOUSANDS.fullmatch, self.names))

    @property
    def is_left_out(self) -> bool:
        """Whether so many are written oddly that they are no category."""
        return self.is_written_oddly and len(self.names) > _MOST_ODD

    @property
    def is_written_oddly(self) -> bool:
        """Whether numbers or dates seem meant, written in a form that is not read.

        Nearly all different cells hold digits, and few forms are left without these; or
        half of the cells are numbers, and the others no category.
        """
        if self.is_mostly_number or self.is_date:
            return False
        forms = [shape(name) for name in self.names if re.search(r"\d", name)]
        is_most = _ODD * len(forms) >= (_ODD - 1) * len(self.names) > 0
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
        if len(self.names) == 1:
            return True
        if self.is_flag or not (self.is_mostly_number or self.is_date):
            return False
        one = self.days if self.is_date else self.numbers
        noise = 0.0 if self.is_date or one.is_integer else _NOISE * abs(one.mean)
        are_few = self._has_another < self.enough <= self._has_usual
        return one.std <= noise or are_few

    @property
    def has_codes(self) -> bool:
        """Whether many graphs or nodes have each cell, some of them no number."""
        if not self.num_odd or self.holders is None:
            return False
        return all(count >= self.enough for count in self.holders.values())

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
        return sorted((c for c, n in found if n >= self.enough), key=_order)


def _order(cell: str) -> tuple[bool, float, str]:
    value = float(read_numbers([cell])[0])
    return not math.isfinite(value), value if math.isfinite(value) else 0.0, cell


DEFAULT_DEGREE = 16
_SHOWN = 20  # names of a column, with their shares
_MOST_CLASSES = 20  # different numbers, before they count as numbers to predict
_DAY_0, _LAST_DAY = date(1970, 1, 1).toordinal(), date.max.toordinal()
_BY_HAND = " (else: add a [[feature]] by hand)"
_CORRECT = (
    ", and such a row does not fit: correct the cell (an empty one is a missing value)"
    " and make the schema again, or make the column a category in the schema"
)
_YEARS_FROM_2020 = (18_262.0, 365.25)  # shift and scale of dates without statistics


def infer_schema(
    folder: Path,
    *,
    targets: Sequence[str] = (),
    kind: str = "auto",
    min_count: int = MIN_COUNT,
    statistics: bool = True,
) -> tuple[Schema, list[str]]:
    """Make a schema from the tables of one folder.

    Parameters
    ----------
    folder : Path
        With tables of whole graphs (``graphs`` is one of them), or of one graph.
    targets : sequence of str
        Columns of ``graphs`` to predict; "*" takes all that look like it, and none
        the only one.
    kind : str
        Of the targets: "classes", "binary", "regression" or "auto".
    min_count : int
        In how many graphs (or nodes of one graph) a category or class must stand to be
        named, and a number to be counted in a mean.
    statistics : bool
        False writes no mean and no standard deviation: numbers stay as they are.

    Returns
    -------
    schema : Schema
    notes : list of str
        What was decided and left out, for the operator; may name values.

    Raises
    ------
    DataError
        A table is missing or wrong, or no target can be found.
    """
    if not holds_tables(folder):
        raise DataError(
            f"{folder} has no nodes.csv: {wanted_tables(folder)}; name the folder of"
            " one client, which holds them"
        )
    is_whole = not is_one_graph(folder)
    tables = find_tables(folder, whole_graphs=is_whole)
    notes: list[str] = []
    owner = "graph" if is_whole else "node"
    nodes = profile(tables.nodes, owner, min_count)
    if tables.graphs is not None:
        need_columns(tables.graphs, ["graph", *(t for t in targets if t != ALL)])
        found = profile(tables.graphs, "graph", min_count)
        table = tables.graphs
        target_kind, names = _choose_targets(table, found, targets, kind, notes)
        notes += [
            f"{column} of nodes is not used: so is called what is predicted, or splits"
            for column in nodes
            if column in (SPLIT, *names)
        ]
    else:
        need_columns(tables.nodes, [LABEL])
        if kind not in ("auto", "classes") or list(targets) not in ([], [LABEL]):
            raise DataError(
                f"{folder} is one graph, whose column 'label' of nodes has classes;"
                " leave --targets and --kind out"
            )
        target_kind, names, found = "classes", (LABEL,), nodes
        table = tables.nodes
    classes: tuple[str, ...] = ()
    if target_kind == "classes":
        classes = _classes(found[names[0]], owner, notes)
    made = [
        _feature(one, statistics=statistics, notes=notes)
        for column, one in nodes.items()
        if column not in (SPLIT, *names)
    ]
    features = tuple(feature for feature in made if feature)
    alike = {f"{f.column} of nodes": nodes[f.column] for f in features if f.categories}
    if classes:
        alike[f"{names[0]} of {table.name}"] = found[names[0]]
    for what, one in alike.items():
        notes += same_look(what, one.distinct())
    if not features:
        notes.append(
            f"nodes have no usable feature: one-hot degrees up to {DEFAULT_DEGREE}"
            " stand in"
        )
    return (
        Schema(
            dataset=GRAPHS_CSV if is_whole else GRAPH_CSV,
            target_kind=target_kind,
            targets=names,
            classes=classes,
            features=features,
            degree=0 if features else DEFAULT_DEGREE,
        ),
        notes,
    )


def profile(table: Table, owner: str, enough: int) -> dict[str, Profile]:
    """Profile every column that is no key of the table."""
    need_columns(table, [owner])
    columns = [c for c in table.columns if c not in KEYS["nodes"]]
    return {c: Profile(table, c, owner, enough) for c in columns}


def _choose_targets(
    table: Table,
    found: Mapping[str, Profile],
    given: Sequence[str],
    kind: str,
    notes: list[str],
) -> tuple[str, tuple[str, ...]]:
    """Choose the columns of graphs to predict, and their kind."""
    names = [] if list(given) == [ALL] else list(given)
    odd = [c for c in names if c in RESERVED or names.count(c) > 1]
    if odd:
        raise DataError(
            f"--targets must name each column once, and none of {', '.join(RESERVED)},"
            f" got {odd[0]!r}; correct it"
        )
    left: list[str] = []
    if not names:
        for column, one in found.items():
            if column == SPLIT:
                continue
            if one.is_left_out:
                left.append(f"{_unreadable(one)}: not a target")
            elif one.is_date:
                left.append(f"{column} of {table.name} is not a target: dates")
            elif one.is_id:
                notes.append(
                    f"{column} of {table.name} is not a target: whole numbers that all"
                    f" differ look like an id (else: --targets {column})"
                )
            elif not one.is_number and one.holders is None:
                notes.append(f"{column} of {table.name} is not a target: free text")
            else:
                names.append(column)
        if len(names) > 1 and not given:
            raise DataError(
                f"{table.path}, line 1: columns {', '.join(map(repr, names))} may"
                " all be meant, and nothing says which are to be predicted; name those"
                f" that are by --targets ({ALL!r} takes all of them)"
            )
    notes += left
    if not names:
        raise DataError(
            f"{table.path}, line 1: has no column to predict beside 'graph'; add"
            f" one, or name it with --targets{'; '.join(['', *left])}"
        )
    if kind == "auto":
        kind = _kind(names, found)
        notes.append(f"{', '.join(names)} of {table.name}: {kind} (else: --kind)")
    if kind not in TARGET_KINDS or (kind == "classes" and len(names) > 1):
        raise DataError(
            f"{table.path}, line 1: columns {', '.join(names)} cannot be predicted"
            " together as one kind: classes need one column, binary and regression"
            " need numbers; choose with --targets and --kind"
        )
    if kind == "classes":
        return kind, tuple(names)
    is_binary = kind == "binary"
    fits = {c: found[c].is_flag if is_binary else found[c].is_number for c in names}
    if odd := [column for column, is_fit in fits.items() if not is_fit]:
        must = "0 or 1" if is_binary else "numbers"
        if found[odd[0]].num_odd:
            must += f" (not {_first(found[odd[0]])})"
        raise DataError(
            f"{table.path}: column {odd[0]!r} must hold {must} to be predicted as"
            f" {kind}; leave it out with --targets, or choose another --kind"
        )
    for column in names:
        notes += _remarks(found[column])
    return kind, tuple(names)


def _kind(names: Sequence[str], found: Mapping[str, Profile]) -> str:
    first = found[names[0]]
    if len(names) == 1:
        few = len(first.distinct()) <= _MOST_CLASSES and first.holders is not None
        is_number = first.is_number or (first.is_mostly_number and not few)
        if not is_number:
            return "classes"
        if first.is_flag and first.num_missing:
            return "binary"
        return "classes" if first.numbers.is_integer and few else "regression"
    if all(found[c].is_flag for c in names):
        return "binary"
    if all(found[c].is_number for c in names):
        return "regression"
    return "none"


def _classes(one: Profile, owner: str, notes: list[str]) -> tuple[str, ...]:
    table, column = one.table, one.column
    classes, what = _frequent(one), f"{column} of {table.name}"
    notes += _remarks(one, classes)
    notes += [_unreadable(one)] * one.is_written_oddly
    marks = [c for c, n in one.unknown.marks.items() if is_name(c) and n >= one.enough]
    if len(classes) < 2 <= len(classes) + len(marks):  # else nothing can be learned
        classes += sorted(marks)
        notes.append(
            f"{what}: {', '.join(map(repr, marks))} must serve as class(es), for there"
            " are too few others; if that means not known, empty the cells, label more"
        )
    notes += _shares(f"{what}: classes", classes, one)
    if left := len(set(one.distinct()) - set(classes)):
        notes.append(
            f"{what}: {left} class(es) that fewer than {one.enough} {owner}s have are"
            " not named; add them to classes by hand if all sites may know them"
        )
    if len(classes) < 2:
        cure = "label more nodes, or "
        if owner == "graph":
            cure = "name another column with --targets, use --kind regression, or "
        raise DataError(
            f"{table.path}: column {column!r} has {len(classes)} class(es) that at"
            f" least {one.enough} {owner}s have, and two are needed; {cure}lower"
            " --min-count if the names of rare classes identify nobody"
        )
    is_number = by_value(classes) and not any(map(str.isalpha, classes))
    return tuple(map(as_whole, classes) if is_number else classes)  # 1, not 1.0


def _frequent(one: Profile) -> list[str]:
    """List names that enough graphs or nodes have; "-" is one beside "+"."""
    names = [name for name in one.frequent() if is_name(name)]
    return names + ["-"] * ("+" in names and one.unknown.marks["-"] >= one.enough)


def _shares(what: str, names: Sequence[str], one: Profile) -> list[str]:
    """Say how many rows have each name, and which one is written otherwise."""
    counts = {name: one.rows[name] for name in names}
    counts["none of these"] = one.unknown.rows - sum(counts.values())
    shares = [f"{n} ({c / one.unknown.rows:.1%})" for n, c in counts.items() if c]
    notes = [f"{what} {', '.join(shares[:_SHOWN])}{', ...' * (len(shares) > _SHOWN)}"]
    if (odd := odd_one(names)) and not same_look(what, names):
        notes.append(
            f"{what}: {odd!r} is written otherwise than the others; if it means not"
            " known, empty these cells and make the schema again"
        )
    return notes


def _feature(one: Profile, *, statistics: bool, notes: list[str]) -> Feature | None:
    """Describe a column of nodes; None if it is of no use."""
    missing, column = INDICATOR if one.num_missing else REFUSE, one.column
    what = f"{column} of nodes"
    if not one.count or not is_name(column):
        notes.append(f"{what} is not used: it is empty, or has an odd name")
        return None
    names = _frequent(one)
    is_named = not (one.is_mostly_number or one.is_date)
    notes += _remarks(one, names if is_named else ())
    may_tell = one.is_flag or not (one.is_number or one.is_date)  # if it is there
    if one.is_constant and not (one.num_missing and may_tell):
        rest = ", or none" * bool(one.num_missing)
        why = f"it has one value in all rows{rest}, but for rounding or fewer than"
        notes.append(f"{what} is not used: {why} {one.enough} rows{_BY_HAND}")
        return None
    if one.is_date:
        if few := one.count - one.days.count:
            notes.append(f"{what}: {few} of {one.count} cells are no dates{_CORRECT}")
        return _number(one, missing, statistics=statistics, notes=notes)
    if one.is_written_oddly:
        then = "not used (as a category: add a [[feature]] by hand)"
        then = f"; until then the column is {then if one.is_left_out else 'a category'}"
        notes.append(_unreadable(one) + then)
        if one.is_left_out:
            return None
    if one.is_mostly_number:
        if one.is_id:
            why = "whole numbers that all differ look like an id"
            notes.append(f"{what} is not used: {why}{_BY_HAND}")
            return None
        if not one.is_number:
            taken = f"; the column is taken as a number{_CORRECT}"
            notes.append(_odd_cells(one) + taken)
        return _number(one, missing, statistics=statistics, notes=notes)
    if one.holders is None or not names:
        notes.append(f"{what} is not used: free text, or names of single rows")
        return None
    notes += _shares(f"{what}: categories", names, one)
    if rare := len(set(one.distinct()) - set(names)):
        remark = f"{rare} rare categories are not named, and count as other"
        notes.append(f"{what}: {remark}")
    return Feature(
        column=column,
        kind=CATEGORY,
        categories=tuple(names),
        other=bool(rare),
        missing=missing,
    )


def _remarks(one: Profile, listed: Collection[str] = ()) -> list[str]:
    """Name cells that may stand for "not known"; of dates, too; and other readings."""
    what = one.table.of(one.column)
    days = Unknown(one.unknown.rows, Counter(), one.days)
    more = days.notes(what, one.enough, shown=_date) if one.is_date else []
    if len(one.numbers.ends) > 2 and all(map(is_compact_day, one.numbers.ends)):
        more.append(
            f"{what}: numbers look like days, and 20240131 is far from 20240201; write"
            " 2024-01-31, and make the schema again"
        )
    if one.is_grouped:
        more.append(
            f"{what}: all cells are as 1.234, which may mean 1234 or 1.234, or whole"
            " and below 1000; if a point parts thousands, leave it out in all rows"
        )
    return one.unknown.notes(what, one.enough, listed=listed) + more


def _unreadable(one: Profile) -> str:
    """Say that numbers or dates cannot be read as they are written, and the cure."""
    return (
        f"{_odd_cells(one)}; if numbers or dates are meant, write a"
        " point in place of the comma before decimals and nothing between thousands or"
        " around numbers, dates as 2024-01-31 or 2024-01-31T12:00 (01/02/2024 may be in"
        " January or February), in all rows and at all sites, and make the schema again"
    )


def _odd_cells(one: Profile) -> str:
    """Say how many cells are no numbers, and which is the first."""
    count = f"{one.table.of(one.column)}: {one.num_odd} of {one.count} cells"
    return f"{count} are no numbers (the first: {_first(one)})"


def _first(one: Profile) -> str:
    line, cell = one.first
    place = one.table.at(line, one.column)
    return f"{place}: {shortened(repr(cell))}{meaning(cell)}"


def _number(
    one: Profile, missing: Missing, *, statistics: bool, notes: list[str]
) -> Feature:
    numbers, kind = (one.days, DATE) if one.is_date else (one.numbers, NUMBER)
    shift, scale = _YEARS_FROM_2020 if kind == DATE else (0.0, 1.0)
    what, std = f"{one.column} of nodes", float(f"{numbers.std:.2g}")
    if not statistics:
        why = " (--no-statistics)"
    elif one.num_owners < one.enough:
        why = ": a mean of so few would tell of them"
    else:
        is_finite = math.isfinite(numbers.mean + std)
        why = "" if is_finite else ": its numbers are too large"
    if why and not one.is_flag:  # 0 and 1 need no scaling
        stands_in = "; years from 2020 stand in" * (kind == DATE)
        notes.append(f"{what} is not scaled{why}{stands_in}")
    elif not one.is_flag:
        scale = std or 1.0
        shift = _rounded(numbers.mean, scale)
        mean = _date(shift) if kind == DATE else f"{shift:.15g}"
        days = " days; a time without a zone counts as UTC" * (kind == DATE)
        notes.append(
            f"{what}: the schema tells its mean, about {mean}, and its standard"
            f" deviation, about {scale:g}{days}"
        )
    return Feature(
        column=one.column, kind=kind, shift=shift, scale=scale, missing=missing
    )


def _rounded(mean: float, std: float) -> float:
    """Round a mean to two digits, or to as many as bring it within a tenth of a std."""
    for digits in range(2, 17):
        shift = float(f"{mean:.{digits}g}")
        if abs(shift - mean) <= std / 10:
            break
    return shift


def _date(day: float) -> str:
    return str(date.fromordinal(min(max(math.floor(day) + _DAY_0, 1), _LAST_DAY)))
