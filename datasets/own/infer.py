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
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.cells import (
    MIN_COUNT,
    as_whole,
    by_value,
    is_missing,
    not_known,
    read_day,
    readings,
    same_look,
)
from ..tabular.encode import meaning, need_columns, read_numbers
from ..tabular.schema_file import (
    ALL,
    CATEGORY,
    DATE,
    GRAPH_CSV,
    GRAPHS_CSV,
    INDICATOR,
    KEEP,
    KEYS,
    LABEL,
    MERGE,
    NUMBER,
    REFUSE,
    RESERVED,
    TARGET_KINDS,
    WEIGHT,
    Edges,
    Feature,
    Schema,
    is_name,
)
from ..tabular.table import (
    SPLIT,
    Table,
    find_tables,
    holds_tables,
    is_one_graph,
    wanted_tables,
)

DEFAULT_DEGREE = 16
_MOST_DISTINCT = 1000  # categories of one column, before it counts as text
_MOST_CLASSES = 20  # different numbers, before they count as numbers to predict
_ODD = 10  # cells of a column of numbers, of which one may be no number
_NOISE = 1e-7  # of a mean, as a spread: numbers of 32 bits have it
_DAY_0, _LAST_DAY = date(1970, 1, 1).toordinal(), date.max.toordinal()
_TIMES = ("time", "timestamp", "ts")  # names of columns of times of edges
_YEARS_FROM_2020 = (18_262.0, 365.25)  # shift and scale of dates without statistics
_ANY_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
_CORRECT = (
    ", and such a row does not fit: correct the cell (an empty one is a missing value)"
    " and make the schema again, or make the column a category in the schema"
)


