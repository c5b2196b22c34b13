"""A user's table as columns of texts, and the tables of one folder.

Python's ``csv`` reads the files. pandas fills a line that is too short with empty
cells, takes the first column of lines that are too long for an index, and passes over
stray quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from fedgraph_flwr.core.errors import DataError, nearest

_SOME = 1 << 12  # rows at once: Python's garbage collector is slow if many live
_NEWLINE = re.compile(rb"\r\n|\r|\n")
csv.field_size_limit(2**31 - 1)  # a cell may be a page; 131,072 letters else
SAVE = "save it as UTF-8 text, cells separated by commas"


@dataclass(frozen=True)
class Rows:
    """Rows of a table: their lines in the file, and cells by column."""

    lines: Sequence[int]
    cells: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Table:
    """One table.

    Parameters
    ----------
    path : Path
        Its file, which messages call by its name.
    columns : tuple of str
    read : callable
        Reads the file.
    unit : str
        What a row's number counts: "line", or "row" where a file has no lines.
    """

    path: Path
    columns: tuple[str, ...]
    read: Callable[[], Rows]
    unit: str = "line"

    @property
    def name(self) -> str:
        """Name of its file."""
        return self.path.name

    @cached_property
    def rows(self) -> Rows:
        """All rows; the file is read once, when they are first asked for."""
        return self.read()

    def of(self, column: str) -> str:
        """Name a column with its file."""
        return f"{column} of {self.name}"

    def at(self, line: int, column: str = "") -> str:
        """Name a place: file, line, column."""
        place = f"{self.name}, {self.unit} {line}"
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
        found = (self.graphs, self.nodes, self.edges)
        return tuple(table.path for table in found if table is not None)


def no_column(place: str, name: str, columns: Sequence[str], cure: str) -> DataError:
    """Word that a column is missing, and which ones are there."""
    near = nearest(name, columns)
    hint = f" Did you mean {near!r}?" if near else ""
    return DataError(
        f"{place} has no column {name!r}.{hint} Columns found:"
        f" {', '.join(map(repr, columns))}; {cure}"
    )


def read_csv(path: Path, *, may_vary: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Read the rows of a CSV file, each with the number of its last line.

    Empty lines are passed over, and the first other one is the header, without spaces
    around names.

    Raises
    ------
    DataError
        The file cannot be read as CSV, or a row has more or fewer cells than the first,
        unless these ``may_vary``.
    """
    line, first = 0, list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            for cells in reader:
                line = reader.line_num
                if not cells:
                    continue
                if not first:
                    first = cells = [cell.strip() for cell in cells]
                if len(cells) != len(first) and not may_vary:
                    raise DataError(
                        f"{path}, line {line}: has {len(cells)} cell(s), but line 1 has"
                        f" {len(first)} ({', '.join(first)}); complete the line, and"
                        " put cells with commas in quotes"
                    )
                yield line, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _no_csv(path, line + 1, error) from error


def as_rows(columns: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]) -> Rows:
    """Turn rows, each with its line, into columns; cells lose spaces around them."""
    rows, lines = iter(rows), list[int]()
    found: dict[str, list[str]] = {column: [] for column in columns}
    while some := list(islice(rows, _SOME)):
        numbers, cells = zip(*some, strict=True)
        lines += numbers
        for column, new in zip(found.values(), zip(*cells, strict=True), strict=True):
            column += map(str.strip, new)
    return Rows(lines, found)


def check_columns(
    path: Path, columns: Sequence[str], *, may_lack: bool = False
) -> None:
    """Refuse a first line that names no columns, or two alike.

    With ``may_lack`` a column may have no name, as an index that pandas writes.
    """
    mark = next((m for m in ";\t|" if len(columns) == 1 and m in columns[0]), "")
    odd = [c for c in columns if not c.isprintable() or not (c or may_lack)]
    twice = [c for c in columns if list(columns).count(c) > 1]
    if not columns:
        wrong = "is empty; its first line must name the columns"
    elif columns[0].lower().startswith("sep="):
        wrong = (
            f"is {','.join(columns)!r}, for one program alone; delete it, and {SAVE}"
        )
    elif mark:
        wrong = f"the column {columns[0]!r} has {mark!r} in its name; {SAVE}"
    elif odd:
        wrong = f"column {columns.index(odd[0]) + 1} has the name {odd[0]!r}; give it a"
        wrong += " name of printable letters"
    elif twice:
        wrong = f"has two columns {twice[0]!r}; rename one"
    else:
        return
    raise DataError(f"{path}, line 1: {wrong}")


def read_uneven(path: Path) -> tuple[Rows, dict[int, str]]:
    """Read a CSV file, and say what is wrong with rows of another width, by place.

    Such rows have empty cells. A column may have no name, as an index of pandas.
    """
    read = read_csv(path, may_vary=True)
    _, columns = next(read, (0, []))
    check_columns(path, columns, may_lack=True)
    odd: dict[int, str] = {}

    def filled() -> Iterator[tuple[int, list[str]]]:
        for at, (line, cells) in enumerate(read):
            if len(cells) != len(columns):
                odd[at] = f"{len(cells)} cells, the header has {len(columns)}"
            yield line, [""] * len(columns) if at in odd else cells

    return as_rows(columns, filled()), odd


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

    Raises
    ------
    DataError
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
        try:
            path.read_bytes().decode()
        except UnicodeDecodeError as wrong:
            line, error = len(_NEWLINE.findall(wrong.object[: wrong.start])) + 1, wrong
    return DataError(f"{path}, line {line}: cannot be read as CSV: {error}; {SAVE}")
