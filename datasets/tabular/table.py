"""A user's table, CSV or Parquet, as columns of texts, and the tables of one folder.

Python's ``csv`` reads the files. pandas fills a line that is too short with empty
cells, takes the first column of lines that are too long for an index, and passes over
stray quotes. ``encode`` turns texts into numbers.

CSV files may be UTF-8 or, with a mark at their begin, UTF-16, and packed by gzip. The
first line says what separates cells: commas, semicolons or tabs.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from fedgraph_flwr.core.errors import DataError, nearest
from fedgraph_flwr.core.words import shortened

from .cells import with_points

_SOME = 1 << 12  # rows at once: Python's garbage collector is slow if many live
_MOST_KNOWN = 1 << 21  # words of a column
_NEWLINE = re.compile(r"\r\n|\r|\n")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_MARKS = {",": "','", ";": "';'", "\t": "tabs"}  # between cells
_ENDS = ("csv", "csv.gz", "parquet")  # of names of tables
csv.field_size_limit(2**31 - 1)  # a cell may be a page; 131,072 letters else
SPLIT = "split"  # column of roles
SAVE = "save it as UTF-8 text, cells separated by commas"
CORRECT_PLACE = "correct data-dir (on a site: data-path of --node-config)"


@dataclass(frozen=True)
class Rows:
    """Rows of a table: their lines in the file, and cells by column.

    ``odd`` says, by row, which lines have more or fewer cells than the header; their
    cells are empty. ``told`` says how the file was read, if not with commas and points.
    """

    lines: Sequence[int]
    cells: Mapping[str, Sequence[str]]
    odd: Mapping[int, str] = field(default_factory=dict)
    told: str = ""


@dataclass(frozen=True)
class Table:
    """One table of a folder, in its file, which messages call by its name.

    ``names`` are those of the columns of a CSV file without a header.
    """

    path: Path
    names: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> Rows:
        """All rows; the file is read once, when they are first asked for.

        Raises
        ------
        DataError
            Also of a line with more or fewer cells than the header.
        """
        found = read_rows(self.path, self.names)
        for row, why in found.odd.items():
            raise DataError(
                f"{self.path}, line {found.lines[row]}: has {why}; complete the line,"
                " and put cells with commas in quotes"
            )
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""
        return tuple(self.rows.cells)

    @property
    def name(self) -> str:
        """Name of its file."""
        return self.path.name

    def of(self, column: str) -> str:
        """Name a column with its file."""
        return f"{column} of {self.name}"

    def at(self, line: int, column: str = "") -> str:
        """Name a place: file, line (row, if the file has no lines), column."""
        unit = "row" if self.path.suffix == ".parquet" else "line"
        place = f"{self.name}, {unit} {line}"
        return f"{place}, column {column!r}" if column else place


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of one folder; ``graphs`` is None if it holds one graph."""

    graphs: Table | None
    nodes: Table
    edges: Table

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read."""
        return tuple(table.path for table in self._all)

    @property
    def told(self) -> list[str]:
        """How files were read, other than with commas and points."""
        return [f"{t.name}: {t.rows.told}" for t in self._all if t.rows.told]

    @property
    def _all(self) -> list[Table]:
        return [t for t in (self.graphs, self.nodes, self.edges) if t is not None]


def holds_tables(folder: Path, *, of_any_kind: bool = False) -> bool:
    """Whether a folder has tables itself, rather than folders of clients.

    A table of nodes is meant, or ``of_any_kind``.
    """
    stems = ("nodes", "edges", "graphs") if of_any_kind else ("nodes",)
    return any(_places(folder, stem) for stem in stems)


def wanted_tables(folder: Path) -> str:
    """Say which tables and columns a folder must have, and which files it has."""
    found = sorted(p.name for p in folder.glob("*.*") if p.is_file())
    return (
        "one graph is nodes.csv (columns node, label, and what describes a node) and"
        " edges.csv (source, target); whole graphs are graphs.csv (graph, and what is"
        " to be predicted), nodes.csv (graph, node, ...) and edges.csv (graph, source,"
        f" target); got {shortened(', '.join(found)) or 'no file'}: rename files and"
        " columns (files in TU's layout are read as tu:NAME)"
    )


def is_one_graph(folder: Path) -> bool:
    """Whether a folder has a table of nodes and none of graphs."""
    return any(_places(folder, "nodes")) and not any(_places(folder, "graphs"))


def find_tables(folder: Path, *, whole_graphs: bool) -> Tables:
    """Find the tables of one client.

    Its folder has ``nodes``, ``edges`` and, for whole graphs, ``graphs``, each as
    ``.csv``, ``.csv.gz`` or ``.parquet``.

    Raises
    ------
    DataError
        A file is missing, or there twice.
    """
    return Tables(
        graphs=_table(folder, "graphs") if whole_graphs else None,
        nodes=_table(folder, "nodes"),
        edges=_table(folder, "edges"),
    )


def _places(folder: Path, stem: str) -> list[Path]:
    return [p for e in _ENDS if (p := folder / f"{stem}.{e}").is_file()]


def _table(folder: Path, stem: str) -> Table:
    places = _places(folder, stem)
    if not places:
        raise DataError(
            f"{folder} has no {stem}.csv (nor .csv.gz, .parquet):"
            f" {wanted_tables(folder)}; write it as docs/own-data.md shows, or"
            f" {CORRECT_PLACE}"
        )
    if len(places) > 1:
        raise DataError(
            f"{folder} has {' and '.join(p.name for p in places)}; delete one of them"
        )
    return Table(places[0])


def no_column(place: str, name: str, columns: Iterable[str], cure: str) -> DataError:
    """Word that a column is missing, and which ones are there."""
    near = nearest(name, columns)
    hint = f" Did you mean {near!r}?" if near else ""
    return DataError(
        f"{place} has no column {name!r}.{hint} Columns found:"
        f" {', '.join(map(repr, columns))}; {cure}"
    )


def is_csv(path: Path) -> bool:
    """Whether a file is a CSV file by its name; one that can be seen."""
    name = path.name.lower()
    return name.endswith((".csv", ".csv.gz")) and not name.startswith(".")


def read_rows(path: Path, names: Sequence[str] = ()) -> Rows:
    """Read a table; columns and cells lose spaces around them.

    Empty lines of a CSV file are passed over, and the first other one is the header.
    A column may have no name, as an index that pandas writes. If commas do not separate
    the cells, columns of numbers may have decimal commas, which become points.

    Parameters
    ----------
    names : sequence of str
        Of the columns of a CSV file without a header.

    Raises
    ------
    DataError
        The file cannot be read, or its header names no columns, or two alike; or nobody
        can tell what separates cells, or what a comma in numbers means.
    """
    return _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path, names)


def _open(path: Path) -> TextIOWrapper:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    file = opened(path, "rb")
    is_wide = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return TextIOWrapper(file, "utf-16" if is_wide else "utf-8-sig", newline="")


def _mark(path: Path, first: str, num_cells: int) -> str:
    """Return what separates cells, by the first line, and their number if not 0."""
    bare = _QUOTED.sub("", first)
    found = [m for m in _MARKS if m in bare and num_cells in (0, bare.count(m) + 1)]
    if len(found) > 1 and not first.lower().startswith("sep="):
        raise DataError(
            f"{path}, line 1: has {' and '.join(_MARKS[m] for m in found)}, and nobody"
            " can tell which separates cells; put names that have one of them in"
            f" quotes, begin with a line of names if there is none, or {SAVE}"
        )
    return found[0] if found else ","


def _read_csv(path: Path, names: Sequence[str]) -> Rows:
    lines, odd, last = list[int](), dict[int, str](), 0
    found: dict[str, list[str]] = {}
    try:
        with _open(path) as handle:
            first = next((x for x in handle if x.strip("\r\n")), "")
            mark = _mark(path, first, len(names))
            handle.seek(0)
            reader = csv.reader(handle, strict=True, delimiter=mark)
            header = [*names] or [
                cell.strip() for cell in next(filter(None, reader), [])
            ]
            _check_columns(path, header, mark)
            found = {column: [] for column in header}

            def filled() -> Iterator[list[str]]:
                nonlocal last
                for cells in reader:
                    last = reader.line_num
                    if not cells:
                        continue
                    is_odd = len(cells) != len(header)
                    if is_odd:
                        why = f"{len(cells)} cells, the header has {len(header)}"
                        odd[len(lines)] = why
                    lines.append(last)
                    yield [""] * len(header) if is_odd else cells

            rows = filled()
            while some := list(islice(rows, _SOME)):
                for column, new in zip(
                    found.values(), zip(*some, strict=True), strict=True
                ):
                    column += map(str.strip, new)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise _no_csv(path, last + 1, error) from error
    if mark == ",":
        return Rows(lines, found, odd)
    told, flaw = with_points(found)
    if flaw:
        row, name, text = flaw
        raise DataError(f"{path}, line {lines[row]}, column {name!r}: {text}")
    commas = f"; decimal commas of {', '.join(told)} are read as points" * bool(told)
    return Rows(lines, found, odd, f"cells are separated by {_MARKS[mark]}{commas}")


def _read_parquet(path: Path) -> Rows:
    found: dict[str, list[str]] = {}
    name = ""
    try:
        import pyarrow
        from pyarrow import compute, parquet

        with parquet.ParquetFile(path) as file:
            columns = [str(name).strip() for name in file.schema_arrow.names]
            _check_columns(path, columns)
            found = {name: [] for name in columns}
            known: dict[str, dict[str, str]] = {name: {} for name in columns}
            for batch in file.iter_batches():
                for name, column in zip(columns, batch.columns, strict=True):
                    texts = compute.fill_null(column.cast(pyarrow.string()), "")
                    kind = getattr(column.type, "value_type", column.type)
                    if pyarrow.types.is_boolean(kind):  # True, as CSV files have it
                        texts = compute.utf8_capitalize(texts)
                    coded = texts.dictionary_encode()
                    words = map(str.strip, coded.dictionary.to_pylist())
                    shared = [*_as_known(words, known[name])]
                    found[name] += map(
                        shared.__getitem__, coded.indices.to_numpy().tolist()
                    )
                name = ""
    except ImportError as error:
        raise DataError(
            f"{path} needs the package pyarrow, which is not installed: pip install"
            " pyarrow, or save the table as .csv"
        ) from error
    except (OSError, ValueError, NotImplementedError) as error:
        row = min(map(len, found.values()), default=0) + 1
        place = f"{path}, row {row}" + (f", column {name!r}" if name else "")
        raise DataError(
            f"{place}: cannot be read as Parquet: {error}; write it again, with"
            " columns of numbers, texts or truth values"
        ) from error
    return Rows(range(1, len(found[columns[0]]) + 1), found)


def _as_known(words: Iterable[str], known: dict[str, str]) -> Iterator[str]:
    """Equal words as one object: of ten million cells few may differ."""
    for word in words:
        if len(known) < _MOST_KNOWN:
            yield known.setdefault(word, word)
        else:
            yield known.get(word, word)


def _check_columns(path: Path, columns: Sequence[str], mark: str = ",") -> None:
    """Refuse a first line that names no columns, or two alike."""
    odd = [c for c in columns if not c.isprintable()]
    twice = [c for c in columns if columns.count(c) > 1]
    if not columns:
        wrong = "is empty; its first line must name the columns"
    elif columns[0].lower().startswith("sep="):
        wrong = (
            f"is {mark.join(columns)!r}, for one program alone; delete it, and {SAVE}"
        )
    elif len(columns) == 1 and "|" in columns[0]:
        wrong = f"the column {columns[0]!r} has '|' in its name; {SAVE}"
    elif odd:
        wrong = f"column {columns.index(odd[0]) + 1} has the name {odd[0]!r}; give it a"
        wrong += " name of printable letters"
    elif twice:
        wrong = f"has two columns {twice[0]!r}; rename one"
    else:
        return
    raise DataError(f"{path}, line 1: {wrong}")


@contextmanager
def unchanged(place: Path, before: str, digest: Callable[[], str]) -> Iterator[None]:
    """Refuse what was read of files whose digest is another after it than before.

    Raises
    ------
    DataError
        At the end.
    """
    yield
    if digest() != before:
        raise DataError(
            f"{place} has changed while it was read, so that what was read may be of"
            " both versions; start again once the files are complete"
        )


@contextmanager
def needing_permission() -> Iterator[None]:
    """Word that the user of this process may not read a file or folder.

    An error that names none, as a plug-in may raise, passes as it is.
    """
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        raise DataError(
            f"the user of this process has no permission for {error.filename}; give it"
            " for that path and the folders above it, by chown or chmod"
        ) from error


def _no_csv(path: Path, line: int, error: Exception) -> DataError:
    """Word that a line of a text file cannot be read."""
    if isinstance(error, PermissionError):
        with needing_permission():
            raise error
    if isinstance(error, UnicodeDecodeError):  # of many lines that a reader took in
        with _open(path) as handle:
            before = bytes(handle.buffer.read())
            try:
                before.decode(handle.encoding)
            except UnicodeDecodeError as wrong:
                before, error = before[: wrong.start], wrong
        text = before.decode(handle.encoding, "replace")
        line = len(_NEWLINE.findall(text)) + 1
    return DataError(f"{path}, line {line}: cannot be read as CSV: {error}; {SAVE}")
