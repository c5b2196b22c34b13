"""A user's tables in TU's layout.

A file holds one column and no name of it. Numbers of lines are names of graphs and
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from fedgraph_flwr.errors import DataError

from .table import BLOCK, Block, Table, Tables, no_csv, refusal
from .tu_raw import REQUIRED

_FILE = re.compile(r"(.+)_graph_indicator\.txt")
_UNUSED = ("edge_labels", "edge_attributes", "graph_attributes")


def tu_names(folder: Path) -> list[str]:
    """Names of the sets of graphs in a folder, ascending."""
    try:
        found = [_FILE.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(match[1] for match in found if match)


def tu_tables(folder: Path, name: str) -> Tables:
    """Return the tables of one set; raise DataError if a file is missing."""

    def path(kind: str) -> Path:
        return folder / f"{name}_{kind}.txt"

    for kind in REQUIRED:
        if not path(kind).is_file():
            raise refusal(folder, f"has no {path(kind).name}; add it")
    graph_of = [row[0] for _, row in _rows(path("graph_indicator"), 1)]
    optional = [k for k in ("node_labels", "node_attributes") if path(k).is_file()]
    widths = {kind: _width(path(kind)) for kind in optional}
    names = {
        kind: [kind[:-1] if n == 1 else f"{kind[:-1]}_{i}" for i in range(1, n + 1)]
        for kind, n in widths.items()
    }
    columns = [column for kind in optional for column in names[kind]]

    def nodes() -> Iterator[Block]:
        parts = [path("graph_indicator"), *(path(kind) for kind in optional)]
        rows = _parallel(parts, [1, *widths.values()])
        yield from _blocks(
            ("graph", "node", *columns),
            ((n, [r[0], str(n), *r[1:]]) for n, r in rows),
        )

    def edges() -> Iterator[Block]:
        rows = _rows(path("A"), 2)
        yield from _blocks(
            ("graph", "source", "target"),
            ((n, [_graph_of(r[0], graph_of, path("A"), n), *r]) for n, r in rows),
        )

    def graphs() -> Iterator[Block]:
        rows = _rows(path("graph_labels"), 1)
        yield from _blocks(("graph", "label"), ((n, [str(n), *r]) for n, r in rows))

    return Tables(
        graphs=Table(
            name=path("graph_labels").name,
            files=(path("graph_labels"),),
            columns=("graph", "label"),
            blocks=graphs,
            categorical=("label",),
        ),
        nodes=Table(
            name=path("graph_indicator").name,
            files=(path("graph_indicator"), *map(path, optional)),
            columns=("graph", "node", *columns),
            blocks=nodes,
            file_of={c: path(k).name for k in optional for c in names[k]},
            categorical=tuple(names.get("node_labels", ())),
        ),
        edges=Table(
            name=path("A").name,
            files=(path("A"),),
            columns=("graph", "source", "target"),
            blocks=edges,
        ),
        unused=tuple(path(k).name for k in _UNUSED if path(k).is_file()),
    )


def _graph_of(node: str, graph_of: Sequence[str], path: Path, line: int) -> str:
    """Graph of an edge, which is that of its first node."""
    last = len(graph_of)
    if node.isascii() and node.isdigit() and 1 <= int(node[:18]) <= last:
        return graph_of[int(node) - 1]
    raise DataError(
        f"{path}, line {line}: a node must be a number from 1 to {last}, the lines of"
        f" graph_indicator, got {node!r}; correct it",
        public=f"{path.name}, line {line}: a node is none of graph_indicator",
    )


def _width(path: Path) -> int:
    with path.open(encoding="utf-8", errors="replace") as handle:
        return handle.readline().count(",") + 1


def _rows(path: Path, width: int) -> Iterator[tuple[int, list[str]]]:
    line = 0
    try:
        with path.open(encoding="utf-8-sig") as handle:
            for line, text in enumerate(handle, 1):
                cells = [cell.strip() for cell in text.split(",")]
                if len(cells) != width:
                    raise DataError(
                        f"{path}, line {line}: has {len(cells)} number(s), not {width};"
                        " correct the line",
                        public=f"{path.name}, line {line}: must have {width} number(s)",
                    )
                yield line, cells
    except (OSError, UnicodeDecodeError) as error:
        raise no_csv(path, line + 1, error) from error


def _parallel(
    paths: Sequence[Path], widths: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Read files side by side; all must have as many lines as the first."""
    readers = [_rows(path, width) for path, width in zip(paths, widths, strict=True)]
    line = 0
    for line, cells in readers[0]:
        row = list(cells)
        for path, reader in zip(paths[1:], readers[1:], strict=True):
            found = next(reader, None)
            if found is None:
                raise _unequal(path, line, paths[0])
            row += found[1]
        yield line, row
    for path, reader in zip(paths[1:], readers[1:], strict=True):
        if next(reader, None) is not None:
            raise _unequal(path, line + 1, paths[0])


def _unequal(path: Path, line: int, first: Path) -> DataError:
    return DataError(
        f"{path}, line {line}: {path.name} and {first.name} have different numbers of"
        " lines, but each node has one in both; complete the shorter one",
        public=f"{path.name} and {first.name} have different numbers of lines",
    )


def _blocks(
    columns: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Block]:
    while some := list(islice(rows, BLOCK)):
        lines, cells = zip(*some, strict=True)
        yield Block(
            lines, dict(zip(columns, map(list, zip(*cells, strict=True)), strict=True))
        )
