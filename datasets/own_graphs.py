"""Tables of graphs joined into flat arrays, without rows that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray, distinct_edges, pointer
from fedgraph_flwr.errors import DataError

from .encode import Problems, first_few, share_of
from .own_rows import (
    Edges,
    Nodes,
    Units,
    first_rows,
    read_edges,
    read_nodes,
    read_units,
)
from .schema import Schema
from .table import Tables


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
    left_out: list[LeftOut]
    notes: list[str]


class LeftOut(NamedTuple):
    """How many rows a table has, how many do not fit, how many are meant to be outside.

    Edges of a node that does not fit are lost with it.
    """

    what: str
    rows: int
    lost: int
    outside: int = 0

    def __str__(self) -> str:
        return share_of(self.lost + self.outside, self.rows, self.what)


def read_graphs(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> RawGraphs:
    """Read whole graphs. A graph with a row that does not fit is left out."""
    assert tables.graphs is not None
    units = read_units(
        tables.graphs, "graph", schema, problems, needs_targets=needs_targets
    )
    graph_of, name_of = first_rows(units.names), dict[str, int]()
    nodes = read_nodes(tables, schema, graph_of, name_of, problems)
    edges = read_edges(
        tables.edges, nodes, graph_of, name_of, problems, tables,
        drop=schema.drops_outside,
    )  # fmt: skip
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
    return _joined(units, nodes, edges, ~bad & ~units.is_open)


def read_graph(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> RawGraphs:
    """Read one graph whose nodes are classified.

    A node whose row does not fit is left out with its edges.
    """
    units = read_units(
        tables.nodes, "node", schema, problems, needs_targets=needs_targets
    )
    count = len(units.names)
    nodes = Nodes(
        graph=np.zeros(count, np.int64),
        name=np.arange(count),
        lines=units.lines,
        x=units.x,
        is_bad=units.is_bad,
    )
    name_of = first_rows(units.names)
    edges = read_edges(
        tables.edges, nodes, {"": 0}, name_of, problems, tables,
        drop=schema.drops_outside,
    )  # fmt: skip
    if len(edges.fits) and not edges.fits.any():
        got = first_few(problems.found[-1:]) or "other names"
        raise DataError(
            f"{tables.edges.files[0]}: none of its {len(edges.is_bad)} row(s) joins two"
            f" nodes of {tables.nodes.name}, got: {got}; write source"
            " and target as column 'node' has them"
        )
    usable = ~units.is_bad
    ends = edges.ends[:, edges.fits]
    has_ends = usable[ends].all(axis=0)
    lost = edges.is_bad.copy()
    lost[np.flatnonzero(edges.fits)[~has_ends]] = True
    ends = ends[:, has_ends]
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
        left_out=[
            LeftOut("nodes", count, int(units.is_bad.sum())),
            LeftOut("edges", len(lost), int(lost.sum()), edges.num_outside),
        ],
        notes=units.notes + edges.notes,
    )


def _joined(
    units: Units, nodes: Nodes, edges: Edges, keep: NDArray[np.bool_]
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
    ends = edges.ends[:, edges.fits]
    ends = place[ends[:, (place[ends] >= 0).all(axis=0)]]
    pairs = _both_ways(ends, len(rows))
    per_graph = np.bincount(graph[pairs[0]], minlength=int(keep.sum()))
    within = pairs - node_ptr[graph[pairs[0]]]
    kept = np.flatnonzero(keep)
    num_open = int(units.is_open.sum())
    lone = int(((per_graph == 0) & (np.diff(node_ptr) > 1)).sum())
    told = f"{lone} of {len(kept)} graphs have several nodes and no edge"
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
        left_out=[
            LeftOut("graphs", len(keep), len(keep) - len(kept) - num_open),
            LeftOut("graphs for want of a label", len(keep), 0, num_open),
            LeftOut("nodes", len(mine), int(nodes.is_bad.sum()), nodes.num_outside),
            LeftOut(
                "edges", len(edges.fits), int(edges.is_bad.sum()), edges.num_outside
            ),
        ],
        notes=[*units.notes, *edges.notes, *([told] if 0 < lone < len(kept) else [])],
    )


def _both_ways(ends: IntArray, num_nodes: int) -> IntArray:
    """Each edge once in each direction, by source, then target; no loops."""
    source, target = np.concatenate([ends, ends[::-1]], axis=1)
    return distinct_edges(source, target, num_nodes)


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
