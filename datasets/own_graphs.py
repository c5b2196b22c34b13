"""Tables of graphs joined into flat arrays; rows that do not fit are listed by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray, pointer

from .encode import (
    NO_ROLE,
    Flaw,
    Problems,
    encode_classes,
    encode_features,
    encode_roles,
    encode_targets,
    need_columns,
)
from .schema import SPLIT, Schema
from .table import Block, Table, Tables


@dataclass(frozen=True, kw_only=True)
class RawGraphs:
    """Graphs as they stand in the tables; the fields are as in ``OwnData``.

    ``names``: of each graph, or of each node of the one graph.
    """

    x: NDArray[np.generic]
    edge_index: NDArray[np.int32]
    node_ptr: IntArray
    edge_ptr: IntArray
    y: NDArray[Any]
    row: IntArray
    role: NDArray[np.int8]
    names: list[str]
    has_split: bool
    dropped: list[str]


@dataclass(frozen=True, kw_only=True)
class _Units:
    """Rows of graphs, or of the nodes of one graph: what has a target and a split."""

    names: list[str]
    lines: IntArray
    x: NDArray[np.generic]
    y: NDArray[Any]
    role: NDArray[np.int8]
    has_split: bool
    is_bad: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _Nodes:
    """Rows of nodes: graph (-1 if it is unknown), number of the node's name, line."""

    graph: IntArray
    name: IntArray
    lines: IntArray
    x: NDArray[np.generic]
    is_bad: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _Edges:
    """Rows of edges: graph, and both ends as rows of nodes; -1 if unknown."""

    graph: IntArray
    ends: IntArray
    is_bad: NDArray[np.bool_]


