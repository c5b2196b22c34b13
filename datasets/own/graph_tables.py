"""A user's own graphs: one folder of tables and a schema, as flat arrays.

Tables that are read: ``graphs``, ``nodes`` and ``edges`` of whole graphs; ``nodes`` and
``edges`` of one graph whose nodes are classified. A row that does not fit the schema
makes its graph, or its node, unusable: it is left out and listed, or refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.core.errors import DataError

from ..cache import CACHE_FORMAT, cache_root, checksum, open_or_build
from ..tabular.cells import by_look, is_missing, same_look, twin
from ..tabular.encode import (
    MAKE_FIT,
    NO_ROLE,
    Flaw,
    LeftOut,
    Problem,
    count_rows,
    far_columns,
    first_few,
    need_columns,
)
from ..tabular.rows import (
    BoolArray,
    Names,
    Units,
    find_ends,
    nameless,
    note,
    read_edge_rows,
    read_features,
    read_units,
    remark,
)
from ..tabular.schema_file import GRAPHS_CSV, KEYS, MERGE, Schema
from ..tabular.table import SPLIT, Table, Tables, find_tables, unchanged

_VERSION = 12  # part of every fingerprint: raise it when tables are read otherwise
_SHORT = 12  # digits of a hash
_IN_BOTH = 0.9  # of undirected rows, so that each pair of rows is one edge
_HEAVY = 10  # mean weight of edges from which training may overflow


@dataclass(frozen=True, kw_only=True)
class OwnData(GraphSet):
    """The graphs of one folder, as cached; ``y`` of a node without label is -1.

    Parameters
    ----------
    tasks : list of str
        Names of the columns of ``y``; empty if graphs or nodes have a class.
    row : int64 array, shape (num_graphs,) or (num_nodes,)
        Row of each graph or node in its table, from 0, the header not counted.
    role : int8 array, of the same shape
        0 train, 1 val, 2 test, -1 where the table says nothing.
    has_split : bool
        Whether the table has a column of splits.
    bad : list of str
        Rows that were left out: file, line, column, what is wrong, cure.
    num_dropped : int
        Rows that repeat an edge, or join a node to itself.
    edge_row : int64 array, shape (num_edges,), optional
        Row of each edge in its table, if edges have classes.
    not_used, left_out, remarks : list of str
        Columns; shares of the tables, e.g. "4.6 % of edges"; cells and names that may
        mean something else.
    """

    tasks: list[str]
    row: IntArray
    role: NDArray[np.int8]
    has_split: bool
    num_dropped: int = 0
    edge_row: IntArray | None = None
    bad: list[str] = field(default_factory=list)
    not_used: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


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

    A graph with a row that does not fit is left out. If there is one graph, whose nodes
    are classified, a node whose row does not fit is left out with its edges.

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
    is_whole = schema.dataset == GRAPHS_CSV
    tables = find_tables(folder, whole_graphs=is_whole)
    not_used = list_unused(tables, schema)
    read = _read(tables, schema, needs_targets=needs_targets)
    units, problems = read.units, read.problems
    keep = ~read.is_bad & ~read.is_open
    kept = np.flatnonzero(keep)
    # What is predicted is listed item by item; an edge that is lost stands nowhere.
    shares = _shares(read, is_whole=is_whole)
    shares = [s for s in shares if needs_targets or s.what == "edges"]
    _check(folder, schema, len(kept), shares, problems, bad_rows)
    rows, graph, ends = _cut_out(read.node_graph, read.ends, keep, is_whole=is_whole)
    kept_edges = np.flatnonzero((ends >= 0).all(axis=0))
    ends = ends[:, kept_edges]
    node_ptr = pointer(np.bincount(graph, minlength=len(kept) if is_whole else 1))
    beside = {name: array[kept_edges] for name, array in read.beside.items()}
    if "edge_y" in beside:
        beside["edge_row"] = kept_edges
    pairs, of_edges = arranged(ends, beside, schema, len(rows))
    x = np.ascontiguousarray(read.x[rows])
    remarks = [*read.remarks, *_of_size(tables, schema, x, beside)]
    if schema.degree:  # one-hot, as numbers of columns
        degrees = np.minimum(np.bincount(pairs[0], minlength=len(rows)), schema.degree)
        if schema.makes_nodes:
            degrees = np.where(x[:, -1] == 1, schema.degree + 1, degrees)
        x = degrees.astype(np.min_scalar_type(schema.degree + 1))
    shape = f"degrees up to {schema.degree}" if schema.degree else ""
    names = [units.names[at] for at in kept.tolist()]
    made = OwnData(
        name=schema.dataset,
        x=x,
        edge_index=(pairs - node_ptr[graph[pairs[0]]]).astype(np.int32),
        node_ptr=node_ptr,
        edge_ptr=pointer(np.bincount(graph[pairs[0]], minlength=len(node_ptr) - 1)),
        y=units.y[keep],
        num_features=schema.width,
        num_classes=schema.num_outputs,
        is_undirected=not (schema.edges and schema.edges.directed),
        is_simple=schema.edges is None or schema.edges.is_simple,
        num_edge_features=schema.edge_width,
        edge_classes=list(schema.edges.classes) if schema.edges else [],
        time=None if units.time is None else units.time[keep],
        graph_x=None if units.x is None else units.x[keep],
        **of_edges,
        raw_sha256=raw_sha256,
        columns=f"{shape or f'{schema.width} column(s)'} by schema"
        f" {schema.sha256[:_SHORT]}",
        unused=f"{len(not_used)} column(s) or file(s)" if not_used else "",
        classes=list(schema.classes),
        tasks=[] if schema.classes else list(schema.targets),
        row=kept,
        role=units.role[keep],
        has_split=units.has_split,
        bad=[str(problem) for problem in problems],
        not_used=not_used,
        num_dropped=_count_dropped(ends, len(rows), schema),
        left_out=[text for share in shares if (text := str(share))],
        remarks=[*remarks, *same_look("graphs" if is_whole else "nodes", names)],
    )
    return made, names, [(p.name, str(p)) for p in problems]


@dataclass
class _Read:
    """What the tables say before anything is left out; items are graphs, or nodes.

    Parameters
    ----------
    units : Units
        Of items.
    x : array, shape (num_nodes, num_columns)
        Features of nodes.
    node_graph : int array, shape (num_nodes,)
        Graph of each node; -1 is none.
    ends : int array, shape (2, num_rows)
        Nodes that each row of edges joins; -1 is none.
    beside : dict of str to array
        Of the same rows, as :func:`read_edge_rows` gives them.
    is_bad, is_open : bool array, shape (num_items,)
        A row of the item does not fit; the graph fits, but has no class.
    bad_nodes, bad_edges : bool array
        Rows that do not fit, and edges of nodes that do not.
    """

    units: Units
    x: NDArray[Any]
    node_graph: IntArray
    ends: IntArray
    beside: dict[str, NDArray[Any]]
    is_bad: BoolArray
    is_open: BoolArray
    bad_nodes: BoolArray
    bad_edges: BoolArray
    problems: list[Problem]
    remarks: list[str]


def _read(tables: Tables, schema: Schema, *, needs_targets: bool) -> _Read:
    """Read all rows; find those that do not fit."""
    problems, flaws, more = list[Problem](), list[Flaw](), list[Flaw]()
    is_whole, table = schema.dataset == GRAPHS_CSV, tables.graphs or tables.nodes
    key = "graph" if is_whole else "node"
    units = read_units(table, key, schema, needs_targets=needs_targets)
    number_of = {name: row for row, name in enumerate(units.names)}
    x = read_features(tables.nodes, schema, flaws)
    told = {f.column: f.categories for f in schema.features}
    remarks = [*tables.told, *remark(tables.nodes, told)]
    if needs_targets:
        remarks += remark(table, dict.fromkeys(schema.targets, schema.classes))
    if is_whole:
        is_bad = note(table, units.flaws, problems, units.names)
        nodes = _whole_nodes(tables, schema, number_of, flaws, problems)
        node_graph, node_name, bad_nodes, name_of = nodes
    else:
        is_bad = note(table, units.flaws + flaws, problems, units.names)
        if schema.makes_nodes:
            units, x, is_bad = _with_outsiders(tables, units, x, is_bad, number_of)
        bad_nodes, node_graph = is_bad, np.zeros(len(is_bad), np.int64)
        node_name, name_of = np.arange(len(is_bad)), number_of
    beside = read_edge_rows(tables.edges, schema, more, needs_targets=needs_targets)
    edge_graph, ends, bad_edges = _edges(
        tables, schema, number_of, name_of, node_graph, node_name, problems, more
    )
    is_open = np.zeros_like(is_bad)
    if is_whole:
        is_bad[node_graph[bad_nodes & (node_graph >= 0)]] = True
        is_bad[edge_graph[bad_edges & (edge_graph >= 0)]] = True
        _without_nodes(tables, units.names, node_graph, is_bad, problems)
        if schema.classes and needs_targets:
            is_open = (units.y < 0) & ~is_bad
    else:
        fits: BoolArray = np.asarray((ends >= 0).all(axis=0))
        _check_joined(tables, fits, len({row for row, *_ in more}), problems)
        bad_edges = bad_edges | (fits & is_bad[ends].any(axis=0))
    return _Read(
        units,
        x,
        node_graph,
        ends,
        beside,
        is_bad,
        is_open,
        bad_nodes,
        bad_edges,
        problems,
        remarks,
    )


def _check_joined(
    tables: Tables, fits: BoolArray, num_bad: int, problems: Sequence[Problem]
) -> None:
    """Refuse a graph of nodes none of whose rows of edges ``fits``."""
    if not len(fits) or fits.any():
        return
    got = first_few(problems[-1:]) or "other names"
    none = f"{tables.edges.path}: none of its {len(fits)} row(s)"
    if num_bad == len(fits):
        raise DataError(f"{none} can be used, got: {got}")
    raise DataError(
        f"{none} joins two nodes of {tables.nodes.name}, got: {got}; write source"
        " and target as column 'node' has them"
    )


def _shares(read: _Read, *, is_whole: bool) -> list[LeftOut]:
    """How much of each table is left out."""
    fits: BoolArray = np.asarray((read.ends >= 0).all(axis=0))
    lost, count = read.bad_edges, len(read.is_bad)
    items = "graphs" if is_whole else "nodes"
    shares = [
        LeftOut(items, count, int(read.is_bad.sum())),
        LeftOut("graphs for want of a label", count, 0, int(read.is_open.sum())),
        LeftOut("edges", len(fits), int(lost.sum()), int((~fits & ~lost).sum())),
    ]
    if is_whole:
        bad = read.bad_nodes
        outside = int(((read.node_graph < 0) & ~bad).sum())
        shares.insert(2, LeftOut("nodes", len(bad), int(bad.sum()), outside))
    return shares


def _of_size(
    tables: Tables, schema: Schema, x: NDArray[Any], beside: dict[str, NDArray[Any]]
) -> list[str]:
    """Remarks on numbers from which training may overflow."""
    remarks = far_columns(schema.features, tables.nodes, x)
    if schema.edge_features:
        own = beside["edge_attr"]
        remarks += far_columns(schema.edge_features, tables.edges, own)
    weights = np.abs(beside.get("edge_weight", np.zeros(0)))
    if len(weights) and (mean := float(weights.mean())) > _HEAVY:
        remarks.append(
            f"{tables.edges.name}: messages are multiplied by weights of mean size"
            f" {mean:.3g}; divide them alike at all sites, or make them an"
            " [[edge_feature]] with shift and scale"
        )
    return remarks


def _cut_out(
    node_graph: IntArray, ends: IntArray, keep: BoolArray, *, is_whole: bool
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut out the graphs to ``keep``, or the nodes of one graph.

    ``keep`` is by row of graphs if ``is_whole``, else by row of nodes. Returns rows of
    the nodes that are kept, by graph; new numbers of their graphs, ascending; and ends
    (2, num_edges) as new numbers of nodes. -1 is a graph or node that is elsewhere.
    """
    number = np.cumsum(keep) - 1 if is_whole else np.zeros(1, np.int64)
    rows = np.flatnonzero((node_graph >= 0) & keep[node_graph] if is_whole else keep)
    rows = rows[np.argsort(node_graph[rows], kind="stable")]
    place = np.full(len(node_graph), -1, np.int64)
    place[rows] = np.arange(len(rows))
    ends = np.where(ends >= 0, place[ends], -1)
    return rows, number[node_graph[rows]], ends


