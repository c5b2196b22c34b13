"""Users' tables, read in blocks of rows: CSV, Parquet, and files in TU's layout.

Everything comes out as text, cell by cell; ``encode`` turns it into numbers. Blocks
keep the memory of a file of millions of cells small. Small blocks are also read faster:
Python's garbage collector visits rows that live longer again and again.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path

from fedgraph_flwr.errors import DataError

_BLOCK = 1 << 12  # rows
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SAVE = "save it as UTF-8 text, cells separated by commas"
_TU_FILE = re.compile(r"(.+)_graph_indicator\.txt")
_TU_UNUSED = ("edge_labels", "edge_attributes", "graph_attributes")


@dataclass(frozen=True)
class Block:
    """Some rows of a table: their lines in the file, and cells by column."""

    lines: Sequence[int]
    cells: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Parameters
    ----------
    name : str
        Of its file, as messages call it.
    files : tuple of Path
        What it is read from.
    columns : tuple of str
    blocks : callable
        Begins to read; gives the rows in order.
    file_of : mapping
        Other files' names, of columns that are not in the file ``name``.
    unit : str
        What a row's number counts: "line", or "row" where a file has no lines.
    categorical : tuple of str
        Columns that hold categories by the layout, even if these are numbers.
    """

    name: str
    files: tuple[Path, ...]
    columns: tuple[str, ...]
    blocks: Callable[[], Iterator[Block]]
    file_of: Mapping[str, str] = field(default_factory=dict)
    unit: str = "line"
    categorical: tuple[str, ...] = ()

    def at(self, line: int, column: str = "") -> str:
        """Name a place: file, line, column."""
        place = f"{self.file_of.get(column, self.name)}, {self.unit} {line}"
        return f"{place}, column {column!r}" if column else place


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of one folder; ``graphs`` is None if it holds one graph.

    ``unused`` names files whose content is not used.
    """

    graphs: Table | None
    nodes: Table
    edges: Table
    unused: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read."""
        found = self.graphs.files if self.graphs else ()
        return tuple(dict.fromkeys((*found, *self.nodes.files, *self.edges.files)))


def holds_tables(folder: Path) -> bool:
    """Whether a folder has tables of its own, and is no folder of clients' folders."""
    return any(_places(folder, "nodes")) or bool(_tu_names(folder))


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
    if whole_graphs and (names := _tu_names(folder)):
        if len(names) > 1 or any(_places(folder, "nodes")):
            what = [f"{name}_graph_indicator.txt" for name in names]
            what += [p.name for p in _places(folder, "nodes")]
            raise _refusal(
                folder, f"has more than one set of graphs ({', '.join(what)}); keep one"
            )
        return _tu_tables(folder, names[0])
    return Tables(
        graphs=_table(folder, "graphs") if whole_graphs else None,
        nodes=_table(folder, "nodes"),
        edges=_table(folder, "edges"),
    )


def _refusal(path: Path, problem: str, public: str = "") -> DataError:
    return DataError(
        f"{path} {problem}",
        public=public or "the folder of a client lacks tables that it needs",
    )


def _places(folder: Path, stem: str) -> list[Path]:
    return [p for e in ("csv", "parquet") if (p := folder / f"{stem}.{e}").is_file()]


def _table(folder: Path, stem: str) -> Table:
    places = _places(folder, stem)
    if not places:
        raise _refusal(
            folder,
            f"has no {stem}.csv (nor {stem}.parquet); write it as docs/own-data.md"
            " shows, or correct data-dir (on a site: data-path of --node-config)",
            f"a client's folder has no {stem}.csv",
        )
    if len(places) > 1:
        raise _refusal(folder, f"has {stem}.csv and {stem}.parquet; delete one of them")
    (path,) = places
    return _csv_table(path) if path.suffix == ".csv" else _parquet_table(path)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    def wrong(problem: str, public: str) -> DataError:
        return DataError(
            f"{path}, line 1: {problem}", public=f"{path.name}, line 1: {public}"
        )

    if not columns:
        words = "is empty; its first line must name the columns"
        raise wrong(words, words)
    if len(columns) == 1 and (mark := next((m for m in ";\t|" if m in columns[0]), "")):
        raise wrong(
            f"the column {columns[0]!r} has {mark!r} in its name; {_SAVE}", _SAVE
        )
    odd = next((c for c in columns if not c or not c.isprintable()), None)
    if odd is not None:
        raise wrong(
            f"column {columns.index(odd) + 1} has the name {odd!r}; give it a name of"
            " printable letters",
            "a column has no printable name",
        )
    twice = next((c for c in columns if list(columns).count(c) > 1), None)
    if twice is not None:
        raise wrong(f"has two columns {twice!r}; rename one", "two columns of one name")


