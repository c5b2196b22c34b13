"""Data sets of TU Dortmund: raw files, checked, as a set of graphs.

The data folder is only read; what is made of it is stored as memory-mapped arrays.

PyTorch Geometric reads these text files without comparing them: a cut-off line, a
node outside its graph or a missing label goes unnoticed. A published set and a user's
own tables in their layout are checked alike.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

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
_UNUSED = (LABELS, ATTRIBUTES, "edge_labels", "edge_attributes", "graph_attributes")
_BLOCK = 1 << 22


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
        extra = (
            " (sets with graph_attributes only are regression sets, which this"
            " application does not cover)"
            if missing == [f"{name}_graph_labels.txt"]
            else ""
        )
        raise DataError(
            f"{raw} lacks {', '.join(missing)}{extra}; fetch the data set again"
        )
    return found


_MOST_LABELS = 100_000
_CURE = "correct the file, or fetch the data set again if it is a published one"
_EXACT = 2**53  # above it, float64 does not have every whole number
_ADD_EDGE = (
    "a set needs one edge between two nodes. If its graphs have none, add a graph that"
    f" has one; else {_CURE}"
)


@dataclass(frozen=True, kw_only=True)
class RawTables:
    """What the raw files hold: graphs ascending, and nodes, from 0; edges as listed.

    ``labels`` and ``attributes`` of nodes have no column without the file.
    """

    graph_of_node: IntArray
    edges: IntArray
    graph_labels: IntArray
    labels: IntArray
    attributes: NDArray[np.float32]

    @property
    def label_ranges(self) -> list[tuple[int, int]]:
        """Smallest and largest label of nodes in each column of labels."""
        low, high = self.labels.min(axis=0), self.labels.max(axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))


def count_lines(path: Path, where: str) -> int:
    """Count the lines of a raw file; refuse one that is empty or cut off."""
    last, num_lines = b"", 0
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            last, num_lines = block[-1:], num_lines + block.count(b"\n")
    if not last:
        raise DataError(f"{where} is empty; {_CURE}")
    if last != b"\n":
        raise DataError(
            f"{where} does not end with a newline: it is cut off; {_CURE} (or append"
            " the newline if the last line is complete)"
        )
    return num_lines


def read_table(
    path: Path, dtype: type, *, columns: int | None, where: str
) -> NDArray[Any]:
    """Read one raw file of comma-separated numbers, shape (num_lines, num_columns)."""
    num_lines = count_lines(path, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # loadtxt only warns where nothing is read
            table: NDArray[Any] = np.loadtxt(
                path,
                dtype=dtype,
                delimiter=",",
                ndmin=2,
                comments=None,
                encoding="utf-8-sig",
            )
    except (ValueError, OverflowError, Warning) as error:
        kind = "whole numbers" if dtype is np.int64 else "numbers"
        must = f"must hold {kind}, as many in each line, separated by commas"
        got = _first_odd(path, int if dtype is np.int64 else float) or str(error)
        raise DataError(f"{where} {must}, got {got}; {_CURE}") from error
    if len(table) != num_lines:  # NumPy passes over them
        raise DataError(
            f"{where} has {num_lines} lines with {len(table)} rows of numbers: it has"
            f" blank lines; {_CURE}"
        )
    if columns is not None and table.shape[1] != columns:
        raise DataError(
            f"{where} must have {columns} column(s), got {table.shape[1]}; {_CURE}"
        )
    return table


def _first_odd(path: Path, number: type) -> str:
    """Quote the first line that holds no numbers, or not as many as the first."""
    width = 0
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        for line, text in enumerate(handle, 1):
            cells = text.split(",")
            width = width or len(cells)
            try:
                is_odd = len(list(map(number, cells))) != width
            except ValueError:
                is_odd = True
            if is_odd:
                return f"{shortened(repr(text.strip()))} in line {line}"
    return ""


class RawFiles:
    """The raw files of one set by kind, which are checked against each other.

    ``origin`` is the folder that messages name.
    """

    def __init__(self, name: str, files: Mapping[str, Path], *, origin: Path) -> None:
        self._name, self._files, self._origin = name, files, origin

    def bad(self, kind: str, problem: str, cure: str = _CURE) -> DataError:
        """Word what is wrong with a file."""
        place = f"{self._name}_{kind}.txt"
        return DataError(f"{place} in {self._origin}: {problem}; {cure}")

    def read(
        self, kind: str, columns: int | None = 1, dtype: type = np.int64
    ) -> NDArray[Any]:
        """Read a file of numbers; labels may be written as 1.0."""
        where = f"{self._name}_{kind}.txt in {self._origin}"
        given = self._files[kind]
        if kind in ("graph_labels", LABELS):
            with suppress(DataError):
                table = read_table(given, np.float64, columns=columns, where=where)
                if (table == np.rint(table)).all() and (abs(table) < _EXACT).all():
                    return table.astype(np.int64)
        return read_table(given, dtype, columns=columns, where=where)

    def structure(self) -> tuple[IntArray, IntArray]:
        """Read the graph of each node, and the ends of edges, both from 1."""
        graph: IntArray = self.read("graph_indicator")[:, 0]
        steps = np.diff(graph, prepend=0)
        wrong = np.flatnonzero((steps < 0) | (steps > 1))
        if graph[0] != 1 or len(wrong):
            line = int(wrong[0]) + 1 if len(wrong) else 1
            raise self.bad(
                "graph_indicator",
                "graphs must be numbered 1, 2, ... without gap and nodes be sorted by"
                f" graph, but line {line} says {graph[line - 1]}",
            )
        wanted = {
            "graph_labels": (int(graph[-1]), "labels", "graphs"),
            **dict.fromkeys((LABELS, ATTRIBUTES), (len(graph), "lines", "nodes")),
        }
        for kind, (count, what, of) in wanted.items():
            if kind not in self._files:
                continue
            where = f"{self._name}_{kind}.txt in {self._origin}"
            found = count_lines(self._files[kind], where)
            if found != count:
                problem = f"{found} {what} for the {count} {of} of graph_indicator"
                raise self.bad(kind, problem)
        if not self._files["A"].stat().st_size:
            raise self.bad("A", "the file is empty", cure=_ADD_EDGE)
        edges: IntArray = self.read("A", 2)
        outside = ((edges < 1) | (edges > len(graph))).any(axis=1)
        across = np.zeros_like(outside)
        across[~outside] = np.diff(graph[edges[~outside] - 1])[:, 0] != 0
        for is_wrong, what in (
            (outside, f"but graph_indicator has nodes 1..{len(graph)}"),
            (across, "which joins two graphs of graph_indicator"),
        ):
            if len(at := np.flatnonzero(is_wrong)):
                ends = edges[at[0]].tolist()
                raise self.bad("A", f"line {at[0] + 1} has edge {ends}, {what}")
        if (edges[:, 0] == edges[:, 1]).all():
            raise self.bad("A", "there are no edges but self-loops", cure=_ADD_EDGE)
        return graph, edges


def read_raw(name: str, files: Mapping[str, Path], *, origin: Path) -> RawTables:
    """Read the raw files, and check them against each other; see :class:`RawFiles`."""
    raw = RawFiles(name, files, origin=origin)
    graph, edges = raw.structure()
    labels, num_nodes = raw.read("graph_labels")[:, 0], len(graph)
    of_nodes = {LABELS: np.zeros((num_nodes, 0), np.int64)}
    of_nodes[ATTRIBUTES] = np.zeros((num_nodes, 0), np.float64)
    for kind in [k for k in of_nodes if k in files]:
        of_nodes[kind] = raw.read(kind, None, of_nodes[kind].dtype.type)
    with np.errstate(over="ignore"):
        attributes = of_nodes[ATTRIBUTES].astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(attributes).all(axis=1))
    if len(wrong):
        problem = f"line {wrong[0] + 1} holds NaN, infinity or a number beyond float32"
        raise raw.bad(ATTRIBUTES, problem)
    tables = RawTables(
        graph_of_node=graph - 1,
        edges=edges - 1,
        graph_labels=labels,
        labels=of_nodes[LABELS],
        attributes=attributes,
    )
    if (width := sum(b - a + 1 for a, b in tables.label_ranges)) > _MOST_LABELS:
        raise raw.bad(
            LABELS,
            f"its labels span {width} numbers, a column each, more than {_MOST_LABELS};"
            " number them 0, 1, ...",
        )
    return tables


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
    name: str, features: str = "labels", *, data_dir: str = "", cache_dir: str = ""
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
    data_dir : str
        As in :func:`~datasets.cache.data_folder`.
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
    files = _files_by_kind(name, raw, READS[features])
    mark = fingerprint_files(files.values())
    entry = cache / f"{name}-{features}-{mark}"

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
        tables = read_raw(name, files, origin=raw)
        digest = checksum(files.values())
    except OSError as error:
        raise DataError(
            f"cannot read TU data set {name!r} from {raw}: {error}; check permissions"
        ) from error
    node_ptr = pointer(np.bincount(tables.graph_of_node))
    source_node, target_node = tables.edges.T
    edges = distinct_edges(source_node, target_node, int(node_ptr[-1]))
    graph_of_edge = tables.graph_of_node[edges[0]]
    is_undirected = _is_undirected(edges)
    if not is_undirected:
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
        is_undirected=is_undirected,
        raw_sha256=digest,
        columns=columns,
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
    num_attributes, ranges = tables.attributes.shape[1], tables.label_ranges
    if features == "attributes" and not num_attributes:
        raise DataError(
            f"{name} has no node attributes, which features 'attributes' asks for; set"
            " features to 'labels', 'labels+attributes' or 'degree'"
        )
    if features == "degree" or not (num_attributes or ranges):
        width = MAX_DEGREE.get(name, int(degrees.max())) + 1
        x = _smallest(np.minimum(degrees, width - 1), width)
        return x, width, f"degrees up to {width - 1}"
    widths = [high - low + 1 for low, high in ranges]
    words = [
        f"{count} {kind}{'s' * (count > 1)}"
        for count, kind in ((num_attributes, "attribute"), (sum(widths), "label"))
        if count
    ]
    spans = "; ".join(f"{low} to {high}" for low, high in ranges)
    columns = ", ".join(words) + (f" ({spans})" if ranges else "")
    width = num_attributes + sum(widths)
    ids = [own - low for own, (low, _) in zip(tables.labels.T, ranges, strict=True)]
    if len(ids) == 1 and not num_attributes:
        return _smallest(ids[0], width), width, columns
    one_hot = [
        (own[:, None] == np.arange(n)).astype(np.float32)
        for n, own in zip(widths, ids, strict=True)
    ]
    return np.concatenate([tables.attributes, *one_hot], axis=1), width, columns


def _smallest(columns: NDArray[Any], width: int) -> NDArray[Any]:
    """Column numbers below ``width`` in the smallest unsigned type."""
    return columns.astype(np.min_scalar_type(max(width - 1, 0)))


def _is_undirected(edges: IntArray) -> bool:
    """Whether each edge (in data-set-wide node numbers) has its reverse."""
    source, target = edges
    size = int(edges.max()) + 1
    # Edges are unique and sorted by (source, target), so this key is ascending.
    return bool(np.array_equal(source * size + target, np.sort(target * size + source)))
