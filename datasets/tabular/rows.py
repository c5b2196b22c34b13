"""Rows of own tables: graphs, nodes, edges; what does not fit is listed by line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray

from .cells import alike, by_look, is_missing, twin
from .encode import (
    NO_ROLE,
    Flaw,
    Problems,
    encode_features,
    encode_roles,
    encode_targets,
    need_columns,
)
from .schema_file import KEYS, SPLIT, Schema
from .table import Rows, Table, Tables

ADD_IT = "; add it there, or delete this row"  # cure of a row that names a stranger
_SAYS_HOW = re.compile(
    r"(relation|operator|qualifier|modifier|censor\w*|units?)$", re.I
)


@dataclass(frozen=True, kw_only=True)
class Units:
    """Rows of graphs, or of the nodes of one graph: what has a target and a split.

    ``is_open``: graphs that fit, but have no class.
    """

    names: list[str]
    lines: IntArray
    x: NDArray[np.generic]
    y: NDArray[Any]
    role: NDArray[np.int8]
    has_split: bool
    is_bad: NDArray[np.bool_]
    is_open: NDArray[np.bool_]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Rows of nodes: graph (-1 if it is unknown), and number of the node's name."""

    graph: IntArray
    name: IntArray
    x: NDArray[np.generic]
    is_bad: NDArray[np.bool_]

    @property
    def num_outside(self) -> int:
        """How many rows name a graph that is elsewhere, and are meant to."""
        return int(((self.graph < 0) & ~self.is_bad).sum())


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Rows of edges: graph, and both ends as rows of nodes; -1 if unknown.

    ``notes`` tell how names of what is elsewhere are written.
    """

    graph: IntArray
    ends: IntArray
    is_bad: NDArray[np.bool_]
    notes: list[str]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Rows of which both ends are known."""
        return np.asarray((self.ends >= 0).all(axis=0))

    @property
    def num_outside(self) -> int:
        """How many rows name what is elsewhere, and are meant to."""
        return int((~self.fits & ~self.is_bad).sum())


def tell_mixed(columns: Mapping[str, Collection[str]]) -> list[str]:
    """Warn of columns that say how numbers of others are meant, if in several ways."""
    says_how = filter(_SAYS_HOW.search, columns)
    found = {name: sorted({*columns[name]} - {""}) for name in says_how}
    return [
        f"column {name} is not used and holds {', '.join(map(repr, cells[:3]))}:"
        " numbers in several units, or limits as in >10, are learnt as if they were"
        " alike; write them in one unit, and leave out rows with limits"
        for name, cells in found.items()
        if len(cells) > 1
    ]


def first_rows(names: Sequence[str]) -> dict[str, int]:
    """Return the first row of each name."""
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        found.setdefault(name, at)
    return found


def read_units(
    table: Table,
    key: str,
    schema: Schema,
    problems: Problems,
    *,
    needs_targets: bool,
) -> Units:
    """Read graphs, or nodes with their features, each with target and split."""
    is_node = key == "node"
    features = [f.column for f in schema.features if is_node]
    need_columns(table, [key, *features, *(schema.targets if needs_targets else ())])
    has_split = needs_targets and SPLIT in table.columns
    rows = table.rows
    count, names = len(rows.lines), list(rows.cells[key])
    x: NDArray[Any] = np.zeros((count, 0), np.float32)
    role = np.full(count, NO_ROLE, np.int8)
    flaws: list[Flaw] = []
    if is_node:
        problems.remark_features(schema, table)
        x, flaws = encode_features(schema, rows)
    if needs_targets:
        problems.remark_targets(schema, table)
    y, more = encode_targets(schema, rows, are_known=needs_targets)
    flaws += more
    if has_split:
        role, more = encode_roles(SPLIT, rows, may_miss=is_node)
        flaws += more
    if has_split and is_node:
        labels = rows.cells[schema.targets[0]]
        flaws += [
            (row, SPLIT, "a node without label must have no split; empty one of them")
            for row in np.flatnonzero((y < 0) & (role != NO_ROLE)).tolist()
            if is_missing(labels[row])
        ]
    flaws += _nameless(key, rows)
    first, is_bad = first_rows(names), np.zeros(count, np.bool_)
    for row, name in enumerate(names):
        if first[name] != row and name:
            is_bad[first[name]] = True
            text = f"{key} {name!r} is there twice; rename or delete one of them"
            flaws.append((row, key, text))
    is_bad[_note(table, names, flaws, problems)] = True
    used = {*schema.targets, *features}
    unused = {c: cells for c, cells in rows.cells.items() if c not in used}
    may_be_open = bool(schema.classes) and needs_targets and not is_node
    return Units(
        names=names,
        lines=np.array(rows.lines, np.int64),
        x=x,
        y=y,
        role=role,
        has_split=has_split,
        is_bad=is_bad,
        is_open=(y < 0) & ~is_bad if may_be_open else np.zeros_like(is_bad),
        notes=tell_mixed(unused),
    )