def _whole_nodes(
    tables: Tables,
    schema: Schema,
    graph_of: dict[str, int],
    flaws: list[Flaw],
    problems: list[Problem],
) -> tuple[IntArray, IntArray, BoolArray, dict[str, int]]:
    """Graph, number of the name, and badness of each row of nodes; numbers of names."""
    table, graphs = tables.nodes, tables.graphs
    assert graphs is not None
    need_columns(table, ["graph"])
    rows, name_of = table.rows, dict[str, int]()
    known = Names("graph", graph_of, graphs.name, drop=schema.drops_outside)
    graph, named, strangers = known.graphs(rows)
    flaws = [*flaws, *strangers, *nameless("node", rows)]
    numbers = (name_of.setdefault(n, len(name_of)) for n in rows.cells["node"])
    name = np.fromiter(numbers, np.int64, len(graph))
    import pandas as pd  # here, as a run on other data needs none

    is_twice = pd.DataFrame({"graph": graph, "name": name}).duplicated(keep=False)
    text = "the graph has another node of this name; rename or delete one of them"
    repeated = np.flatnonzero(is_twice & (graph >= 0)).tolist()
    flaws += [(row, "node", text) for row in repeated]
    return graph, name, note(table, flaws, problems, named), name_of


def _edges(
    tables: Tables,
    schema: Schema,
    graph_of: dict[str, int],
    name_of: dict[str, int],
    node_graph: IntArray,
    node_name: IntArray,
    problems: list[Problem],
    of_rows: list[Flaw],
) -> tuple[IntArray, IntArray, BoolArray]:
    """Graph, ends as rows of nodes (-1: unknown), and badness of each row of edges.

    The ends of a row with another flaw count as unknown.
    """
    table, graphs, drop = tables.edges, tables.graphs, schema.drops_outside
    need_columns(table, [*["graph"] * bool(graphs), *KEYS["edges"]])
    graph, named = np.zeros(len(table.rows.lines), np.int64), list[str]()
    flaws: list[Flaw] = []
    if graphs:
        known = Names("graph", graph_of, graphs.name, drop=drop)
        graph, named, flaws = known.graphs(table.rows)
    where = f"{tables.nodes.name}{' with this graph' * bool(graphs)}"
    nodes = Names("node", name_of, where, drop=drop)
    ends, more = find_ends(table.rows, graph, nodes, node_graph, node_name)
    ends[:, [row for row, _, _ in of_rows]] = -1
    return graph, ends, note(table, flaws + more + of_rows, problems, named)