class Column:
    """One column of a table.

    Rows hold numbers of words, so that many rows take little memory.

    Parameters
    ----------
    owners : int array
        By row, which graph or node it is of.
    enough : int
        A cell that fewer graphs or nodes have is of single ones.

    Attributes
    ----------
    rows, holders : dict of str
        How many rows, and how many graphs or nodes, have each cell that is not missing.
    """

    def __init__(self, table: Table, name: str, owners: IntArray, enough: int) -> None:
        self.table, self.name, self.enough = table, name, enough
        self.cells, self._owners = table.rows.cells[name], owners
        code, words = _coded(self.cells)
        self._code = code.astype(np.int32)
        self._values = read_numbers(words)
        odd = np.isinf(self._values)
        days = [read_day(w) if o else np.nan for w, o in zip(words, odd, strict=True)]
        self._days = np.array(days, np.float64)
        self._is_known = ~np.isnan(self._values)
        self._counts = np.bincount(code, minlength=len(words)) * self._is_known
        pairs = _distinct(code * (1 + owners.max(initial=0)) + owners)
        pairs //= 1 + owners.max(initial=0)
        of_owners = np.bincount(pairs, minlength=len(words))
        known = [(words[k], k) for k in np.flatnonzero(self._is_known).tolist()]
        self.rows = {word: int(self._counts[k]) for word, k in known}
        self.holders = {word: int(of_owners[k]) for word, k in known}
        self.count, self.num_odd = int(self._counts.sum()), int(self._counts[odd].sum())

    @property
    def values(self) -> NDArray[np.float64]:
        """Cells as numbers: NaN if missing, infinity if none."""
        return self._values[self._code]

    @property
    def days(self) -> NDArray[np.float64]:
        """Cells that are no numbers as days since 1970, as ``values``."""
        return self._days[self._code]

    @property
    def what(self) -> str:
        """Name of the column and of its table."""
        return self.table.of(self.name)

    @property
    def in_words(self) -> str:
        """Name of the column and of what the rows of its table are."""
        return f"{self.name} of {self.table.name.partition('.')[0]}"

    @cached_property
    def is_flag(self) -> bool:
        """Whether all values are 0 or 1, or truth values."""
        values = read_numbers(list(self.holders)[:_MOST_CLASSES], truth=True)
        return 0 < len(self.holders) <= _MOST_CLASSES and set(values) <= {0, 1}

    @property
    def is_number(self) -> bool:
        """Whether all cells that are not missing are numbers, or truth values."""
        return not self.num_odd or self.is_flag

    @cached_property
    def kind(self) -> str:
        """Number, date or category, by nine of ten cells.

        Numbers with other texts are categories if many graphs or nodes have each.
        """
        are_codes = self.num_odd and min(self.holders.values()) >= self.enough
        if self.is_flag or (_ODD * self.num_odd <= self.count and not are_codes):
            return NUMBER
        num_days = int(self._counts[np.isfinite(self._days)].sum())
        is_date = 0 < (_ODD - 1) * self.count <= _ODD * num_days
        return DATE if is_date else CATEGORY

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Finite numbers, or days of a column of dates."""
        values = self.days if self.kind == DATE else self.values
        return values[np.isfinite(values)]

    @property
    def is_text(self) -> bool:
        """Whether it has so many different cells that they are no categories."""
        return self.kind == CATEGORY and len(self.holders) > _MOST_DISTINCT

    @property
    def is_id(self) -> bool:
        """Whether it looks like row numbers: whole numbers, all different."""
        found = self.numbers
        is_whole = self.kind == NUMBER and bool((found == np.rint(found)).all())
        return is_whole and MIN_COUNT <= len(found) == len(np.unique(found))

    @property
    def is_constant(self) -> bool:
        """Whether all cells that are not missing have one value.

        Numbers do so, too, that differ by rounding, or in fewer than ``enough`` graphs
        or nodes.
        """
        if len(self.holders) == 1 or self.is_flag or self.kind == CATEGORY:
            return len(self.holders) == 1
        is_usual = np.arange(len(self._counts)) == self._counts.argmax()
        num_others = self._num_owners(self._is_known & ~is_usual)
        found = self.numbers
        is_whole = self.kind == DATE or bool((found == np.rint(found)).all())
        noise = 0.0 if is_whole else _NOISE * abs(found.mean())
        is_flat = bool(found.std() <= noise)
        return is_flat or num_others < self.enough <= self._num_owners(is_usual)

    @property
    def num_owners(self) -> int:
        """How many graphs or nodes have a number or date."""
        return self._num_owners(np.isfinite(self._values) | np.isfinite(self._days))

    def _num_owners(self, are_meant: NDArray[np.bool_]) -> int:
        """How many graphs or nodes have one of some words."""
        return len(_distinct(self._owners[are_meant[self._code]]))

    @property
    def is_written_oddly(self) -> bool:
        """Whether numbers or dates seem meant that are written in other forms."""
        if self.kind != CATEGORY:
            return False
        meant = sum(bool(readings(c) or _ANY_DATE.match(c)) for c in self.holders)
        are_codes = min(self.holders.values()) >= self.enough
        is_half = 2 * self.num_odd <= self.count and not are_codes
        return is_half or _ODD * meant >= (_ODD - 1) * len(self.holders)

    @property
    def frequent(self) -> list[str]:
        """Names that enough graphs or nodes have, numbers in their order."""
        found = [c for c, n in self.holders.items() if n >= self.enough and is_name(c)]
        values = dict(zip(found, read_numbers(found).tolist(), strict=True))
        return sorted(found, key=lambda c: (values[c], c))

    def doubts(self, listed: Collection[str] = ()) -> list[str]:
        """Name cells that may mean something else."""
        is_date = self.kind == DATE
        found = not_known(
            self.what,
            self.cells,
            self.enough,
            numbers=self.days if is_date else self.values,
            listed=listed,
            shown=_date if is_date else "{:.12g}".format,
        )
        if self.is_written_oddly:
            found.append(
                f"{self.odd_cells()}; if numbers or dates are meant, write a point"
                " before decimals and nothing between thousands or around numbers, and"
                " dates as 2024-01-31, in all rows and at all sites, and make the"
                " schema again"
            )
        return found

    def odd_cells(self) -> str:
        """Say how many cells are no numbers, and which is the first."""
        at = int(np.flatnonzero(np.isinf(self.values))[0])
        cell, line = self.cells[at], self.table.rows.lines[at]
        place = self.table.at(line, self.name)
        return (
            f"{self.what}: {self.num_odd} of {self.count} cells are no numbers (the"
            f" first: {place}: {shortened(repr(cell))}{meaning(cell)})"
        )

    def shares(self, what: str, names: Sequence[str]) -> str:
        """Say how many rows have each name."""
        rows = Counter(self.cells)
        counts = {name: rows[name] for name in names}
        counts["none of these"] = len(self.cells) - sum(counts.values())
        found = [f"{n} ({c / len(self.cells):.1%})" for n, c in counts.items() if c]
        return f"{what} {shortened(', '.join(found), 1000)}"


@np.errstate(over="ignore", invalid="ignore")
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
    owner = "graph" if is_whole else "node"
    notes = tables.told
    nodes = _columns(tables.nodes, owner, min_count)
    if tables.graphs is not None:
        need_columns(tables.graphs, ["graph", *(t for t in targets if t != ALL)])
        found = _columns(tables.graphs, "graph", min_count)
        names = _choose_targets(tables.graphs, found, targets, notes)
        kind = _target_kind(tables.graphs, [found[n] for n in names], kind, notes)
        notes += [
            f"{column} of nodes is not used: so is called what is predicted, or splits"
            for column in nodes
            if column in (SPLIT, *names)
        ]
    else:
        learns_edges = LABEL in tables.edges.columns
        if not (learns_edges and LABEL not in tables.nodes.columns):
            need_columns(tables.nodes, [LABEL])
        if kind not in ("auto", "classes") or list(targets) not in ([], [LABEL]):
            raise DataError(
                f"{folder} is one graph, whose column 'label' of nodes has classes;"
                " leave --targets and --kind out"
            )
        names = tuple({LABEL} & {*tables.nodes.columns})
        kind, found = "classes", nodes
    has_classes = bool(names) and kind == "classes"
    classes = _classes(found[names[0]], owner, notes) if has_classes else ()
    others = SPLIT, *names
    features = _features(nodes, others, statistics, notes)
    edges, of_edges = _edges(tables.edges, is_whole, min_count, statistics, notes)
    inputs = found if is_whole and targets else {}
    of_graphs = _features(inputs, others, statistics, notes)
    alike = [nodes[f.column] for f in features if f.kind == CATEGORY]
    for one in [*alike, *([found[names[0]]] if classes else [])]:
        notes += same_look(one.what, sorted(one.holders))
    if not features:
        notes.append(
            f"nodes have no usable feature: one-hot degrees up to {DEFAULT_DEGREE}"
            " stand in"
        )
    return (
        Schema(
            dataset=GRAPHS_CSV if is_whole else GRAPH_CSV,
            target_kind=kind,
            targets=names,
            classes=classes,
            features=features,
            degree=0 if features else DEFAULT_DEGREE,
            edges=edges,
            edge_features=of_edges,
            graph_features=of_graphs,
        ),
        notes,
    )


def _edges(
    table: Table, is_whole: bool, enough: int, statistics: bool, notes: list[str]
) -> tuple[Edges | None, tuple[Feature, ...]]:
    """Say what rows of edges are; None if they have two ends and no more."""
    need_columns(table, KEYS["edges"])
    columns = [c for c in table.columns if c not in ("graph", *KEYS["edges"])]
    if not columns:
        return None, ()
    owners, _ = _coded(table.rows.cells["graph" if is_whole else "source"])
    every = {c: Column(table, c, owners, enough) for c in columns}
    lower = {c.lower(): c for c in reversed(columns)}
    label = "" if is_whole else lower.get(LABEL, "")
    weight = lower.get(WEIGHT, "")
    dates = [c for c in columns if every[c].kind == DATE]
    time = next((lower[name] for name in _TIMES if name in lower), (dates or [""])[0])
    if weight and not every[weight].is_number:
        weight = ""
    notes += [
        f"{table.of(column)} is taken as {what} (else: change [edges])"
        for column, what in (
            (weight, "the weight of edges"),
            (time, "the time of edges, and no feature"),
            (label, "the class of edges, to be learned with task edge-classification"),
        )
        if column
    ]
    if time:
        notes += every[time].doubts()
    classes: tuple[str, ...] = ()
    if label:
        classes = _classes(every[label], "edge's source", notes)
    of_edges = _features(every, (weight, time, label), statistics, notes)
    edges = Edges(
        directed=_is_directed(table, is_whole, bool(time), notes),
        repeats=KEEP if label or time else MERGE,
        weight=weight,
        time=time,
        label=label,
        classes=classes,
    )
    return edges, of_edges


def _is_directed(
    table: Table, is_whole: bool, has_time: bool, notes: list[str]
) -> bool:
    """Decide whether source and target differ; note that, repeats and loops.

    They do if edges have times, as transfers have, and some pairs but not all stand in
    both directions.
    """
    cells = table.rows.cells
    ends, words = _coded([*cells["source"], *cells["target"]])
    if is_whole:  # whose nodes may have equal names
        graph = np.tile(_coded(cells["graph"])[0], 2) * len(words)
        ends = np.unique(graph + ends, return_inverse=True)[1]
    source, target = ends.reshape(2, -1)
    size, is_loop = 1 + ends.max(initial=0), source == target
    pairs = _distinct((source * size + target)[~is_loop])
    turned, count = pairs % size * size + pairs // size, len(pairs)
    both = int(np.isin(turned, pairs, assume_unique=True).sum())
    is_directed = has_time and 0 < both < count
    which = "are directed" if is_directed else "count in both directions"
    other = "false" if is_directed else "true"
    notes.append(
        f"{table.name}: {both} of {count} pairs stand there in both directions; edges"
        f" {which} (else: directed = {other} in [edges])"
    )
    if repeated := len(is_loop) - int(is_loop.sum()) - count:
        notes.append(
            f"{table.name}: {repeated} row(s) repeat a pair; [edges] says whether each"
            " is an edge (repeats = 'keep') or one edge sums them up ('merge')"
        )
    if loops := int(is_loop.sum()):
        notes.append(
            f"{table.name}: {loops} row(s) join a node to itself and are dropped (else:"
            " self-loops = true in [edges])"
        )
    return is_directed


def _columns(table: Table, owner: str, enough: int) -> dict[str, Column]:
    """Describe every column that is no key of the table."""
    need_columns(table, [owner])
    columns = [c for c in table.columns if c not in KEYS["nodes"]]
    owners, _ = _coded(table.rows.cells[owner])
    return {c: Column(table, c, owners, enough) for c in columns}


def _coded(cells: Sequence[str]) -> tuple[IntArray, list[str]]:
    """Give each cell the number of its word; return the words as they come first."""
    code, words = pd.factorize(np.array(cells, object))
    return code, words.tolist()


def _distinct(numbers: IntArray) -> IntArray:
    """Return different numbers >= 0, ascending; of many faster than NumPy's hashes."""
    found = np.sort(numbers)
    return found[np.diff(found, prepend=-1) > 0]