def _nameless(key: str, rows: Rows) -> list[Flaw]:
    """Find rows whose graph or node has no name, but a mark of what is not known."""
    return [
        (row, key, f"{f'is {name!r}, no name' if name else 'is empty'}; give it a name")
        for row, name in enumerate(rows.cells[key])
        if not name.isdigit() and is_missing(name)
    ]


def _note(
    table: Table,
    names: Sequence[str],
    flaws: Sequence[Flaw],
    problems: Problems,
) -> list[int]:
    """List flaws as problems, in the order of rows; return the rows.

    ``names`` are those of what is left out, of each row; empty for edges alone.
    """
    for row, column, text in sorted(flaws):
        name = names[row] if names else ""
        problems.add(table.at(table.rows.lines[row], column), text, name)
    return [row for row, _, _ in flaws]


def read_nodes(
    tables: Tables,
    schema: Schema,
    graph_of: Mapping[str, int],
    name_of: dict[str, int],
    problems: Problems,
) -> Nodes:
    """Read the nodes of whole graphs; ``name_of`` is filled with numbers of names."""
    table, graphs = tables.nodes, tables.graphs
    assert graphs is not None
    need_columns(table, ["graph", "node", *(f.column for f in schema.features)])
    rows = table.rows
    problems.remark_features(schema, table)
    x, flaws = encode_features(schema, rows)
    known = _Names("graph", graph_of, graphs.name, drop=schema.drops_outside)
    graph, named, found = known.graphs(rows)
    flaws += found + _nameless("node", rows)
    numbers = (name_of.setdefault(n, len(name_of)) for n in rows.cells["node"])
    name = np.fromiter(numbers, np.int64, len(graph))
    is_bad = np.zeros(len(graph), np.bool_)
    is_bad[_note(table, named, flaws, problems)] = True
    order = np.lexsort((name, graph))
    same = (np.diff(graph[order]) == 0) & (np.diff(name[order]) == 0)
    name_at = {at: name for name, at in graph_of.items()}
    for at in np.sort(order[1:][same & (graph[order[1:]] >= 0)]).tolist():
        problems.add(
            table.at(rows.lines[at], "node"),
            "the graph has another node of this name; rename or delete one of them",
            name_at[int(graph[at])],
        )
        is_bad[at] = True
    return Nodes(graph=graph, name=name, x=x, is_bad=is_bad)


def _numbers(number_of: Mapping[str, int], names: Sequence[str]) -> IntArray:
    """Return the number of each name; -1 if it has none."""
    return np.fromiter(map(number_of.get, names, repeat(-1)), np.int64, len(names))