def _with_outsiders(
    tables: Tables,
    units: Units,
    x: NDArray[Any],
    is_bad: BoolArray,
    number_of: dict[str, int],
) -> tuple[Units, NDArray[Any], BoolArray]:
    """Add nodes for ends of edges that are in no table; their last feature is 1.

    Names that look like one in the table are mistakes, and make none.
    """
    rows = tables.edges.rows
    looks = by_look(number_of)
    named = {n for column in KEYS["edges"] for n in rows.cells[column]}
    new = sorted(
        n
        for n in named - number_of.keys()
        if not (is_missing(n) and not n.isdigit()) and not twin(n, looks)
    )
    number_of.update({name: len(units.names) + k for k, name in enumerate(new)})
    count = len(new)
    more = np.zeros((count, x.shape[1]), x.dtype)
    more[:, -1] = 1
    none = np.full((count, *units.y.shape[1:]), -1, units.y.dtype)
    time = units.time
    made = replace(
        units,
        names=[*units.names, *new],
        y=np.concatenate([units.y, none]),
        role=np.concatenate([units.role, np.full(count, NO_ROLE, np.int8)]),
        time=None if time is None else np.concatenate([time, np.full(count, np.nan)]),
    )
    bad = np.concatenate([is_bad, np.zeros(count, np.bool_)])
    return made, np.concatenate([x, more]), bad


