"""The tables in a user's folder, read in blocks of rows: CSV, Parquet and TU files.

Everything comes out as text, cell by cell; ``encode`` turns it into numbers. Files in
TU's layout are read by ``tables_tu``.

A file holds one column and no name of it. Numbers of lines are names of graphs and
nodes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, islice
from pathlib import Path

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..public.tu import REQUIRED, RawFiles
from ..tabular.blocks import (
    BLOCK,
    Block,
    Table,
    Tables,
    needing_permission,
    no_csv,
    odd_header,
    refusal,
)
from ..tabular.schema_file import SPLIT

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


_NEWLINE = re.compile(r"\r\n|\r|\n")


def holds_tables(folder: Path, *, of_any_kind: bool = False) -> bool:
    """Whether a folder has tables itself, rather than folders of clients.

    A table of nodes is meant, or ``of_any_kind``.
    """
    stems = ("nodes", "edges", "graphs") if of_any_kind else ("nodes",)
    return any(_places(folder, stem) for stem in stems) or bool(tu_names(folder))


def wanted_tables(folder: Path) -> str:
    """Say which tables and columns a folder must have, and which files it has."""
    found = [p.name for p in _sorted(folder) if p.suffix in (".csv", ".parquet")]
    got = (
        f"; got {shortened(', '.join(found))}: rename files and columns"
        if found
        else ""
    )
    return (
        "one graph is nodes.csv (columns node, label, and what describes a node) and"
        " edges.csv (source, target); whole graphs are graphs.csv (graph, and what is"
        " to be predicted), nodes.csv (graph, node, ...) and edges.csv (graph, source,"
        f" target){got}"
    )


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def is_one_graph(folder: Path) -> bool:
    """Whether a folder has a table of nodes and none of graphs."""
    return any(_places(folder, "nodes")) and not any(_places(folder, "graphs"))


def find_tables(folder: Path, *, whole_graphs: bool) -> Tables:
    """Find the tables of one client.

    Parameters
    ----------
    folder : Path
        With ``nodes``, ``edges`` and, for whole graphs, ``graphs``, each as ``.csv`` or
        ``.parquet``; or, for whole graphs, with files in TU's layout.
    whole_graphs : bool

    Raises
    ------
    DataError
        A file is missing, there twice, or its first line names no usable columns.
    """
    if whole_graphs and (names := tu_names(folder)):
        if len(names) > 1 or any(_places(folder, "nodes")):
            what = [f"{name}_graph_indicator.txt" for name in names]
            what += [p.name for p in _places(folder, "nodes")]
            raise refusal(
                folder, f"has more than one set of graphs ({', '.join(what)}); keep one"
            )
        return tu_tables(folder, names[0])
    return Tables(
        graphs=_table(folder, "graphs") if whole_graphs else None,
        nodes=_table(folder, "nodes"),
        edges=_table(folder, "edges"),
    )


def _places(folder: Path, stem: str) -> list[Path]:
    return [p for e in ("csv", "parquet") if (p := folder / f"{stem}.{e}").is_file()]


def _table(folder: Path, stem: str) -> Table:
    places = _places(folder, stem)
    if not places:
        raise refusal(
            folder,
            f"has no {stem}.csv (nor {stem}.parquet): {wanted_tables(folder)}; write it"
            " as docs/own-data.md shows, or correct data-dir (on a site: data-path of"
            " --node-config)",
        )
    if len(places) > 1:
        raise refusal(folder, f"has {stem}.csv and {stem}.parquet; delete one of them")
    (path,) = places
    return _csv_table(path) if path.suffix == ".csv" else _parquet_table(path)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    def wrong(problem: str) -> DataError:
        return DataError(f"{path}, line 1: {problem}")

    if not columns:
        raise wrong("is empty; its first line must name the columns")
    if problem := odd_header(columns):
        raise wrong(problem)
    odd = next((c for c in columns if not c or not c.isprintable()), None)
    if odd is not None:
        raise wrong(
            f"column {columns.index(odd) + 1} has the name {odd!r}; give it a name of"
            " printable letters"
        )
    twice = next((c for c in columns if list(columns).count(c) > 1), None)
    if twice is not None:
        raise wrong(f"has two columns {twice!r}; rename one")
    near = next((c for c in columns if c.lower() == SPLIT != c), None)
    if near is not None:
        raise wrong(
            f"column {near!r} is not read as {SPLIT!r}: call it so if it says which"
            " rows train, validate and test, and give it another name if not"
        )


def _csv_table(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = [c.strip() for c in next(csv.reader(handle, strict=True), [])]
    except (OSError, ValueError, csv.Error) as error:
        raise no_csv(path, 1, error) from error
    _check_columns(path, header)
    return Table(
        name=path.name,
        files=(path,),
        columns=tuple(header),
        blocks=lambda: _csv_blocks(path, header),
    )


def _csv_blocks(path: Path, header: Sequence[str]) -> Iterator[Block]:
    """Read rows; lines that are empty are passed over."""
    line, rows = 1, list[list[str]]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            next(reader)
            line = reader.line_num
            while True:
                rows += islice(reader, BLOCK)  # keeps those before a broken row
                if not rows:
                    return
                lines = _lines(rows, line, reader.line_num)
                line, found, rows = reader.line_num, rows, []
                lines, found = _whole_rows(path, header, lines, found)
                if found:
                    yield Block(lines, _stripped(header, found))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        lines = _lines(rows, line)
        _whole_rows(path, header, lines, rows)  # what is wrong before it comes first
        raise no_csv(path, (lines[-1] if rows else line) + 1, error) from error


def _lines(rows: list[list[str]], before: int, last: int = 0) -> Sequence[int]:
    """Return the last line of each row, after line ``before``; cells may have several.

    ``last`` is the last row's if it is known; then rows of one line need no look.
    """
    if last - before == len(rows):
        return range(before + 1, last + 1)
    spans = (1 + sum(len(_NEWLINE.findall(cell)) for cell in row) for row in rows)
    return list(accumulate(spans, initial=before))[1:]


def _whole_rows(
    path: Path, header: Sequence[str], lines: Sequence[int], rows: list[list[str]]
) -> tuple[Sequence[int], list[list[str]]]:
    """Leave out empty lines; refuse rows with more or fewer cells than the header."""
    width = len(header)
    if set(map(len, rows)) == {width}:
        return lines, rows
    for line, cells in zip(lines, rows, strict=True):
        if len(cells) not in (0, width):
            raise DataError(
                f"{path}, line {line}: has {len(cells)} cell(s), but line 1 names"
                f" {width} column(s) ({', '.join(header)}); complete the line, and put"
                " cells with commas in quotes"
            )
    kept = [(line, cells) for line, cells in zip(lines, rows, strict=True) if cells]
    return [line for line, _ in kept], [cells for _, cells in kept]


def _stripped(header: Sequence[str], rows: list[list[str]]) -> dict[str, Sequence[str]]:
    columns = zip(*rows, strict=True)
    return {
        name: [cell.strip() for cell in column] if _has_space(column) else column
        for name, column in zip(header, columns, strict=True)
    }


def _has_space(cells: Sequence[str]) -> bool:
    """Whether a cell may have white space around it."""
    text = ",".join(cells)
    return text.split(None, 1) != [text]


def _parquet_table(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise refusal(
            path,
            "needs the package pyarrow, which is not installed: pip install pyarrow, or"
            " save the table as .csv",
        ) from error
    try:
        columns = [str(name).strip() for name in parquet.read_schema(path).names]
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise _no_parquet(path, error) from error
    _check_columns(path, columns)
    return Table(
        name=path.name,
        files=(path,),
        columns=tuple(columns),
        blocks=lambda: _parquet_blocks(path, columns),
        unit="row",
    )


def _no_parquet(
    path: Path, error: Exception, row: int = 1, column: str = ""
) -> DataError:
    place = f"{path}, row {row}" + (f", column {column!r}" if column else "")
    return DataError(
        f"{place}: cannot be read as Parquet: {error}; write it again, with"
        " columns of numbers, texts or truth values"
    )


def _parquet_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    import pyarrow
    from pyarrow import compute, parquet

    done, name = 0, ""
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BLOCK):
                cells = {}
                for name, column in zip(columns, batch.columns, strict=True):
                    texts = compute.fill_null(column.cast(pyarrow.string()), "")
                    kind = getattr(column.type, "value_type", column.type)
                    if pyarrow.types.is_boolean(kind):  # True, as CSV files have it
                        texts = compute.utf8_capitalize(texts)
                    cells[name] = [cell.strip() for cell in texts.to_pylist()]
                yield Block(range(done + 1, done + len(batch) + 1), cells)
                done, name = done + len(batch), ""
    except (OSError, ValueError, NotImplementedError) as error:
        raise _no_parquet(path, error, done + 1, name) from error
