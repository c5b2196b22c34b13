"""A user's own graphs: one folder of tables and a schema, as flat arrays.

Tables that are read: ``graphs``, ``nodes`` and ``edges`` of whole graphs; ``nodes`` and
``edges`` of one graph whose nodes are classified. A row that does not fit the schema
makes its graph, or its node, unusable: it is left out and listed, or refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.core.errors import DataError

from ..cache import CACHE_FORMAT, cache_root, checksum, open_or_build
from ..tabular.cells import same_look
from ..tabular.encode import (
    MAKE_FIT,
    LeftOut,
    Problems,
    count_rows,
    far_columns,
    first_few,
)
from ..tabular.rows import (
    Edges,
    Nodes,
    Units,
    first_rows,
    read_edges,
    read_nodes,
    read_units,
)
from ..tabular.schema_file import GRAPHS_CSV, KEYS, SPLIT, Schema
from ..tabular.table import Table, Tables, unchanged
from .folder_tables import find_tables

_VERSION = 8  # part of every fingerprint: raise it when tables are read otherwise
_SHORT = 12  # digits of a hash


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The graphs of one folder, as cached; further fields are those of ``GraphSet``.

    Parameters
    ----------
    y
        Of one graph it has the class of each node, -1 where it is missing.
    unused : str
        Names no column.
    tasks : list of str
        Names of the columns of ``y``; empty if graphs or nodes have a class.
    row : int64 array, shape (num_graphs,) or (num_nodes,)
        Row of each graph or node in its table, from 0, the header not counted.
    role : int8 array, of the same shape
        0 train, 1 val, 2 test, -1 where the table says nothing.
    bad : list of str
        Rows that were left out: file, line, column, what is wrong, cure.
    not_used, dropped, left_out, remarks : list of str
        Columns and files; kinds of rows of edges that make no edge; shares of the
        tables, e.g. "4.6 % of edges"; cells and names that may mean something else.
    """

    name: str = ""
    x: NDArray[np.generic]
    edge_index: NDArray[np.int32]
    node_ptr: IntArray
    edge_ptr: IntArray
    y: NDArray[Any]
    num_features: int = 0
    num_classes: int = 0
    columns: str = ""
    unused: str = ""
    classes: Sequence[str] = ()
    tasks: Sequence[str] = ()
    row: IntArray
    role: NDArray[np.int8]
    raw_sha256: str = ""
    bad: Sequence[str] = ()
    not_used: Sequence[str] = ()
    has_split: bool
    dropped: list[str]
    left_out: list[str]
    remarks: list[str]

    def graphs(self) -> GraphSet:
        """All of them, arrays as they are."""
        names = [f.name for f in fields(GraphSet) if f.name != "is_undirected"]
        found = {name: getattr(self, name) for name in names}
        return GraphSet(**found, is_undirected=True)


Read = tuple[OwnData, list[str], list[LeftOut]]  # with names of graphs or nodes


def read_graphs(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> Read:
    """Read whole graphs. A graph with a row that does not fit is left out."""
    assert tables.graphs is not None
    units = read_units(
        tables.graphs, "graph", schema, problems, needs_targets=needs_targets
    )
    graph_of, name_of = first_rows(units.names), dict[str, int]()
    nodes = read_nodes(tables, schema, graph_of, name_of, problems)
    edges = read_edges(tables, schema, nodes, graph_of, name_of, problems)
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
    keep = ~bad & ~units.is_open
    num_open = int(units.is_open.sum())
    left_out = [
        LeftOut("graphs", len(keep), int((~keep).sum()) - num_open),
        LeftOut("graphs for want of a label", len(keep), 0, num_open),
        LeftOut("nodes", len(nodes.graph), int(nodes.is_bad.sum()), nodes.num_outside),
        LeftOut("edges", len(edges.fits), int(edges.is_bad.sum()), edges.num_outside),
    ]
    is_mine = nodes.graph >= 0
    is_mine[is_mine] = keep[nodes.graph[is_mine]]
    return _joined(units, keep, nodes, is_mine, keep, edges, left_out)


def read_graph(
    tables: Tables, schema: Schema, problems: Problems, *, needs_targets: bool
) -> Read:
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
        x=units.x,
        is_bad=units.is_bad,
    )
    name_of = first_rows(units.names)
    edges = read_edges(tables, schema, nodes, {"": 0}, name_of, problems)
    if len(edges.fits) and not edges.fits.any():
        got = first_few(problems.found[-1:]) or "other names"
        raise DataError(
            f"{tables.edges.path}: none of its {len(edges.is_bad)} row(s) joins two"
            f" nodes of {tables.nodes.name}, got: {got}; write source"
            " and target as column 'node' has them"
        )
    keep = ~units.is_bad
    is_lost = edges.is_bad | (edges.fits & ~keep[edges.ends].all(axis=0))
    left_out = [
        LeftOut("nodes", count, int(units.is_bad.sum())),
        LeftOut("edges", len(is_lost), int(is_lost.sum()), edges.num_outside),
    ]
    return _joined(units, keep, nodes, keep, np.ones(1, np.bool_), edges, left_out)