def _without_nodes(
    tables: Tables,
    names: Sequence[str],
    node_graph: IntArray,
    is_bad: BoolArray,
    problems: list[Problem],
) -> None:
    """Note graphs that have no nodes."""
    table = tables.graphs
    assert table is not None
    counts = np.bincount(node_graph[node_graph >= 0], minlength=len(is_bad))
    flaws = [
        (
            row,
            "graph",
            f"graph {names[row]!r} has no row in {tables.nodes.name}; add its nodes, or"
            " delete this row",
        )
        for row in np.flatnonzero((counts == 0) & ~is_bad).tolist()
    ]
    is_bad |= note(table, flaws, problems, names)


def arranged(
    ends: IntArray, values: dict[str, NDArray[Any]], schema: Schema, num_nodes: int
) -> tuple[IntArray, dict[str, Any]]:
    """Make edges of rows as the schema says, sorted by source, then target, then row.

    If nine of ten undirected rows stand there in both directions with equal values, the
    two are one.

    Parameters
    ----------
    ends : int array, shape (2, num_rows)
        Nodes of the whole set.
    values : dict of str to array
        Of the same rows, as :func:`read_edge_rows` gives them.

    Returns
    -------
    edge_index : int64 array, shape (2, num_edges)
    of_edges : dict
        Arrays of a ``GraphSet`` that have a row for each edge.
    """
    edges = schema.edges
    if edges is None:
        source, target = np.concatenate([ends, ends[::-1]], axis=1)
        return distinct_edges(source, target, num_nodes), {}
    if not edges.self_loops:
        is_edge = ends[0] != ends[1]
        ends, values = ends[:, is_edge], {n: a[is_edge] for n, a in values.items()}
    if not edges.directed:
        ends, values = _one_way(ends, values)
    if edges.repeats == MERGE:
        ends, values = _merged(ends, values, num_nodes)
    if not edges.directed:
        back = np.flatnonzero(ends[0] != ends[1])
        ends = np.concatenate([ends, ends[::-1, back]], axis=1)
        values = {n: np.concatenate([a, a[back]]) for n, a in values.items()}
    order = np.lexsort((ends[1], ends[0]))  # which keeps the order of rows
    return ends[:, order], {n: a[order] for n, a in values.items()}


