"""A user's tables in TU's layout.

A file holds one column and no name of it. Numbers of lines are names of graphs and
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path

from fedgraph_flwr.errors import DataError

from .table import BLOCK, Block, Table, Tables, needing_permission, no_csv, refusal
from .tu_check import RawFiles
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
    optional = [k for k in ("node_labels", "node_attributes") if path(k).is_file()]
    widths = {kind: _width(path(kind)) for kind in optional}
    names = {
        kind: [kind[:-1] if n == 1 else f"{kind[:-1]}_{i}" for i in range(1, n + 1)]
        for kind, n in widths.items()
    }
    columns = [column for kind in optional for column in names[kind]]

    @cache
    def graph_of() -> list[str]:
        files = {kind: path(kind) for kind in (*REQUIRED, *optional)}
        with needing_permission():
            graph, _ = RawFiles(name, files, origin=folder).structure()
        return list(map(str, graph.tolist()))

    def nodes() -> Iterator[Block]:
        readers = [_rows(path(kind), width) for kind, width in widths.items()]
        rows = zip(graph_of(), *readers, strict=True)
        yield from _blocks(
            ("graph", "node", *columns),
            (
                (n, [graph, str(n), *chain.from_iterable(cells for _, cells in parts)])
                for n, (graph, *parts) in enumerate(rows, 1)
            ),
        )

    def edges() -> Iterator[Block]:
        of = graph_of()
        ends = ((n, *map(int, row)) for n, row in _rows(path("A"), 2))
        yield from _blocks(
            ("graph", "source", "target"),
            ((n, [of[a - 1], str(a), str(b)]) for n, a, b in ends),
        )

    def graphs() -> Iterator[Block]:
        graph_of()  # which checks that each has its label
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
                        " correct the line"
                    )
                yield line, cells
    except (OSError, UnicodeDecodeError) as error:
        raise no_csv(path, line + 1, error) from error


def _blocks(
    columns: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Block]:
    while some := list(islice(rows, BLOCK)):
        lines, cells = zip(*some, strict=True)
        yield Block(
            lines, dict(zip(columns, map(list, zip(*cells, strict=True)), strict=True))
        )