def _joined(
    units: Units,
    keep: NDArray[np.bool_],
    nodes: Nodes,
    is_mine: NDArray[np.bool_],
    keep_graph: NDArray[np.bool_],
    edges: Edges,
    left_out: list[LeftOut],
) -> Read:
    """Put the graphs that are kept one after the other, nodes in the table's order.

    ``keep``, ``is_mine`` and ``keep_graph`` say it of units, nodes and graphs.
    """
    rows = np.flatnonzero(is_mine)
    rows = rows[np.argsort(nodes.graph[rows], kind="stable")]
    place = np.full(len(nodes.graph), -1, np.int64)
    place[rows] = np.arange(len(rows))
    num_graphs = int(keep_graph.sum())
    graph = (np.cumsum(keep_graph) - 1)[nodes.graph[rows]]  # of each node, ascending
    node_ptr = pointer(np.bincount(graph, minlength=num_graphs))
    ends = edges.ends[:, edges.fits]
    ends = place[ends[:, (place[ends] >= 0).all(axis=0)]]
    pairs = _both_ways(ends, len(rows))
    per_graph = np.bincount(graph[pairs[0]], minlength=num_graphs)
    lone = int(((per_graph == 0) & (np.diff(node_ptr) > 1)).sum())
    remark = [f"{lone} of {num_graphs} graphs have several nodes and no edge"]
    kept = np.flatnonzero(keep)
    names = [units.names[at] for at in kept.tolist()]
    data = OwnData(
        x=np.ascontiguousarray(nodes.x[rows]),
        edge_index=(pairs - node_ptr[graph[pairs[0]]]).astype(np.int32),
        node_ptr=node_ptr,
        edge_ptr=pointer(per_graph),
        y=units.y[keep],
        row=kept,
        role=units.role[keep],
        has_split=units.has_split,
        dropped=_dropped(ends, pairs.shape[1] // 2),
        left_out=[text for share in left_out if (text := str(share))],
        remarks=units.notes + edges.notes + remark * (0 < lone < num_graphs),
    )
    return data, names, left_out


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


def load_folder(
    folder: Path, schema: Schema, *, bad_rows: str = "skip", cache_dir: str = ""
) -> OwnData:
    """Load one folder through the cache, which knows it by its content.

    ``bad_rows`` "skip" leaves out graphs, nodes and edges of rows that do not fit;
    "refuse" raises. Arrays are memory-mapped.

    Raises
    ------
    DataError
        A table is missing or cannot be read, lacks a column, changes while it is read,
        rows do not fit and are to be refused, or nothing usable is left.
    """
    tables = find_tables(folder, whole_graphs=schema.dataset == GRAPHS_CSV)
    try:
        digest = checksum(tables.files)
    except OSError as error:
        raise DataError(
            f"a table in {folder} cannot be read: {error}; check its permissions"
        ) from error
    parts = (CACHE_FORMAT, _VERSION, digest, schema.sha256, bad_rows)
    mark = hashlib.sha256(repr(parts).encode()).hexdigest()[:_SHORT]

    def read(_: Path) -> OwnData:
        with unchanged(folder, digest, lambda: checksum(tables.files)):
            return build(folder, schema, bad_rows=bad_rows, raw_sha256=digest)[0]

    entry = cache_root(cache_dir) / f"{schema.dataset}-{mark}"
    return open_or_build(entry, OwnData, read)


def build(
    folder: Path,
    schema: Schema,
    *,
    bad_rows: str = "skip",
    needs_targets: bool = True,
    raw_sha256: str = "",
) -> tuple[OwnData, list[str], list[tuple[str, str]]]:
    """Read one folder without the cache, as :func:`load_folder`.

    Parameters
    ----------
    needs_targets : bool
        False reads no target and no split, for data whose answers are not known: ``y``
        is -1, or NaN.

    Returns
    -------
    OwnData
    names : list of str
        Name of each graph or node in the tables.
    unfit : list of (str, str)
        Name of the graph or node that each entry of ``bad`` leaves out, and the entry.
    """
    problems = Problems()
    is_whole = schema.dataset == GRAPHS_CSV
    tables = find_tables(folder, whole_graphs=is_whole)
    not_used = list_unused(tables, schema)
    read = read_graphs if is_whole else read_graph
    raw, names, shares = read(tables, schema, problems, needs_targets=needs_targets)
    # What is predicted is listed item by item; an edge that is lost stands nowhere.
    shares = [s for s in shares if needs_targets or s.what == "edges"]
    _check(folder, schema, raw, shares, problems, bad_rows)
    shape = f"degrees up to {schema.degree}" if schema.degree else ""
    made = replace(
        raw,
        name=schema.dataset,
        x=_with_degrees(raw, schema),
        num_features=schema.width,
        num_classes=schema.num_outputs,
        columns=f"{shape or f'{schema.width} column(s)'} by schema"
        f" {schema.sha256[:_SHORT]}",
        unused=f"{len(not_used)} column(s) or file(s)" if not_used else "",
        classes=list(schema.classes),
        tasks=[] if schema.classes else list(schema.targets),
        raw_sha256=raw_sha256,
        bad=[str(problem) for problem in problems.found],
        not_used=not_used,
        remarks=[
            *problems.remarks,
            *far_columns(schema, tables.nodes, raw.x),
            *same_look("graphs" if is_whole else "nodes", names),
            *raw.remarks,
        ],
    )
    return made, names, [(p.name, str(p)) for p in problems.found]


def _with_degrees(raw: OwnData, schema: Schema) -> NDArray[np.generic]:
    """Return x; without features, one-hot degrees as numbers of columns."""
    if not schema.degree:
        return raw.x
    first = np.repeat(raw.node_ptr[:-1], np.diff(raw.edge_ptr))
    counts = np.bincount(raw.edge_index[0] + first, minlength=int(raw.node_ptr[-1]))
    small = np.minimum(counts, schema.degree)
    return small.astype(np.min_scalar_type(schema.degree))


def list_unused(tables: Tables, schema: Schema) -> list[str]:
    """Name columns that are not used."""
    features = [f.column for f in schema.features]
    answers = [*schema.targets, SPLIT]
    is_whole = tables.graphs is not None
    used: list[tuple[Table | None, list[str]]] = [
        (tables.graphs, ["graph", *answers]),
        (tables.nodes, ["node", *features, *(["graph"] if is_whole else answers)]),
        (tables.edges, [*KEYS["edges"], *["graph"] * is_whole]),
    ]
    return [
        table.of(column)
        for table, known in used
        if table
        for column in table.columns
        if column not in known
    ]


def _check(
    folder: Path,
    schema: Schema,
    raw: OwnData,
    shares: Sequence[LeftOut],
    problems: Problems,
    bad_rows: str,
) -> None:
    """Refuse what cannot be used; with ``bad_rows`` "refuse", any problem.

    Tables of whose rows a large part is left out cannot be used, either.
    """
    count = count_rows(map(str, problems.found))
    if count and bad_rows == "refuse":
        raise DataError(
            f"{count} row(s) do not fit the schema in {folder}:"
            f" {first_few(problems.found)}. To leave such rows out with their graph or"
            " node, set csv-bad-rows to 'skip'"
        )
    if not len(raw.row):
        word = "graph" if schema.dataset == GRAPHS_CSV else "node"
        got = f", got: {first_few(problems.found)}" if count else ""
        raise DataError(
            f"{folder} has no usable {word}{got}; write the tables as docs/own-data.md"
            " shows"
        )
    for share in filter(LeftOut.is_much, shares):
        own = [p for p in problems.found if p.where.startswith(share.what)]
        raise DataError(
            f"{folder}: {share.lost} of {share.rows} {share.what} would be left out,"
            " more than a third, as rows do not fit:"
            f" {first_few(own or problems.found)}; {MAKE_FIT}"
        )