def _one_way(
    ends: IntArray, values: dict[str, NDArray[Any]]
) -> tuple[IntArray, dict[str, NDArray[Any]]]:
    """Write undirected rows from the lower node to the higher one.

    If rows stand there in both directions, but for a few such as those whose other one
    does not fit, half of them remain.
    """
    is_up, is_down = ends[0] < ends[1], ends[0] > ends[1]
    compared = [a for name, a in values.items() if name != "edge_row"]
    columns = [np.atleast_2d(a.T).T.astype(np.float64) for a in compared]
    table = np.concatenate([np.sort(ends, axis=0).T, *columns], axis=1)
    kind = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    size = int(kind.max(initial=-1)) + 1
    ups, downs = (np.bincount(kind[part], minlength=size) for part in (is_up, is_down))
    both = np.minimum(ups, downs)
    if 2 * both.sum() > _IN_BOTH * (is_up | is_down).sum():
        down = np.flatnonzero(is_down)
        down = down[np.argsort(kind[down], kind="stable")]
        rank = np.arange(len(down)) - pointer(downs)[kind[down]]
        keep = np.ones(ends.shape[1], np.bool_)
        keep[down[rank < both[kind[down]]]] = False
        ends, values = ends[:, keep], {n: a[keep] for n, a in values.items()}
    return np.sort(ends, axis=0), values


