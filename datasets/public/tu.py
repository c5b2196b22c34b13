"""Data sets of TU Dortmund: raw files, checked, as a set of graphs.

The data folder is only read; what is made of it is stored as memory-mapped arrays.

PyTorch Geometric reads these text files without comparing them: a cut-off line, a
node outside its graph or a missing label goes unnoticed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import (
    GraphSet,
    IntArray,
    distinct_edges,
    is_undirected,
    pointer,
)
from fedgraph_flwr.core.errors import DataError

from ..cache import (
    cache_root,
    checksum,
    fingerprint_files,
    open_or_build,
    raw_folder,
    unpack_texts,
)
from ..tabular.table import unchanged

REQUIRED = ("A", "graph_indicator", "graph_labels")
LABELS, ATTRIBUTES = "node_labels", "node_attributes"
OF_EDGES = ("edge_labels", "edge_attributes")
_UNUSED = (LABELS, ATTRIBUTES, *OF_EDGES, "graph_attributes")


def find_raw(name: str, data_dir: str, cache: Path) -> Path:
    """Find the folder of a TU data set's raw files; see :func:`raw_folder`."""

    def address() -> dict[str, str]:
        from torch_geometric.datasets import TUDataset

        return {"": f"{TUDataset.url}/{name}.zip"}

    return raw_folder(
        f"TU data set {name!r}",
        "tudataset",
        [f"{name}/raw"],
        (),
        data_dir=data_dir,
        cache=cache,
        kept=f"{name}/raw",
        pin=name,
        addresses=address,
        unpack=unpack_texts(name),
    )


