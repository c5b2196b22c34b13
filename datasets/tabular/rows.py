"""Rows of own tables: graphs, nodes, edges; what does not fit is listed by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray

from .cells import MIN_COUNT, alike, by_look, is_missing, not_known, twin
from .encode import (
    NO_ROLE,
    Flaw,
    Problem,
    encode_classes,
    encode_features,
    encode_roles,
    encode_targets,
    encode_weights,
    need_columns,
    read_numbers,
    read_times,
)
from .schema_file import KEEP, KEYS, Schema
from .table import SPLIT, Rows, Table

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Units:
    """What has a target and a split: rows of graphs, or of the nodes of one graph."""

    names: list[str]
    y: NDArray[Any]
    role: NDArray[np.int8]
    has_split: bool
    flaws: list[Flaw]
    time: NDArray[np.float64] | None = None
    x: NDArray[np.float32] | None = None


def read_units(table: Table, key: str, schema: Schema, *, needs_targets: bool) -> Units:
    """Read names, targets and splits of graphs, or of nodes."""
    need_columns(table, [key, *(schema.targets if needs_targets else ())])
    rows, is_node = table.rows, key == "node"
    has_split = needs_targets and SPLIT in table.columns
    names = list(rows.cells[key])
    role = np.full(len(names), NO_ROLE, np.int8)
    time, x, flaws = None, None, list[Flaw]()
    y = encode_targets(schema, rows, flaws, are_known=needs_targets)
    if schema.time and needs_targets:
        need_columns(table, [schema.time])
        time = read_times(schema.time, rows, flaws)
    if schema.graph_features:
        need_columns(table, [f.column for f in schema.graph_features])
        x = encode_features(schema.graph_features, rows, flaws, is_compact=False)
    if has_split:
        role = encode_roles(rows, flaws, may_miss=is_node)
    if has_split and is_node and schema.targets:
        labels = rows.cells[schema.targets[0]]
        flaws += [
            (row, SPLIT, "a node without label must have no split; empty one of them")
            for row in np.flatnonzero((y < 0) & (role != NO_ROLE)).tolist()
            if is_missing(labels[row])
        ]
    flaws += nameless(key, rows)
    count = Counter(names)
    flaws += [
        (row, key, f"{key} {name!r} is there twice; rename or delete one of them")
        for row, name in enumerate(names)
        if name and count[name] > 1
    ]
    return Units(
        names=names,
        y=y,
        role=role,
        has_split=has_split,
        flaws=flaws,
        time=time,
        x=x,
    )


def read_features(
    table: Table, schema: Schema, flaws: list[Flaw]
) -> NDArray[np.generic]:
    """Read the features of nodes."""
    need_columns(table, ["node", *(f.column for f in schema.features)])
    is_compact = not schema.makes_nodes
    x = encode_features(schema.features, table.rows, flaws, is_compact=is_compact)
    if schema.makes_nodes:  # a column that says so
        x = np.concatenate([x, np.zeros((len(x), 1), np.float32)], axis=1)
    return x


def read_edge_rows(
    table: Table, schema: Schema, flaws: list[Flaw], *, needs_targets: bool
) -> dict[str, NDArray[Any]]:
    """Read features, weights, times and classes of edges, named as in a ``GraphSet``.

    Arrays have a row for each row of the table.
    """
    edges, rows = schema.edges, table.rows
    found: dict[str, NDArray[Any]] = {}
    if edges is None:
        return found
    label = edges.label if needs_targets else ""
    need_columns(table, [c for c in (edges.weight, edges.time, label) if c])
    need_columns(table, [f.column for f in schema.edge_features])
    if schema.edge_features:
        found["edge_attr"] = encode_features(
            schema.edge_features, rows, flaws, is_compact=edges.repeats == KEEP
        )
    if edges.weight:
        found["edge_weight"] = encode_weights(edges.weight, rows, flaws)
    if edges.time:
        found["edge_time"] = read_times(edges.time, rows, flaws)
    if edges.label:
        found["edge_y"] = encode_classes(edges.classes, label, rows, flaws)
    return found


def remark(table: Table, listed: Mapping[str, Sequence[str]]) -> list[str]:
    """Name cells that may stand for "not known"; ``listed`` has a column's names."""
    found = []
    for column, names in listed.items():
        cells = table.rows.cells[column]
        found += not_known(
            table.of(column),
            cells,
            MIN_COUNT,
            numbers=None if names else read_numbers(cells),
            listed=names,
        )
    return found