def _csv_table(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = [c.strip() for c in next(csv.reader(handle, strict=True), [])]
    except (OSError, ValueError, csv.Error) as error:
        raise _no_csv(path, 1, error) from error
    _check_columns(path, header)
    return Table(
        name=path.name,
        files=(path,),
        columns=tuple(header),
        blocks=lambda: _csv_blocks(path, header),
    )


def _no_csv(path: Path, line: int, error: Exception) -> DataError:
    return DataError(
        f"{path}, line {line}: cannot be read as CSV: {error}; {_SAVE}",
        public=f"{path.name}, line {line}: cannot be read as CSV; {_SAVE}",
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
                rows += islice(reader, _BLOCK)  # keeps those before a broken row
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
        raise _no_csv(path, (lines[-1] if rows else line) + 1, error) from error


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
                " cells with commas in quotes",
                public=f"{path.name}, line {line}: has more or fewer cells than line 1",
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
        raise _refusal(
            path,
            "needs the package pyarrow, which is not installed: pip install pyarrow, or"
            " save the table as .csv",
            f"{path.name} needs the package pyarrow",
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


def _no_parquet(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}, row 1: cannot be read as Parquet: {error}; write it again, with"
        " columns of numbers, texts or truth values",
        public=f"{path.name} cannot be read as Parquet",
    )


def _parquet_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    import pyarrow
    from pyarrow import compute, parquet

    done = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BLOCK):
                cells = {}
                for name, column in zip(columns, batch.columns, strict=True):
                    if pyarrow.types.is_boolean(column.type):
                        column = column.cast(pyarrow.int8())
                    texts = compute.fill_null(column.cast(pyarrow.string()), "")
                    cells[name] = [cell.strip() for cell in texts.to_pylist()]
                yield Block(range(done + 1, done + len(batch) + 1), cells)
                done += len(batch)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _no_parquet(path, error) from error


# --- TU's layout: a file per column, without names; numbers of lines are names ---


def _tu_names(folder: Path) -> list[str]:
    try:
        found = [_TU_FILE.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(match[1] for match in found if match)


def _tu_tables(folder: Path, name: str) -> Tables:
    def path(kind: str) -> Path:
        return folder / f"{name}_{kind}.txt"

    for kind in ("A", "graph_indicator", "graph_labels"):
        if not path(kind).is_file():
            raise _refusal(folder, f"has no {path(kind).name}; add it")
    graph_of = [row[0] for _, row in _tu_rows(path("graph_indicator"), 1)]
    optional = [k for k in ("node_labels", "node_attributes") if path(k).is_file()]
    widths = {kind: _tu_width(path(kind)) for kind in optional}
    names = {
        kind: [kind[:-1] if n == 1 else f"{kind[:-1]}_{i}" for i in range(1, n + 1)]
        for kind, n in widths.items()
    }
    columns = [column for kind in optional for column in names[kind]]

    def nodes() -> Iterator[Block]:
        parts = [path("graph_indicator"), *(path(kind) for kind in optional)]
        rows = _parallel(parts, [1, *widths.values()])
        yield from _tu_blocks(
            ("graph", "node", *columns),
            ((n, [r[0], str(n), *r[1:]]) for n, r in rows),
        )

    def edges() -> Iterator[Block]:
        rows = _tu_rows(path("A"), 2)
        yield from _tu_blocks(
            ("graph", "source", "target"),
            ((n, [_graph_of(r[0], graph_of, path("A"), n), *r]) for n, r in rows),
        )

    def graphs() -> Iterator[Block]:
        rows = _tu_rows(path("graph_labels"), 1)
        yield from _tu_blocks(("graph", "label"), ((n, [str(n), *r]) for n, r in rows))

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
        unused=tuple(path(k).name for k in _TU_UNUSED if path(k).is_file()),
    )


def _graph_of(node: str, graph_of: Sequence[str], path: Path, line: int) -> str:
    """Graph of an edge; files in TU's layout give the graph of each node only."""
    last = len(graph_of)
    if node.isascii() and node.isdigit() and 1 <= int(node[:18]) <= last:
        return graph_of[int(node) - 1]
    raise DataError(
        f"{path}, line {line}: a node must be a number from 1 to {last}, the lines of"
        f" graph_indicator, got {node!r}; correct it",
        public=f"{path.name}, line {line}: a node is none of graph_indicator",
    )


def _tu_width(path: Path) -> int:
    with path.open(encoding="utf-8", errors="replace") as handle:
        return handle.readline().count(",") + 1


def _tu_rows(path: Path, width: int) -> Iterator[tuple[int, list[str]]]:
    line = 0
    try:
        with path.open(encoding="utf-8") as handle:
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
        raise _no_csv(path, line + 1, error) from error


def _parallel(
    paths: Sequence[Path], widths: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Read files side by side; all must have as many lines as the first."""
    readers = [_tu_rows(path, width) for path, width in zip(paths, widths, strict=True)]
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


def _tu_blocks(
    columns: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Block]:
    while some := list(islice(rows, _BLOCK)):
        lines, cells = zip(*some, strict=True)
        yield Block(
            lines, dict(zip(columns, map(list, zip(*cells, strict=True)), strict=True))
        )