def _choose_targets(
    table: Table, found: Mapping[str, Column], given: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Choose the columns of graphs to predict."""
    if given and list(given) != [ALL]:
        odd = [c for c in given if c in RESERVED or list(given).count(c) > 1]
        if odd:
            raise DataError(
                f"--targets must name each column once, and none of"
                f" {', '.join(RESERVED)}, got {odd[0]!r}; correct it"
            )
        return tuple(given)
    names: list[str] = []
    for column, one in found.items():
        if column == SPLIT:
            continue
        why = "dates" if one.kind == DATE else "free text" if one.is_text else ""
        if one.is_id:
            why = "whole numbers that all differ look like an id"
        if why:
            why = f"{one.what} is not a target: {why} (else: --targets {column})"
            notes.append(why)
        else:
            names.append(column)
    if len(names) > 1 and not given:
        raise DataError(
            f"{table.path}, line 1: columns {', '.join(map(repr, names))} may all be"
            f" meant; name those to be predicted by --targets ({ALL!r} takes all)"
        )
    if not names:
        raise DataError(
            f"{table.path}, line 1: has no column to predict beside 'graph'; add one,"
            " or name it with --targets"
        )
    return tuple(names)


def _target_kind(
    table: Table, columns: Sequence[Column], kind: str, notes: list[str]
) -> str:
    """Choose the kind of targets, or check the one that is given."""
    names = ", ".join(one.name for one in columns)
    if kind == "auto":
        kind = _kind(columns)
        notes.append(f"{names} of {table.name}: {kind} (else: --kind)")
    if kind not in TARGET_KINDS or (kind == "classes" and len(columns) > 1):
        raise DataError(
            f"{table.path}, line 1: columns {names} cannot be predicted"
            " together as one kind: classes need one column, binary and regression"
            " need numbers; choose with --targets and --kind"
        )
    if kind == "classes":
        return kind
    for one in columns:
        if not (one.is_flag if kind == "binary" else one.is_number):
            must = "0 or 1" if kind == "binary" else "numbers"
            first = f"; {one.odd_cells()}" if one.num_odd else ""
            raise DataError(
                f"{table.path}: column {one.name!r} must hold {must} to be predicted"
                f" as {kind}{first}; leave it out with --targets, or choose another"
                " --kind"
            )
        notes += one.doubts()
    return kind


def _kind(columns: Sequence[Column]) -> str:
    first = columns[0]
    if len(columns) == 1:
        if first.kind != NUMBER:
            return "classes"
        if first.is_flag:
            return "binary" if first.count < len(first.cells) else "classes"
        is_whole = bool((first.numbers == np.rint(first.numbers)).all())
        is_few = is_whole and len(first.holders) <= _MOST_CLASSES
        return "classes" if is_few else "regression"
    if all(one.is_flag for one in columns):
        return "binary"
    return "regression" if all(one.is_number for one in columns) else "none"


def _classes(one: Column, owner: str, notes: list[str]) -> tuple[str, ...]:
    classes = one.frequent
    doubts = one.doubts(classes)
    if len(classes) < 2:  # nothing could be learned
        found = Counter(filter(is_missing, one.cells))
        marks = sorted(c for c, n in found.items() if is_name(c) and n >= one.enough)
        classes += marks
        notes += [f"{one.what}: {c!r} must serve as a class" for c in marks]
    notes += [*doubts, one.shares(f"{one.what}: classes", classes)]
    if left := len({*one.holders} - {*classes}):
        notes.append(
            f"{one.what}: {left} class(es) that fewer than {one.enough} {owner}s have"
            " are not named; add them to classes by hand if all sites may know them"
        )
    if len(classes) < 2:
        gaps = len(one.cells) - one.count
        cure = f"write a class into the {gaps} cells without one, or " * bool(gaps)
        cure += "label more, or "
        if owner == "graph":
            cure = "name another column with --targets, use --kind regression, or "
        raise DataError(
            f"{one.table.path}: column {one.name!r} has {len(classes)} class(es) that"
            f" at least {one.enough} {owner}s have, and two are needed"
            f"{''.join(f' ({words})' for words in doubts)}; {cure}lower --min-count if"
            " the names of rare classes identify nobody"
        )
    is_number = by_value(classes) and not any(map(str.isalpha, classes))
    return tuple(map(as_whole, classes) if is_number else classes)  # 1, not 1.0


def _features(
    found: Mapping[str, Column],
    others: Sequence[str],
    statistics: bool,
    notes: list[str],
) -> tuple[Feature, ...]:
    """Describe the columns that are of use, but for ``others``."""
    made = [_feature(o, statistics, notes) for c, o in found.items() if c not in others]
    return tuple(feature for feature in made if feature)


def _feature(one: Column, statistics: bool, notes: list[str]) -> Feature | None:
    """Describe a column of nodes; None if it is of no use."""
    has_gaps, what = one.count < len(one.cells), one.in_words
    names = one.frequent if one.kind == CATEGORY and one.count else []
    may_tell = one.is_flag or one.kind == CATEGORY  # whether it is there
    why = ""
    if not one.count or not is_name(one.name):
        why = "it is empty, or has an odd name"
    elif one.is_constant and not (has_gaps and may_tell):
        why = "it has one value in all rows, but for rounding or fewer than"
        why += f" {one.enough} rows"
    elif one.is_id:
        why = "whole numbers that all differ look like an id"
    elif one.is_text or (one.kind == CATEGORY and not names):
        why = "free text, or names of single rows"
    if one.count:
        notes += one.doubts(names)
    if why:
        notes.append(f"{what} is not used: {why} (else: add a [[feature]] by hand)")
        return None
    missing = INDICATOR if has_gaps else REFUSE
    if one.kind == CATEGORY:
        notes.append(one.shares(f"{what}: categories", names))
        if rare := len(one.holders) - len(names):
            remark = f"{rare} rare categories are not named, and count as other"
            notes.append(f"{what}: {remark}")
        return Feature(
            column=one.name,
            kind=CATEGORY,
            categories=tuple(names),
            other=bool(rare),
            missing=missing,
        )
    if one.kind == NUMBER and not one.is_number:
        notes.append(f"{one.odd_cells()}; the column is taken as a number{_CORRECT}")
    elif one.kind == DATE and (few := one.count - len(one.numbers)):
        notes.append(f"{what}: {few} of {one.count} cells are no dates{_CORRECT}")
    shift, scale = _scaling(one, statistics, notes)
    kind = DATE if one.kind == DATE else NUMBER
    return Feature(
        column=one.name, kind=kind, shift=shift, scale=scale, missing=missing
    )


def _scaling(one: Column, statistics: bool, notes: list[str]) -> tuple[float, float]:
    """Shift and scale of numbers or dates: their mean and spread, if these may go."""
    is_date, what = one.kind == DATE, one.in_words
    if one.is_flag:  # needs no scaling
        return 0.0, 1.0
    mean, std = float(one.numbers.mean()), float(one.numbers.std())
    why = ""
    if not statistics:
        why = " (--no-statistics)"
    elif one.num_owners < one.enough:
        why = ": a mean of so few would tell of them"
    elif not math.isfinite(mean + std):
        why = ": its numbers are too large"
    if why:
        stands_in = "; years from 2020 stand in" * is_date
        notes.append(f"{what} is not scaled{why}{stands_in}")
        return _YEARS_FROM_2020 if is_date else (0.0, 1.0)
    scale = float(f"{std:.2g}") or 1.0
    for digits in range(2, 17):  # as many as bring it within a tenth of a spread
        shift = float(f"{mean:.{digits}g}")
        if abs(shift - mean) <= scale / 10:
            break
    about = _date(shift) if is_date else f"{shift:.15g}"
    days = " days; a time without a zone counts as UTC" * is_date
    notes.append(
        f"{what}: the schema tells its mean, about {about}, and its standard"
        f" deviation, about {scale:g}{days}"
    )
    return shift, scale


def _date(day: float) -> str:
    return str(date.fromordinal(min(max(math.floor(day) + _DAY_0, 1), _LAST_DAY)))
