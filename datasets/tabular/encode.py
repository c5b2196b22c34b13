"""Cells of users' tables as numbers, by a schema; misfits are listed by line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError

from .cells import (
    LIMITS,
    TRUTH,
    as_whole,
    by_look,
    by_value,
    is_empty,
    is_missing,
    read_day,
    readings,
    twin,
)
from .schema_file import CATEGORY, DATE, DROP, INDICATOR, Feature, Schema
from .table import SPLIT, Rows, Table, no_column

ROLES = {"train": 0, "val": 1, "test": 2}
NO_ROLE = -1
SHOWN = 5  # problems, or names, that a message lists
MOST_NUMBERS = 2**31  # of encoded features of a table: 8 GiB
_MUCH_OTHER = 1 / 3
_FAR, _WIDE, _NARROW = 5, 10, 1e-3  # spreads of the site that made the schema
_AT_ALL = "in the schema of all sites"
CORRECT_KIND = f"correct it, or correct kind of [target] {_AT_ALL}"
MAKE_FIT = (
    "correct the tables, or use the schema that they were made for, or, if rows name"
    f' accounts of other sites, set outside = "{DROP}" above [target] {_AT_ALL}'
)
_values, _looks = lru_cache(by_value), lru_cache(by_look)  # names are many
Flaw = tuple[int, str, str]  # row of the table, column, what is wrong, and its cure


class Problem(NamedTuple):
    """A row that cannot be used: where (file, line, column), and what is wrong.

    ``name`` is that of the graph or node which is left out for it; "" if there is none.
    """

    where: str
    text: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def first_few(items: Sequence[object], mark: str = "; ") -> str:
    """Name the first few problems or names, and how many more there are."""
    more = len(items) - SHOWN
    named = mark.join(map(str, items[:SHOWN]))
    return named + (f"{mark}and {more} more" if more > 0 else "")


class LeftOut(NamedTuple):
    """How many rows a table has, how many do not fit, how many are meant to be outside.

    Edges of a node that does not fit are lost with it.
    """

    what: str
    rows: int
    lost: int
    outside: int = 0

    def __str__(self) -> str:
        """Say which share is left out, e.g. "4.6 % of edges"; "" if none."""
        lost = self.lost + self.outside
        return f"{100 * lost / self.rows:.2g} % of {self.what}" if lost else ""

    def is_much(self) -> bool:
        """Whether so many rows do not fit that something is wrong with all of them.

        A third: single mistakes are fewer by far, and a column that was written
        otherwise (7.0 in place of 7) spoils more.
        """
        return 3 * self.lost > self.rows


def count_rows(bad: Iterable[str]) -> int:
    """Count the rows that problems name; a row may have several."""
    return len({text.partition(", column ")[0] for text in bad})


def need_columns(table: Table, columns: Iterable[str]) -> None:
    """Refuse a table without a column that is needed."""
    for column in columns:
        if column in table.columns:
            continue
        raise no_column(
            f"{table.path}, line 1:",
            column,
            table.columns,
            "add or rename it, or correct the schema",
        )


def encode_features(
    features: Sequence[Feature],
    rows: Rows,
    flaws: list[Flaw],
    *,
    is_compact: bool = True,
) -> NDArray[Any]:
    """Encode feature columns of some rows, float32 (num_rows, width).

    Cells that do not fit are added to ``flaws``, here and below; their encoding has no
    meaning. If the only feature is one category with a column for each value, and
    ``is_compact``, these are integers (num_rows,).

    Raises
    ------
    DataError
        The schema makes too many numbers of the table.
    """
    if is_compact and len(features) == 1 and features[0].kind == CATEGORY:
        return np.maximum(_codes(features[0], rows, flaws), 0)
    width = sum(feature.width for feature in features)
    count = len(rows.lines)
    if count * width > MOST_NUMBERS:
        raise DataError(
            f"{count} rows with the schema's {width} columns each are more than"
            f" {MOST_NUMBERS} numbers; list fewer categories {_AT_ALL}, and let rare"
            " ones share a column by other = true"
        )
    x = np.zeros((count, width), np.float32)
    at = 0
    for feature in features:
        part = x[:, at : at + feature.width]
        at += feature.width
        if feature.kind == CATEGORY:
            codes = _codes(feature, rows, flaws)
            at_cell = np.flatnonzero(codes >= 0)
            part[at_cell, codes[at_cell]] = 1
        else:
            _fill_numbers(feature, rows, part, flaws)
    return x


def far_columns(
    features: Sequence[Feature], table: Table, x: NDArray[Any]
) -> list[str]:
    """Name columns of encoded features that are far from the schema's own site's."""
    notes, at = [], 0
    for feature in features:
        what, first = table.of(feature.column), at
        at += feature.width
        if feature.kind == CATEGORY:
            at_other = first + len(feature.categories)
            other = x == at_other if x.ndim == 1 else x[:, min(at_other, at - 1)]
            if feature.other and len(x) and np.mean(other) > _MUCH_OTHER:
                notes.append(
                    f"{what}: {np.mean(other):.0%} of rows count as other, whose names"
                    f" the schema lacks; list them {_AT_ALL}, or spell them as it does"
                )
            continue
        values = x[:, first].astype(np.float64)
        if feature.missing == INDICATOR:
            values = values[x[:, first + 1] == 0]
        if not len(values):
            continue
        mean, spread = values.mean(), values.std()
        if abs(mean) > _FAR or spread > _WIDE or 0 < spread < _NARROW:
            notes.append(
                f"{what}: encoded by the schema, numbers have mean {mean:.3g} and"
                f" spread {spread:.3g}, and not about 0 and 1: another unit or scale"
                " than at the site that made the schema, or a column without shift and"
                f" scale; correct the table, or shift and scale {_AT_ALL}"
            )
    return notes


def read_times(column: str, rows: Rows, flaws: list[Flaw]) -> NDArray[np.float64]:
    """Read times: numbers as they are, dates as days since 1970-01-01.

    Of numbers and dates in one column, which cannot be compared, the fewer do not fit.
    """
    cells = rows.cells[column]
    values = read_numbers(cells)
    is_text = np.isinf(values)
    odd = np.flatnonzero(is_text)
    days = {cell: read_day(cell) for cell in {cells[row] for row in odd.tolist()}}
    values[odd] = [days[cells[row]] for row in odd.tolist()]
    is_day, is_number = (np.isfinite(values) & kind for kind in (is_text, ~is_text))
    must = "a time must be a number, or a date"
    if is_day.any() and is_number.any():
        values[is_day if is_day.sum() <= is_number.sum() else is_number] = np.nan
        must = "times must all be numbers, or all dates"
    must += " such as 2024-01-31T12:00, got"
    for row in np.flatnonzero(~np.isfinite(values)).tolist():
        flaws.append((row, column, f"{must} {cells[row]!r}; correct it"))
    return values


def encode_weights(column: str, rows: Rows, flaws: list[Flaw]) -> NDArray[np.float32]:
    """Read weights of edges."""
    cells = rows.cells[column]
    with np.errstate(over="ignore"):
        values = read_numbers(cells).astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(values)).tolist():
        must = f"a weight must be a finite number, got {cells[row]!r}"
        flaws.append((row, column, f"{must}{meaning(cells[row])}; correct it"))
        values[row] = 0
    return values


def _codes(feature: Feature, rows: Rows, flaws: list[Flaw]) -> IntArray:
    """Column of each cell; -1 if it has none."""
    cells = rows.cells[feature.column]
    codes = _find(feature.categories, cells)
    for row in np.flatnonzero(codes < 0).tolist():
        cell = cells[row]
        if is_missing(cell) and feature.missing == INDICATOR:
            codes[row] = feature.width - 1
            continue
        like = twin(cell, _looks(feature.categories))
        if feature.other and not (like or is_empty(cell)):
            codes[row] = len(feature.categories)
        elif is_missing(cell):
            flaws.append((row, feature.column, _missing_text(cell)))
        else:
            what = f"{cell!r} is none of the schema's categories"
            what += f" ({first_few(feature.categories, ', ')}){like};"
            what += " correct it, or list it"
            what += " or set other = true" * (not feature.other)
            flaws.append((row, feature.column, f"{what} {_AT_ALL}"))
    return codes


def _find(names: tuple[str, ...], cells: Sequence[str]) -> IntArray:
    """Return the number of each cell's name, or -1.

    Where all names are numbers, or truth values, a cell may spell one otherwise: 1.0
    for 1, and true for 1.
    """
    index = {name: i for i, name in enumerate(names)}
    codes = np.fromiter(map(index.get, cells, repeat(-1)), np.int64, len(cells))
    if (codes < 0).any() and (values := _values(names)):
        is_flag = values.keys() <= {"0", "1"}
        for row in np.flatnonzero(codes < 0).tolist():
            if is_flag or cells[row].lower() not in TRUTH:
                codes[row] = index.get(values.get(as_whole(cells[row]), ""), -1)
    return codes


def _fill_numbers(
    feature: Feature, rows: Rows, part: NDArray[np.float32], flaws: list[Flaw]
) -> None:
    cells = rows.cells[feature.column]
    if feature.kind == DATE:
        known = {cell: read_day(cell) for cell in set(cells)}
        values = np.array([known[cell] for cell in cells], np.float64)
    else:
        is_plain = (feature.shift, feature.scale) == (0, 1)  # as those of 0 and 1 are
        values = read_numbers(cells, truth=is_plain)
    with np.errstate(over="ignore"):
        part[:, 0] = (values - feature.shift) / feature.scale
    odd = np.flatnonzero(~np.isfinite(part[:, 0]))
    part[odd, 0] = 0
    for row in odd.tolist():
        if not is_missing(cells[row]):
            must = f"must be a finite number, got {cells[row]!r}"
            must += f"{meaning(cells[row])}; correct it, or make the column a category"
            if feature.kind == DATE:
                must = "must be a date such as 2024-01-31 or 2024-01-31T12:00, got"
                must += f" {cells[row]!r}; write it so, or leave the column out"
            flaws.append((row, feature.column, f"{must} {_AT_ALL}"))
        elif feature.missing == INDICATOR:
            part[row, 1] = 1
        else:
            flaws.append((row, feature.column, _missing_text(cells[row])))


def meaning(cell: str) -> str:
    """Say which numbers a cell may mean that is none as it is written; or ""."""
    found = [text for text in readings(cell) if text != cell and cell[0] not in LIMITS]
    return f", which may mean {' or '.join(found)}" if found else ""


def read_numbers(cells: Sequence[str], *, truth: bool = False) -> NDArray[np.float64]:
    """Read numbers; NaN for missing values, infinity for other texts.

    With ``truth``, True is 1 and False is 0.
    """
    try:
        if is_plain("".join(cells)):
            return np.array(list(map(float, cells)), np.float64)
    except ValueError:
        pass
    known = {cell: _number(cell) for cell in set(cells)}  # categories are few
    if truth:
        known |= {c: TRUTH[c.lower()] for c in known if c.lower() in TRUTH}
    return np.array([known[cell] for cell in cells], np.float64)


def is_plain(text: str) -> bool:
    """Whether a text has only ASCII letters and no "_", as numbers of tables have.

    Python's float() also takes 1_000 and digits of other scripts.
    """
    return text.isascii() and "_" not in text


def _number(cell: str) -> float:
    try:
        return float(cell) if is_plain(cell) else math.inf
    except ValueError:
        return math.nan if is_missing(cell) else math.inf


def _missing_text(cell: str) -> str:
    what = f"is {cell!r}, which counts as not known" if cell else "is empty"
    return f'{what}; complete it, or set missing = "indicator" {_AT_ALL}'


def encode_targets(
    schema: Schema,
    rows: Rows,
    flaws: list[Flaw],
    *,
    are_known: bool = True,
    cure: str = CORRECT_KIND,
) -> NDArray[Any]:
    """Encode what is to be predicted.

    Returns
    -------
    int64 array (num_rows,), or float32 array (num_rows, num_targets)
        Numbers of classes, -1 if missing or wrong; or targets, NaN if so. All are
        missing unless they ``are_known``.
    """
    if not schema.targets:  # nodes whose edges alone are learned
        return np.full(len(rows.lines), -1, np.int64)
    if schema.classes:
        column = schema.targets[0] if are_known else ""
        return encode_classes(schema.classes, column, rows, flaws)
    is_binary = schema.target_kind == "binary"
    y = np.full((len(rows.lines), len(schema.targets)), np.nan, np.float32)
    for at, column in enumerate(schema.targets if are_known else ()):
        cells = rows.cells[column]
        values = read_numbers(cells, truth=is_binary)
        with np.errstate(over="ignore"):
            y[:, at] = values
        fits = np.isin(values, (0, 1)) if is_binary else np.isfinite(y[:, at])
        for row in np.flatnonzero(~fits & ~np.isnan(values)).tolist():
            must = f"a label must be {'0 or 1' if is_binary else 'a finite number'},"
            must += f" or empty where it is missing, got {cells[row]!r}"
            flaws.append((row, column, f"{must}{meaning(cells[row])}; {cure}"))
            y[row, at] = np.nan
    return y


def encode_classes(
    classes: tuple[str, ...], column: str, rows: Rows, flaws: list[Flaw]
) -> IntArray:
    """Encode a column of classes; -1 where it is missing or wrong, or has no name."""
    cells = rows.cells[column] if column else [""] * len(rows.lines)
    codes = _find(classes, cells)
    for row in np.flatnonzero(codes < 0).tolist():
        if not is_missing(cell := cells[row]):
            what = f"{cell!r} is none of the schema's classes"
            what += f" ({first_few(classes, ', ')}){twin(cell, _looks(classes))}"
            what += f"; correct it, or list it {_AT_ALL}"
            flaws.append((row, column, what))
    return codes


def encode_roles(rows: Rows, flaws: list[Flaw], *, may_miss: bool) -> NDArray[np.int8]:
    """Encode the column of splits: 0 train, 1 val, 2 test, -1 none."""
    cells = rows.cells[SPLIT]
    roles = np.array([ROLES.get(cell, NO_ROLE) for cell in cells], np.int8)
    for row in np.flatnonzero(roles < 0).tolist():
        if not (may_miss and is_missing(cells[row])):
            must = f"must be train, val or test{', or empty' * may_miss}, got"
            must += f" {cells[row]!r}; correct it, or delete the column to have a split"
            flaws.append((row, SPLIT, f"{must} drawn"))
    return roles