def read_graphs(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> RawGraphs:
    """Read whole graphs. A graph with a row that does not fit is left out.

    Edges count in both directions and once; an edge from a node to itself is dropped.
    """
    assert tables.graphs is not None
    units = _read_units(
        tables.graphs, "graph", schema, problems, needs_targets=needs_targets
    )
    graph_of, name_of = _first_rows(units.names), dict[str, int]()
    nodes = _read_nodes(tables, schema, graph_of, name_of, problems)
    edges = _read_edges(tables.edges, nodes, graph_of, name_of, problems, tables)
    bad = units.is_bad.copy()
    for rows in (nodes, edges):
        bad[rows.graph[rows.is_bad & (rows.graph >= 0)]] = True
    counts = np.bincount(nodes.graph[nodes.graph >= 0], minlength=len(bad))
    for at in np.flatnonzero((counts == 0) & ~bad).tolist():
        problems.add(
            tables.graphs.at(int(units.lines[at]), "graph"),
            f"graph {units.names[at]!r} has no row in {tables.nodes.name}; add its"
            " nodes, or delete this row",
            units.names[at],
        )
        bad[at] = True
    return _joined(units, nodes, edges, ~bad)


def read_graph(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> RawGraphs:
    """Read one graph whose nodes are classified.

    A node whose row does not fit is left out with its edges; so is an edge whose row
    does not fit.
    """
    units = _read_units(
        tables.nodes, "node", schema, problems, needs_targets=needs_targets
    )
    count = len(units.names)
    nodes = _Nodes(
        graph=np.zeros(count, np.int64),
        name=np.arange(count),
        lines=units.lines,
        x=units.x,
        is_bad=units.is_bad,
    )
    name_of = _first_rows(units.names)
    edges = _read_edges(tables.edges, nodes, {"": 0}, name_of, problems, tables)
    usable = ~units.is_bad
    ends = edges.ends[:, ~edges.is_bad]
    ends = ends[:, usable[ends].all(axis=0)]
    number = np.cumsum(usable) - 1
    pairs = _both_ways(number[ends], int(usable.sum()))
    return RawGraphs(
        x=np.ascontiguousarray(units.x[usable]),
        edge_index=pairs.astype(np.int32),
        node_ptr=pointer([int(usable.sum())]),
        edge_ptr=pointer([pairs.shape[1]]),
        y=units.y[usable],
        row=np.flatnonzero(usable),
        role=units.role[usable],
        names=[units.names[at] for at in np.flatnonzero(usable).tolist()],
        has_split=units.has_split,
        dropped=_dropped(number[ends], pairs.shape[1] // 2),
    )


def _first_rows(names: Sequence[str]) -> dict[str, int]:
    """Return the first row of each name."""
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        found.setdefault(name, at)
    return found


def _read_units(
    table: Table,
    key: str,
    schema: Schema,
    problems: Problems,
    *,
    needs_targets: bool,
) -> _Units:
    """Read graphs, or nodes with their features, each with target and split."""
    is_node = key == "node"
    need_columns(table, [key, *(f.column for f in schema.features if is_node)])
    need_columns(table, schema.targets if needs_targets else ())
    has_split = needs_targets and SPLIT in table.columns
    first: dict[str, int] = {}
    names: list[str] = []
    bad: list[int] = []
    parts: list[tuple[Any, ...]] = []
    for block in table.blocks():
        count = len(block.lines)
        x: NDArray[Any] = np.zeros((count, 0), np.float32)
        y = _no_answers(schema, count)
        flaws: list[Flaw] = []
        if is_node:
            x, flaws = encode_features(schema, block)
        if needs_targets:
            y, found = _targets(schema, block, is_node=is_node)
            flaws += found
        role = np.full(count, NO_ROLE, np.int8)
        if has_split:
            role, found = encode_roles(SPLIT, block, may_miss=is_node)
            flaws += [*found, *_without_label(schema, block, role, is_node=is_node)]
        at = len(names)
        for row, name in enumerate(block.cells[key]):
            before = first.setdefault(name, at + row)
            if not name:
                flaws.append((row, key, "is empty; give it a name of its own"))
            elif before != at + row:
                bad.append(before)
                text = f"{key} {name!r} is there twice; rename or delete one of them"
                flaws.append((row, key, text))
        names += block.cells[key]
        bad += [at + row for row in _note(table, block, flaws, problems)]
        parts.append((np.array(block.lines, np.int64), x, y, role))
    if not parts:
        none = _no_answers(schema, 0)
        width = sum(f.width for f in schema.features)
        x = np.zeros((0, width), np.float32)
        parts = [(np.zeros(0, np.int64), x, none, np.zeros(0, np.int8))]
    lines, x, y, role = (np.concatenate(part) for part in zip(*parts, strict=True))
    is_bad = np.zeros(len(names), np.bool_)
    is_bad[bad] = True
    return _Units(
        names=names,
        lines=lines,
        x=x,
        y=y,
        role=role,
        has_split=has_split,
        is_bad=is_bad,
    )


def _no_answers(schema: Schema, count: int) -> NDArray[Any]:
    if schema.classes:
        return np.full(count, -1, np.int64)
    return np.full((count, len(schema.targets)), np.nan, np.float32)


def _targets(
    schema: Schema, block: Block, *, is_node: bool
) -> tuple[NDArray[Any], list[Flaw]]:
    if schema.classes:
        return encode_classes(schema, schema.targets[0], block, may_miss=is_node)
    return encode_targets(schema, block)


def _without_label(
    schema: Schema, block: Block, role: NDArray[np.int8], *, is_node: bool
) -> list[Flaw]:
    """Find nodes that are to train, validate or test, and have no class."""
    labels = block.cells[schema.targets[0]] if is_node else ()
    return [
        (row, SPLIT, "a node without label must have no split; empty one of them")
        for row, (label, split) in enumerate(zip(labels, role, strict=False))
        if not label and split != NO_ROLE
    ]


def _note(
    table: Table, block: Block, flaws: Sequence[Flaw], problems: Problems
) -> list[int]:
    """List flaws as problems, in the order of rows; return the rows."""
    names = block.cells.get("graph") or block.cells.get("node")
    for row, column, text in sorted(flaws):
        name = names[row] if names else ""
        problems.add(table.at(block.lines[row], column), text, name)
    return [row for row, _, _ in flaws]


def _read_nodes(
    tables: Tables,
    schema: Schema,
    graph_of: Mapping[str, int],
    name_of: dict[str, int],
    problems: Problems,
) -> _Nodes:
    """Read the nodes of whole graphs; ``name_of`` is filled with numbers of names."""
    table, graphs = tables.nodes, tables.graphs
    assert graphs is not None
    need_columns(table, ["graph", "node", *(f.column for f in schema.features)])
    x = np.zeros((0, sum(f.width for f in schema.features)), np.float32)
    parts: list[tuple[Any, ...]] = []
    for block in table.blocks():
        x, flaws = encode_features(schema, block)
        graph = _numbers(graph_of, block.cells["graph"])
        name = np.array(
            [name_of.setdefault(n, len(name_of)) for n in block.cells["node"]], np.int64
        )
        flaws += _strangers(graph, block, graphs)
        flaws += [
            (row, "node", "is empty; give it a name of its own")
            for row, cell in enumerate(block.cells["node"])
            if not cell
        ]
        is_bad = np.zeros(len(block.lines), np.bool_)
        is_bad[_note(table, block, flaws, problems)] = True
        parts.append((graph, name, np.array(block.lines, np.int64), x, is_bad))
    if not parts:
        none = np.zeros(0, np.int64)
        parts = [(none, none, none, x, np.zeros(0, np.bool_))]
    graph, name, lines, x, is_bad = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    order = np.lexsort((name, graph))
    same = (np.diff(graph[order]) == 0) & (np.diff(name[order]) == 0)
    name_at = {at: name for name, at in graph_of.items()}
    for at in np.sort(order[1:][same & (graph[order[1:]] >= 0)]).tolist():
        problems.add(
            table.at(int(lines[at]), "node"),
            "the graph has another node of this name; rename or delete one of them",
            name_at[int(graph[at])],
        )
        is_bad[at] = True
    return _Nodes(graph=graph, name=name, lines=lines, x=x, is_bad=is_bad)


def _numbers(number_of: Mapping[str, int], names: Sequence[str]) -> IntArray:
    """Return the number of each name; -1 if it has none."""
    return np.fromiter(map(number_of.get, names, repeat(-1)), np.int64, len(names))


def _strangers(graph: IntArray, block: Block, graphs: Table) -> list[Flaw]:
    """Find rows whose graph is not in the table of graphs."""
    cells = block.cells["graph"]
    return [
        (
            row,
            "graph",
            f"graph {cells[row]!r} is not in {graphs.name}; add it there, or delete"
            " this row",
        )
        for row in np.flatnonzero(graph < 0).tolist()
    ]


def _read_edges(
    table: Table,
    nodes: _Nodes,
    graph_of: Mapping[str, int],
    name_of: Mapping[str, int],
    problems: Problems,
    tables: Tables,
) -> _Edges:
    """Read edges and find the nodes that they join."""
    need_columns(table, ["graph"] * (tables.graphs is not None) + ["source", "target"])
    width = max(len(name_of), int(nodes.name.max(initial=-1)) + 1, 1)
    key = nodes.graph * width + nodes.name
    order = np.argsort(key, kind="stable")
    key = key[order]
    parts: list[tuple[IntArray, IntArray, NDArray[np.bool_]]] = []
    for block in table.blocks():
        count = len(block.lines)
        graph = np.zeros(count, np.int64)
        flaws: list[Flaw] = []
        if tables.graphs is not None:
            cells = block.cells["graph"]
            graph = _numbers(graph_of, cells)
            flaws = _strangers(graph, block, tables.graphs)
        ends = np.full((2, count), -1, np.int64)
        for end, column in enumerate(("source", "target")):
            name = _numbers(name_of, block.cells[column])
            wanted = np.where((graph >= 0) & (name >= 0), graph * width + name, -1)
            place = np.searchsorted(key, wanted)
            inside = (wanted >= 0) & (place < len(key))
            inside[inside] = key[place[inside]] == wanted[inside]
            ends[end, inside] = order[place[inside]]
            where = "" if tables.graphs is None else " with this graph"
            flaws += [
                (
                    row,
                    column,
                    f"node {block.cells[column][row]!r} is not in"
                    f" {tables.nodes.name}{where}; add it there, or delete this row",
                )
                for row in np.flatnonzero((graph >= 0) & ~inside).tolist()
            ]
        is_bad = np.zeros(count, np.bool_)
        is_bad[_note(table, block, flaws, problems)] = True
        parts.append((graph, ends, is_bad))
    none = np.zeros(0, np.int64)
    graphs, pairs, bads = zip(
        *(parts or [(none, none.reshape(2, 0), none.astype(np.bool_))]), strict=True
    )
    return _Edges(
        graph=np.concatenate(graphs),
        ends=np.concatenate(pairs, axis=1),
        is_bad=np.concatenate(bads),
    )


def _joined(
    units: _Units, nodes: _Nodes, edges: _Edges, keep: NDArray[np.bool_]
) -> RawGraphs:
    """Put the graphs that are kept one after the other, nodes in the table's order."""
    number = np.cumsum(keep) - 1
    mine = nodes.graph >= 0
    mine[mine] = keep[nodes.graph[mine]]
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(nodes.graph[rows], kind="stable")]
    place = np.full(len(nodes.graph), -1, np.int64)
    place[rows] = np.arange(len(rows))
    graph = number[nodes.graph[rows]]  # of each node, ascending
    node_ptr = pointer(np.bincount(graph, minlength=int(keep.sum())))
    ends = edges.ends[:, ~edges.is_bad]
    ends = place[ends[:, (place[ends] >= 0).all(axis=0)]]
    pairs = _both_ways(ends, len(rows))
    per_graph = np.bincount(graph[pairs[0]], minlength=int(keep.sum()))
    within = pairs - node_ptr[graph[pairs[0]]]
    kept = np.flatnonzero(keep)
    return RawGraphs(
        x=np.ascontiguousarray(nodes.x[rows]),
        edge_index=within.astype(np.int32),
        node_ptr=node_ptr,
        edge_ptr=pointer(per_graph),
        y=units.y[keep],
        row=kept,
        role=units.role[keep],
        names=[units.names[at] for at in kept.tolist()],
        has_split=units.has_split,
        dropped=_dropped(ends, pairs.shape[1] // 2),
    )


def _both_ways(ends: IntArray, num_nodes: int) -> IntArray:
    """Each edge once in each direction, by source, then target; no loops."""
    source, target = ends[:, ends[0] != ends[1]]
    size = max(num_nodes, 1)
    key = np.concatenate([source * size + target, target * size + source])
    key.sort()  # np.unique hashes, which takes far longer
    key = key[np.diff(key, prepend=-1) != 0]
    return np.stack([key // size, key % size])


def _dropped(ends: IntArray, num_edges: int) -> list[str]:
    """Say how many rows make no edge, which are ``num_edges``.

    A table may have every edge in both directions; then such a row repeats none.
    """
    rows = ends[:, ends[0] != ends[1]]
    repeats = rows.shape[1] - num_edges
    if repeats >= num_edges > 0:
        key = np.sort(rows[0] * (ends.max() + 1) + rows[1])
        directed = int((np.diff(key, prepend=-1) != 0).sum())
        repeats = rows.shape[1] - directed if directed == 2 * num_edges else repeats
    counts = {
        "repeat an edge": repeats,
        "join a node to itself": ends.shape[1] - rows.shape[1],
    }
    return [f"{count} row(s) that {what}" for what, count in counts.items() if count]
