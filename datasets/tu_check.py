"""Reading raw files in TU's layout, and whether they fit together.

PyTorch Geometric reads these text files without comparing them: a cut-off line, a
node outside its graph or a missing label goes unnoticed. A published set and a user's
own tables (``tables_tu``) are checked alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.wording import shortened

from .tu_raw import ATTRIBUTES, LABELS

_MOST_LABELS = 100_000
_BLOCK = 1 << 22
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

    ``origin`` is the folder or archive that messages name.
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
        _check_numbering(graph, self.bad)
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
        _check_edges(graph, edges, self.bad)
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


def _check_numbering(graph: IntArray, bad: Callable[..., DataError]) -> None:
    steps = np.diff(graph, prepend=0)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if graph[0] != 1 or len(wrong):
        line = int(wrong[0]) + 1 if len(wrong) else 1
        raise bad(
            "graph_indicator",
            "graphs must be numbered 1, 2, ... without gap and nodes be sorted by"
            f" graph, but line {line} says {graph[line - 1]}",
            line,
        )


def _check_edges(
    graph: IntArray, edges: IntArray, bad: Callable[..., DataError]
) -> None:
    def refuse(is_wrong: NDArray[np.bool_], what: str) -> None:
        if len(wrong := np.flatnonzero(is_wrong)):
            at = int(wrong[0])
            told = f"line {at + 1} has edge {edges[at].tolist()}, {what}"
            raise bad("A", told, at + 1)

    outside = (edges < 1) | (edges > len(graph))
    refuse(
        outside[:, 0] | outside[:, 1], f"but graph_indicator has nodes 1..{len(graph)}"
    )
    across = graph[edges[:, 0] - 1] != graph[edges[:, 1] - 1]
    refuse(across, "which joins two graphs of graph_indicator")
    if (edges[:, 0] == edges[:, 1]).all():
        raise bad("A", "there are no edges but self-loops", cure=_ADD_EDGE)
