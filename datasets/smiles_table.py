"""One CSV file of molecules: finding its columns, checking its cells."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import DataError

from .molecules import MoleculeBuilder, Molecules, list_all
from .tabular.cells import MIN_COUNT, TRUTH, Unknown, is_missing, readings
from .tabular.encode import LeftOut, encode_targets, first_few, read_numbers
from .tabular.rows import tell_mixed
from .tabular.schema_file import ALL, Schema
from .tabular.table import Rows, as_rows, check_columns, no_column, read_csv

_CURES = {
    "regression": "if that column holds no labels, name those that do in"
    " csv-label-columns; else correct it"
}
_CURES["binary"] = (
    f"{_CURES['regression']}; or set csv-label-kind to 'regression' where labels are"
    " any numbers"
)
_FEWEST_IDS, _DIGITS = 3, 18
_INDEX = "unnamed: 0"  # pandas' name for an index that was written without one
_ID_WORDS = ("id", "index", "no", "num", "nr", "number", "row", "cid")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*")


@dataclass(frozen=True)
class CsvFormat:
    """How a file is to be read: the settings ``csv-smiles-column`` and so on.

    ``label_columns`` "" or "*" takes every other column that holds numbers (see
    ``_holds_numbers``) and does not number the rows.
    """

    smiles_column: str
    label_columns: str
    bad_rows: str
    kind: str

    @classmethod
    def of(cls, settings: RunSettings) -> CsvFormat:
        """Take the format from the run's settings."""
        return cls(
            settings.csv_smiles_column,
            settings.csv_label_columns,
            settings.csv_bad_rows,
            settings.csv_label_kind,
        )


@dataclass(frozen=True, kw_only=True)
class CsvMolecules(Molecules):
    """Molecules of a CSV file, as cached.

    ``numbering`` are columns that count rows, ``unused`` further ones that are no
    labels; ``doubts`` name cells that may mean something else, and their share.
    """

    numbering: list[str]
    unused: list[str]
    remarks: list[str]


def build_from_csv(
    name: str,
    path: Path,
    form: CsvFormat,
    *,
    raw_sha256: str,
) -> CsvMolecules:
    """Read and convert one file, for a set called ``name``.

    Empty cells and marks such as NA are missing labels; empty lines are passed over.

    Raises
    ------
    DataError
        Naming the file and the line or column, if a column is missing or there twice,
        a label is not a number that ``form.kind`` allows, no usable row is left, or
        rows are bad that ``form.bad_rows`` refuses.
    """
    rows, odd = read_table(path)
    find_column(form.smiles_column, rows, "csv-smiles-column", path)
    tasks, ids = _label_columns(form, rows, odd, path)
    kind = Schema(dataset=name, target_kind=form.kind, targets=tuple(tasks))
    labels, flaws = encode_targets(kind, rows, cure=_CURES[form.kind])
    for at, column, text in flaws[:1]:
        raise DataError(f"{path}, line {rows.lines[at]}, column {column!r}: {text}")
    remarks = [
        note
        for task, cells in ((task, rows.cells[task]) for task in tasks)
        for note in Unknown.of(cells, read_numbers(cells)).notes(task, MIN_COUNT)
    ]
    builder = MoleculeBuilder()
    texts = rows.cells[form.smiles_column]
    kept = [at for at, t in enumerate(texts) if at not in odd and builder.add(t, at)]
    bad = sorted((rows.lines[at], why) for at, why in [*odd.items(), *builder.bad])
    named = first_few(list_all(bad, "line"))
    if not kept:
        raise DataError(
            f"{path} has no usable row; give a CSV file with a line of column names and"
            f" a line for each molecule{', got: ' * bool(bad)}{named}"
        )
    are_many = LeftOut("molecules", len(texts), len(bad)).is_much()
    if are_many or (bad and form.bad_rows == "refuse"):
        then = "" if are_many else ", or set csv-bad-rows to 'skip'"
        much = ", more than a third" if are_many else ""
        raise DataError(
            f"{len(bad)} of {len(texts)} rows of {path} cannot be used{much}: {named};"
            f" correct them{then}"
        )
    made = builder.finish(name, labels[kept], tasks, raw_sha256=raw_sha256, bad=bad)
    used = {form.smiles_column, *tasks, *ids}
    unused = {c: cells for c, cells in rows.cells.items() if c and c not in used}
    return CsvMolecules(
        **vars(made),
        numbering=ids,
        unused=list(unused),
        remarks=remarks + tell_mixed(unused),
    )