def _merged(
    ends: IntArray, values: dict[str, NDArray[Any]], num_nodes: int
) -> tuple[IntArray, dict[str, NDArray[Any]]]:
    """Make rows with the same ends one edge, in the order of their first rows."""
    key = ends[0] * max(num_nodes, 1) + ends[1]
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(group, minlength=len(first))
    found: dict[str, NDArray[Any]] = {}
    if "edge_weight" in values:
        weight = np.bincount(group, values["edge_weight"], minlength=len(first))
        found["edge_weight"] = weight.astype(np.float32)
    if "edge_time" in values:
        earliest = np.full(len(first), np.inf)
        np.minimum.at(earliest, group, values["edge_time"])
        found["edge_time"] = earliest
    attr = values.get("edge_attr", np.zeros((len(group), 0)))
    sums = np.zeros((len(first), attr.shape[1]))
    np.add.at(sums, group, attr.astype(np.float64))
    parts = [sums / count[:, None], np.log(count)[:, None]]
    found["edge_attr"] = np.concatenate(parts, axis=1).astype(np.float32)
    return ends[:, first], found


def _count_dropped(ends: IntArray, num_nodes: int, schema: Schema) -> int:
    """Count rows that join a node to itself, or repeat a row before, and are no edge.

    A table may have every edge in both directions: none of them repeats another.
    """
    source, target = ends
    if schema.edges is not None:
        return 0 if schema.edges.self_loops else int((source == target).sum())
    distinct = np.unique((source * num_nodes + target)[source != target])
    return len(source) - len(distinct)


def list_unused(tables: Tables, schema: Schema) -> list[str]:
    """Name columns that are not used."""
    features = [f.column for f in schema.features]
    answers = [*schema.targets, SPLIT, schema.time]
    answers += [f.column for f in schema.graph_features]
    of_edges = [f.column for f in schema.edge_features]
    of_edges += schema.edges.columns if schema.edges else ()
    is_whole = tables.graphs is not None
    used: list[tuple[Table | None, list[str]]] = [
        (tables.graphs, ["graph", *answers]),
        (tables.nodes, ["node", *features, *(["graph"] if is_whole else answers)]),
        (tables.edges, [*KEYS["edges"], *["graph"] * is_whole, *of_edges]),
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
    num_kept: int,
    shares: Sequence[LeftOut],
    problems: Sequence[Problem],
    bad_rows: str,
) -> None:
    """Refuse what cannot be used; with ``bad_rows`` "refuse", any problem.

    Tables of whose rows a large part is left out cannot be used, either.
    """
    count = count_rows(map(str, problems))
    if count and bad_rows == "refuse":
        raise DataError(
            f"{count} row(s) do not fit the schema in {folder}:"
            f" {first_few(problems)}. To leave such rows out with their graph or"
            " node, set csv-bad-rows to 'skip'"
        )
    if not num_kept:
        word = "graph" if schema.dataset == GRAPHS_CSV else "node"
        got = f", got: {first_few(problems)}" if count else ""
        raise DataError(
            f"{folder} has no usable {word}{got}; write the tables as docs/own-data.md"
            " shows"
        )
    for share in filter(LeftOut.is_much, shares):
        own = [p for p in problems if p.where.startswith(share.what)]
        raise DataError(
            f"{folder}: {share.lost} of {share.rows} {share.what} would be left out,"
            " more than a third, as rows do not fit:"
            f" {first_few(own or problems)}; {MAKE_FIT}"
        )