def _files_by_kind(name: str, raw: Path, optional: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of a raw folder by kind; all required ones must be there."""
    paths = {k: raw / f"{name}_{k}.txt" for k in (*REQUIRED, *optional)}
    found = {kind: path for kind, path in paths.items() if path.is_file()}
    missing = [paths[kind].name for kind in REQUIRED if kind not in found]
    if missing:
        raise DataError(f"{raw} lacks {', '.join(missing)}; fetch the data set again")
    return found


_MOST_LABELS = 100_000
_EXACT = 2**53  # above it, float64 does not have every whole number
_CURE = "correct the file, or fetch the data set again if it is a published one"
_ADD_EDGE = (
    "a set needs one edge between two nodes. If its graphs have none, add a graph that"
    f" has one; else {_CURE}"
)


@dataclass(frozen=True, kw_only=True)
class RawTables:
    """What the raw files hold: graphs ascending, and nodes, from 0; edges as listed.

    ``labels`` and ``attributes`` of nodes and edges have no column without the file.
    """

    graph_of_node: IntArray
    edges: IntArray
    graph_labels: IntArray
    labels: IntArray
    attributes: NDArray[np.float32]
    edge_labels: IntArray
    edge_attributes: NDArray[np.float32]


def _ranges(labels: IntArray) -> list[tuple[int, int]]:
    """Smallest and largest label in each column."""
    low, high = labels.min(axis=0), labels.max(axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _bad(path: Path, problem: str, cure: str = _CURE) -> DataError:
    """Word what is wrong with a raw file."""
    return DataError(f"{path.name} in {path.parent}: {problem}; {cure}")


def read_table(path: Path, columns: int | None = None) -> NDArray[np.float64]:
    """Read one raw file of comma-separated numbers, shape (num_lines, num_columns)."""
    content = path.read_bytes()
    if not content:
        raise _bad(path, "is empty", _ADD_EDGE if path.stem.endswith("_A") else _CURE)
    if not content.endswith(b"\n"):
        cure = f"{_CURE} (or append the newline if the last line is complete)"
        raise _bad(path, "does not end with a newline: it is cut off", cure)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # loadtxt only warns where nothing is read
            table: NDArray[np.float64] = np.loadtxt(
                path, delimiter=",", ndmin=2, comments=None, encoding="utf-8-sig"
            )
    except (ValueError, Warning) as error:
        must = "must hold numbers, as many in each line, separated by commas"
        raise _bad(path, f"{must}: {error} (rows count from 0)") from error
    if len(table) != content.count(b"\n"):  # NumPy passes over them
        raise _bad(path, "has blank lines")
    if columns is not None and table.shape[1] != columns:
        raise _bad(path, f"must have {columns} column(s), got {table.shape[1]}")
    return table


def _read_whole(path: Path, columns: int | None = None) -> IntArray:
    """Read whole numbers, which may be written as 1.0."""
    table = read_table(path, columns)
    is_whole = (table == np.rint(table)) & (abs(table) < _EXACT)
    if len(wrong := np.flatnonzero(~is_whole.all(axis=1))):
        got = f"{table[wrong[0]].tolist()} in line {wrong[0] + 1}"
        raise _bad(path, f"must hold whole numbers, got {got}")
    return table.astype(np.int64)


def read_raw(files: Mapping[str, Path]) -> RawTables:
    """Read the raw files, by kind, and check them against each other."""
    graph: IntArray = _read_whole(files["graph_indicator"], 1)[:, 0]
    steps = np.diff(graph, prepend=0)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if graph[0] != 1 or len(wrong):
        line = int(wrong[0]) + 1 if len(wrong) else 1
        raise _bad(
            files["graph_indicator"],
            "graphs must be numbered 1, 2, ... without gap and nodes be sorted by"
            f" graph, but line {line} says {graph[line - 1]}",
        )
    num_graphs, num_nodes = int(graph[-1]), len(graph)
    graph_labels = _read_whole(files["graph_labels"], 1)[:, 0]
    if len(graph_labels) != num_graphs:
        found = f"{len(graph_labels)} labels for the {num_graphs} graphs"
        raise _bad(files["graph_labels"], f"{found} of graph_indicator")
    lines = f"{num_nodes} nodes of graph_indicator"
    labels, attributes = _read_columns(files, LABELS, ATTRIBUTES, num_nodes, lines)
    edges = _read_edges(files["A"], graph)
    lines = f"{len(edges)} edges of A"
    edge_labels, edge_attributes = _read_columns(files, *OF_EDGES, len(edges), lines)
    return RawTables(
        graph_of_node=graph - 1,
        edges=edges,
        graph_labels=graph_labels,
        labels=labels,
        attributes=attributes,
        edge_labels=edge_labels,
        edge_attributes=edge_attributes,
    )


def _read_columns(
    files: Mapping[str, Path], of_labels: str, of_numbers: str, count: int, lines: str
) -> tuple[IntArray, NDArray[np.float32]]:
    """Read labels and attributes of ``count`` nodes or edges, as far as there are."""
    labels, numbers = np.zeros((count, 0), np.int64), np.zeros((count, 0), np.float64)
    if of_labels in files:
        labels = _read_whole(files[of_labels])
    if of_numbers in files:
        numbers = read_table(files[of_numbers])
    for kind, table in ((of_labels, labels), (of_numbers, numbers)):
        if len(table) != count:
            raise _bad(files[kind], f"{len(table)} lines for the {lines}")
    with np.errstate(over="ignore"):
        attributes = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(attributes).all(axis=1))
    if len(wrong):
        problem = f"line {wrong[0] + 1} holds NaN, infinity or a number beyond float32"
        raise _bad(files[of_numbers], problem)
    if (width := sum(b - a + 1 for a, b in _ranges(labels))) > _MOST_LABELS:
        raise _bad(
            files[of_labels],
            f"its labels span {width} numbers, a column each, more than {_MOST_LABELS};"
            " number them 0, 1, ...",
        )
    return labels, attributes


def _read_edges(path: Path, graph: IntArray) -> IntArray:
    """Read both ends of each edge, from 0, given the graph of each node."""
    edges = _read_whole(path, 2)
    outside = ((edges < 1) | (edges > len(graph))).any(axis=1)
    across = np.zeros_like(outside)
    across[~outside] = np.diff(graph[edges[~outside] - 1])[:, 0] != 0
    for is_wrong, what in (
        (outside, f"but graph_indicator has nodes 1..{len(graph)}"),
        (across, "which joins two graphs of graph_indicator"),
    ):
        if len(at := np.flatnonzero(is_wrong)):
            ends = edges[at[0]].tolist()
            raise _bad(path, f"line {at[0] + 1} has edge {ends}, {what}")
    if (edges[:, 0] == edges[:, 1]).all():
        raise _bad(path, "there are no edges but self-loops", _ADD_EDGE)
    return edges - 1


log = logging.getLogger("flwr.fedgraph")

# Widths of the one-hot degrees, less one, as GCFL has them.
MAX_DEGREE = {"COLLAB": 491, "IMDB-BINARY": 135, "IMDB-MULTI": 88}


# Kinds of files, beside the required ones, that a setting of ``features`` reads.
READS = {
    "labels": (LABELS,),
    "degree": (LABELS,),
    "attributes": (ATTRIBUTES,),
    "labels+attributes": (ATTRIBUTES, LABELS),
}


def load_tu(
    name: str,
    features: str = "labels",
    *,
    with_edges: bool = False,
    data_dir: str = "",
    cache_dir: str = "",
) -> GraphSet:
    """Load one TU data set.

    Parameters
    ----------
    name : str
        Name in the collection, e.g. ``"PROTEINS"``.
    features : str
        Key of ``READS``. ``"labels"``: one-hot node labels; ``"attributes"``: the
        nodes' real numbers; ``"labels+attributes"``: the attributes, then the labels,
        or whichever of them the set has. Where it has neither, or ``"labels"`` finds no
        labels, degrees stand in; ``"attributes"`` must be there.
        ``"degree"``: one-hot degrees always, of width ``max_degree + 1``, larger
        degrees counting as ``max_degree`` (published for COLLAB, IMDB-BINARY and
        IMDB-MULTI, else the largest of the data set).
    with_edges : bool
        Edge features are the edges' real numbers, then their one-hot labels, or
        whichever of them the set has. An edge may repeat with equal features only.
    data_dir : str
        As in :func:`~datasets.cache.raw_folder`.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Returns
    -------
    GraphSet
        Memory-mapped; graphs, edges and classes are in ``TUDataset``'s order. What its
        features are, and what is not used, is logged once per process.

    Raises
    ------
    DataError
        If the raw files are missing, incomplete or corrupt, or lack attributes that are
        asked for.
    """
    cache = cache_root(cache_dir)
    raw = find_raw(name, data_dir, cache)
    of_edges = OF_EDGES if with_edges else ()
    files = _files_by_kind(name, raw, (*READS[features], *of_edges))
    mark = fingerprint_files(files.values())
    entry = cache / f"{name}-{features}{'-edges' * with_edges}-{mark}"

    def convert(_: Path) -> GraphSet:
        with unchanged(raw, mark, lambda: fingerprint_files(files.values())):
            return _convert(name, raw, files, features)

    found = open_or_build(entry, GraphSet, convert)
    unused = f"; not used: {found.unused}" if found.unused else ""
    say_once(f"{name}: features: {found.columns}{unused}")
    return found


@cache
def say_once(text: str) -> None:
    """Log what a set's features are once per process, however many clients load it."""
    log.info("%s", text)


def _convert(
    name: str, raw: Path, files: Mapping[str, Path], features: str
) -> GraphSet:
    """Check, parse and flatten the files of one data set."""
    log.info("converting TU data set %s from %s", name, raw)
    try:
        tables = read_raw(files)
        digest = checksum(files.values())
    except OSError as error:
        raise DataError(
            f"cannot read TU data set {name!r} from {raw}: {error}; check permissions"
        ) from error
    node_ptr = pointer(np.bincount(tables.graph_of_node))
    source_node, target_node = tables.edges.T
    edges = distinct_edges(source_node, target_node, int(node_ptr[-1]))
    graph_of_edge = tables.graph_of_node[edges[0]]
    edge_attr, edge_width, edge_columns = _edge_features(tables, edges, files)
    is_both_ways = is_undirected(edges, edge_attr)
    if not is_both_ways:
        log.warning(
            "%s in %s has edges in one direction only; %s_A.txt may be cut off",
            name,
            raw,
            name,
        )
    degrees = np.bincount(edges[0], minlength=node_ptr[-1])
    x, width, columns = _features(name, features, tables, degrees)
    classes, y = np.unique(tables.graph_labels, return_inverse=True)
    return GraphSet(
        name=name,
        x=x,
        edge_index=(edges - node_ptr[graph_of_edge]).astype(np.int32),
        node_ptr=node_ptr,
        edge_ptr=pointer(np.bincount(graph_of_edge, minlength=len(y))),
        y=y.astype(np.int64),
        num_features=width,
        num_classes=len(classes),
        is_undirected=is_both_ways,
        edge_attr=edge_attr,
        num_edge_features=edge_width,
        raw_sha256=digest,
        columns=columns + edge_columns,
        unused=", ".join(
            kind.replace("_", " ")
            for kind in _UNUSED
            if kind not in files and (raw / f"{name}_{kind}.txt").exists()
        ),
        classes=[str(label) for label in classes.tolist()],
    )


def _features(
    name: str, features: str, tables: RawTables, degrees: IntArray
) -> tuple[NDArray[Any], int, str]:
    """Return x, its width, and what its columns are."""
    num_attributes, ranges = tables.attributes.shape[1], _ranges(tables.labels)
    if features == "attributes" and not num_attributes:
        raise DataError(
            f"{name} has no node attributes, which features 'attributes' asks for; set"
            " features to 'labels', 'labels+attributes' or 'degree'"
        )
    if features == "degree" or not (num_attributes or ranges):
        width = MAX_DEGREE.get(name, int(degrees.max())) + 1
        x = _smallest(np.minimum(degrees, width - 1), width)
        return x, width, f"degrees up to {width - 1}"
    return _table(tables.labels, tables.attributes)


def _table(
    labels: IntArray, attributes: NDArray[np.float32]
) -> tuple[NDArray[Any], int, str]:
    """Attributes, then one-hot labels; the width, and what the columns are."""
    num_attributes, ranges = attributes.shape[1], _ranges(labels)
    widths = [high - low + 1 for low, high in ranges]
    words = [
        f"{count} {kind}{'s' * (count > 1)}"
        for count, kind in ((num_attributes, "attribute"), (sum(widths), "label"))
        if count
    ]
    spans = "; ".join(f"{low} to {high}" for low, high in ranges)
    columns = ", ".join(words) + (f" ({spans})" if ranges else "")
    width = num_attributes + sum(widths)
    ids = [own - low for own, (low, _) in zip(labels.T, ranges, strict=True)]
    if len(ids) == 1 and not num_attributes:
        return _smallest(ids[0], width), width, columns
    one_hot = [
        (own[:, None] == np.arange(n)).astype(np.float32)
        for n, own in zip(widths, ids, strict=True)
    ]
    return np.concatenate([attributes, *one_hot], axis=1), width, columns


def _edge_features(
    tables: RawTables, edges: IntArray, files: Mapping[str, Path]
) -> tuple[NDArray[Any] | None, int, str]:
    """Features of the edges, in their order; all is empty if the set has none."""
    made, width, columns = _table(tables.edge_labels, tables.edge_attributes)
    if not width:
        return None, 0, ""
    size = len(tables.graph_of_node)
    first = np.unique(source_key := tables.edges @ [size, 1], return_index=True)[1]
    found = first[np.diff(tables.edges[first])[:, 0] != 0]  # without loops
    at = np.searchsorted(source_key[first], source_key)
    if len(
        odd := np.flatnonzero((made[first[at]] != made).reshape(len(made), -1).any(1))
    ):
        kind = next(k for k in OF_EDGES if k in files)
        raise _bad(
            files[kind], f"line {odd[0] + 1} is of an edge that has other values above"
        )
    assert len(found) == edges.shape[1]
    return made[found], width, f"; of edges: {columns}"


def _smallest(columns: NDArray[Any], width: int) -> NDArray[Any]:
    """Column numbers below ``width`` in the smallest unsigned type."""
    return columns.astype(np.min_scalar_type(max(width - 1, 0)))