class _Names:
    """Names of graphs or nodes, for rows of other tables that name them.

    With ``drop`` a name that is not there is no flaw, unless it looks like one that is.
    """

    def __init__(
        self, what: str, number_of: Mapping[str, int], place: str, *, drop: bool
    ) -> None:
        self._what, self._number_of, self._place = what, number_of, place
        self._drop = drop
        self._odd: Counter[str] = Counter()

    @cached_property
    def _looks(self) -> Mapping[Any, str]:
        return by_look(self._number_of)

    @cached_property
    def _forms(self) -> set[str]:
        return set(map(_form, self._number_of))

    def graphs(self, rows: Rows) -> tuple[IntArray, list[str], list[Flaw]]:
        """Return the number and the name of each row's graph; -1 if it is elsewhere.

        A row that spells a graph otherwise is a flaw of that graph, which lacks it.
        """
        names = list(rows.cells["graph"])
        number = _numbers(self._number_of, names)
        flaws = self.flaws("graph", rows, number < 0)
        for row, _, _ in flaws:
            names[row] = self._looks.get(alike(names[row]), names[row])
            number[row] = self._number_of.get(names[row], -1)
        return number, names, flaws

    def flaws(
        self, column: str, rows: Rows, is_stranger: NDArray[np.bool_]
    ) -> list[Flaw]:
        """Word what is wrong with rows whose ``column`` names a stranger."""
        cells, found = rows.cells[column], []
        for row in np.flatnonzero(is_stranger).tolist():
            like = twin(cells[row], self._looks)
            if like or not self._drop or is_missing(cells[row]):
                text = f"{self._what} {cells[row]!r} is not in {self._place}{like}"
                found.append((row, column, text + ADD_IT))
            elif _form(cells[row]) not in self._forms:
                self._odd[cells[row]] += 1
        return found

    def notes(self) -> list[str]:
        """Name what is elsewhere and is written as no name here."""
        if not self._odd:
            return []
        few = ", ".join(map(repr, sorted(self._odd)[:3]))
        return [
            f"{self._odd.total()} end(s) of edges count as outside and are written as"
            f" no {self._what} of {self._place}, such as {few}; if they are there,"
            " write them alike"
        ]


def _form(name: str) -> str:
    """Return the marks in a name."""
    return re.sub(r"\w+", "a", name)


def read_edges(
    tables: Tables,
    schema: Schema,
    nodes: Nodes,
    graph_of: Mapping[str, int],
    name_of: Mapping[str, int],
    problems: Problems,
) -> Edges:
    """Read edges and find the nodes that they join."""
    table, graphs, drop = tables.edges, tables.graphs, schema.drops_outside
    need_columns(table, [*["graph"] * bool(graphs), "source", "target"])
    width = max(len(name_of), int(nodes.name.max(initial=-1)) + 1, 1)
    key = nodes.graph * width + nodes.name
    order = np.argsort(key, kind="stable")
    key = key[order]
    where = f"{tables.nodes.name}{' with this graph' * bool(graphs)}"
    known = _Names("node", name_of, where, drop=drop)
    known_graphs = _Names("graph", graph_of, graphs.name if graphs else "", drop=drop)
    rows = table.rows
    graph = np.zeros(len(rows.lines), np.int64)
    flaws: list[Flaw] = []
    named: list[str] = []
    if graphs:
        graph, named, flaws = known_graphs.graphs(rows)
    ends = np.full((2, len(graph)), -1, np.int64)
    for end, column in enumerate(KEYS["edges"]):
        name = _numbers(name_of, rows.cells[column])
        wanted = np.where((graph >= 0) & (name >= 0), graph * width + name, -1)
        place = np.searchsorted(key, wanted)
        inside = (wanted >= 0) & (place < len(key))
        inside[inside] = key[place[inside]] == wanted[inside]
        ends[end, inside] = order[place[inside]]
        flaws += known.flaws(column, rows, (graph >= 0) & ~inside)
    is_bad = np.zeros(len(graph), np.bool_)
    is_bad[_note(table, named, flaws, problems)] = True
    notes = known.notes() + known_graphs.notes()
    return Edges(graph=graph, ends=ends, is_bad=is_bad, notes=notes)