def read_table(path: Path) -> tuple[Rows, dict[int, str]]:
    """Read a file, and say what is wrong with rows of another width, by place.

    Such rows have empty cells.
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


def find_column(name: str, rows: Rows, key: str, path: Path) -> None:
    """Refuse a file without the column that the run-config key ``key`` names."""
    if name not in rows.cells:
        cure = f"correct {key} in the run config"
        raise no_column(str(path), name, list(rows.cells), cure)


def _label_columns(
    form: CsvFormat, rows: Rows, odd: Collection[int], path: Path
) -> tuple[list[str], list[str]]:
    """Find the columns of labels, and those that were not taken as they count rows."""
    smiles, header = form.smiles_column, list(rows.cells)
    names = [part.strip() for part in form.label_columns.split(",") if part.strip()]
    if names not in ([], [ALL]):
        for name in names:
            find_column(name, rows, "csv-label-columns", path)
        if smiles in names or len(set(names)) < len(names):
            raise DataError(
                "csv-label-columns must name each label column once and not the SMILES"
                f" column, got {form.label_columns!r}; correct it in the run config"
            )
        return names, []
    cells = {
        name: [cell for at, cell in enumerate(column) if at not in odd]
        for name, column in rows.cells.items()
        if name != smiles
    }
    found = [name for name in cells if _holds_numbers(cells[name], form.kind)]
    ids = [name for name in found if _is_id(name, cells[name])]
    labels = [name for name in found if name not in ids]
    if not labels and rows.lines:
        cure = "name the label columns in csv-label-columns"
        raise DataError(
            f"{path} has no column of numbers beside {smiles!r}"
            f"{', apart from those that count rows' * bool(ids)}; columns found:"
            f" {', '.join(map(repr, header))}; {cure}"
        )
    return labels, ids


def _is_id(name: str, cells: Sequence[str]) -> bool:
    """Whether a column numbers rows: different whole numbers, ascending or so named.

    A column without a name, as of an index, is none of labels either.
    """
    if not name:
        return True
    if len(cells) < _FEWEST_IDS or not all(c.isascii() and c.isdigit() for c in cells):
        return False
    numbers = [int(cell[:_DIGITS]) for cell in cells]
    ascends = all(a < b for a, b in pairwise(numbers))
    return ascends or (len(set(numbers)) == len(numbers) and _is_called_id(name))


def _is_called_id(name: str) -> bool:
    """Whether a column is called as those that number rows, as compound_id is."""
    words = ["", *_WORD.findall(name)]
    return name.lower() == _INDEX or words[-1].lower() in _ID_WORDS


def _holds_numbers(cells: Sequence[str], kind: str) -> bool:
    """Whether the first cell of a column, or half of its cells, are meant as numbers.

    Empty cells do not count. Cells such as "0,5" and ">10" are meant so, too, and are
    refused by their lines as labels. True and False are numbers if labels are binary.
    """
    known = [cell for cell in cells if not is_missing(cell)]
    if kind == "binary":
        known = ["1" if cell.lower() in TRUTH else cell for cell in known]
    many = 2 * sum(map(_is_meant_as_number, known)) >= len(known) > 0
    return bool(known) and (_is_meant_as_number(known[0]) or many)


def _is_meant_as_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return bool(readings(cell))
    return True