def nameless(key: str, rows: Rows) -> list[Flaw]:
    """Find rows whose graph or node has no name, but a mark of what is not known."""
    return [
        (row, key, f"{f'is {name!r}, no name' if name else 'is empty'}; give it a name")
        for row, name in enumerate(rows.cells[key])
        if not name.isdigit() and is_missing(name)
    ]


def note(
    table: Table,
    flaws: Iterable[Flaw],
    problems: list[Problem],
    names: Sequence[str] = (),
) -> BoolArray:
    """List flaws as problems, in the order of rows; return which rows have one.

    ``names`` are those of what is left out, of each row; empty for edges alone.
    """
    is_bad = np.zeros(len(table.rows.lines), np.bool_)
    for row, column, text in sorted(flaws):
        place = table.at(table.rows.lines[row], column)
        problems.append(Problem(place, text, names[row] if names else ""))
        is_bad[row] = True
    return is_bad


class Names:
    """Names of graphs or nodes, for rows of other tables that name them.

    With ``drop`` a name that is not there is no flaw, unless it looks like one that is.
    """

    def __init__(
        self, what: str, number_of: Mapping[str, int], place: str, *, drop: bool
    ) -> None:
        self._what, self._number_of, self._place = what, number_of, place
        self._drop = drop

    @cached_property
    def _looks(self) -> Mapping[Any, str]:
        return by_look(self._number_of)

    def numbers(self, names: Sequence[str]) -> IntArray:
        """Return the number of each name; -1 if it has none."""
        found = map(self._number_of.get, names, repeat(-1))
        return np.fromiter(found, np.int64, len(names))

    def graphs(self, rows: Rows) -> tuple[IntArray, list[str], list[Flaw]]:
        """Return the number and the name of each row's graph; -1 if it is elsewhere.

        A row that spells a graph otherwise is a flaw of that graph, which lacks it.
        """
        names = list(rows.cells["graph"])
        number = self.numbers(names)
        flaws = self.flaws("graph", rows, number < 0)
        for row, _, _ in flaws:
            names[row] = self._looks.get(alike(names[row]), names[row])
            number[row] = self._number_of.get(names[row], -1)
        return number, names, flaws

    def flaws(self, column: str, rows: Rows, is_stranger: BoolArray) -> list[Flaw]:
        """Word what is wrong with rows whose ``column`` names a stranger."""
        cells, found = rows.cells[column], []
        for row in np.flatnonzero(is_stranger).tolist():
            like = twin(cells[row], self._looks)
            if like or not self._drop or is_missing(cells[row]):
                text = f"{self._what} {cells[row]!r} is not in {self._place}{like}"
                found.append((row, column, f"{text}; add it there, or delete this row"))
        return found


def find_ends(
    rows: Rows, graph: IntArray, known: Names, node_graph: IntArray, node_name: IntArray
) -> tuple[IntArray, list[Flaw]]:
    """Find the nodes that edges join.

    Parameters
    ----------
    rows : Rows
        Of edges.
    graph : int array
        Graph of each edge; -1 if it is elsewhere.
    known : Names
        Of nodes.
    node_graph, node_name : int arrays
        Graph and number of the name of each row of nodes.

    Returns
    -------
    ends : int array, shape (2, num_rows)
        Rows of nodes; -1 if there is none.
    flaws : list
    """
    width = int(node_name.max(initial=0)) + 1
    rows_of = np.flatnonzero(node_graph >= 0)
    of_graphs = node_graph[rows_of] * width + node_name[rows_of]
    key, first = np.unique(of_graphs, return_index=True)
    key = np.append(key, np.iinfo(np.int64).max)  # so that each search ends within
    ends, flaws = np.full((2, len(graph)), -1, np.int64), list[Flaw]()
    for end, column in enumerate(KEYS["edges"]):
        name = known.numbers(rows.cells[column])
        is_known = (graph >= 0) & (name >= 0)
        wanted = np.where(is_known, graph * width + name, -1)
        place = np.searchsorted(key, wanted)
        is_found = key[place] == wanted
        ends[end, is_found] = rows_of[first[place[is_found]]]
        flaws += known.flaws(column, rows, (graph >= 0) & ~is_found)
    return ends, flaws
