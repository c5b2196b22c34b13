"""One CSV file of molecules: finding its columns, checking its cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import DataError

from .molecules import MoleculeBuilder, Molecules, list_all
from .tabular.blocks import check_columns, no_column, read_csv
from .tabular.cells import TRUTH, is_missing, readings
from .tabular.columns import MIN_COUNT, Unknown
from .tabular.encode import LeftOut, first_few, meaning, read_numbers
from .tabular.rows import tell_mixed
from .tabular.schema_file import ALL

_FEWEST_IDS, _DIGITS = 3, 18
_INDEX = "unnamed: 0"  # pandas' name for an index that was written without one
_ID_WORDS = ("id", "index", "no", "num", "nr", "number", "row", "cid")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*")
Record = tuple[int, list[str]]  # line number in the file, cells


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
    header, records = read_table(path)
    smiles_at = find_column(form.smiles_column, header, "csv-smiles-column", path)
    labels_at, ids = _label_columns(form, header, records, smiles_at, path)
    tasks = [header[at] for at in labels_at]
    width, lines = len(header), [line for line, _ in records]
    whole = [(row, c) for row, (_, c) in enumerate(records) if len(c) == width]
    odd = [
        (n, f"{len(c)} cells, the header has {width}")
        for n, c in records
        if len(c) != width
    ]
    labels = np.empty((len(whole), len(tasks)), np.float32)
    remarks: list[str] = []
    for task, at in enumerate(labels_at):
        texts, found = [cells[at].strip() for _, cells in whole], Unknown()
        values = read_numbers(texts, truth=form.kind == "binary")
        with np.errstate(over="ignore"):  # as float32, which models learn
            labels[:, task] = values
        fits = np.isfinite(labels[:, task])
        if form.kind == "binary":
            fits = np.isin(values, (0, 1))
        for wrong in np.flatnonzero(~fits & ~np.isnan(values))[:1].tolist():
            place = f"{path}, line {lines[whole[wrong][0]]}, column {header[at]!r}"
            raise _no_label(place, whole[wrong][1][at], form.kind)
        found.add(texts, values)
        remarks += found.notes(header[at], MIN_COUNT)
    builder = MoleculeBuilder()
    is_kept = [builder.add(cells[smiles_at].strip(), row) > 0 for row, cells in whole]
    bad = sorted([*odd, *((lines[row], why) for row, why in builder.bad)])
    rows = first_few(list_all(bad, "line"))
    if not any(is_kept):
        raise DataError(
            f"{path} has no usable row; give a CSV file with a line of column names and"
            f" a line for each molecule{', got: ' * bool(bad)}{rows}"
        )
    are_many = LeftOut("molecules", len(records), len(bad)).is_much()
    if are_many or (bad and form.bad_rows == "refuse"):
        then = "" if are_many else ", or set csv-bad-rows to 'skip'"
        much = ", more than a third" if are_many else ""
        raise DataError(
            f"{len(bad)} of {len(records)} rows of {path} cannot be used{much}: {rows};"
            f" correct them{then}"
        )
    made = builder.finish(name, labels[is_kept], tasks, raw_sha256=raw_sha256, bad=bad)
    used = {smiles_at, *labels_at, *ids}
    unused = [at for at, name in enumerate(header) if name and at not in used]
    mixed = {header[at]: {cells[at] for _, cells in whole} for at in unused}
    return CsvMolecules(
        **vars(made),
        numbering=[header[at] for at in ids],
        unused=list(mixed),
        remarks=remarks + tell_mixed(mixed),
    )


def read_table(path: Path) -> tuple[list[str], list[Record]]:
    """Read column names, and the other lines that are not empty."""
    rows = read_csv(path, may_vary=True)
    _, header = next(rows, (0, []))
    check_columns(path, header, may_lack=True)
    return header, list(rows)


def find_column(name: str, header: Sequence[str], key: str, path: Path) -> int:
    """Find a column by its name, which the run-config key ``key`` gave."""
    if name in header:
        return header.index(name)
    cure = f"correct {key} in the run config"
    raise no_column(str(path), name, header, cure)


def _label_columns(
    form: CsvFormat,
    header: Sequence[str],
    records: Sequence[Record],
    smiles_at: int,
    path: Path,
) -> tuple[list[int], list[int]]:
    """Find the columns of labels, and those that were not taken as they count rows."""
    names = [part.strip() for part in form.label_columns.split(",") if part.strip()]
    if names not in ([], [ALL]):
        found = [find_column(n, header, "csv-label-columns", path) for n in names]
        if smiles_at in found or len(set(found)) < len(found):
            raise DataError(
                "csv-label-columns must name each label column once and not the SMILES"
                f" column, got {form.label_columns!r}; correct it in the run config"
            )
        return found, []
    found = [
        at
        for at in range(len(header))
        if at != smiles_at and _holds_numbers(at, records, form.kind)
    ]
    ids = [at for at in found if _is_id(header[at], at, records)]
    found = [at for at in found if at not in ids]
    if not found and records:
        cure = "name the label columns in csv-label-columns"
        raise DataError(
            f"{path} has no column of numbers beside {header[smiles_at]!r}"
            f"{', apart from those that count rows' * bool(ids)}; columns found:"
            f" {', '.join(map(repr, header))}; {cure}"
        )
    return found, ids


def _is_id(name: str, at: int, records: Sequence[Record]) -> bool:
    """Whether a column numbers rows: different whole numbers, ascending or so named.

    A column without a name, as of an index, is none of labels either.
    """
    if not name:
        return True
    cells = [cells[at].strip() for _, cells in records if at < len(cells)]
    if len(cells) < _FEWEST_IDS or not all(c.isascii() and c.isdigit() for c in cells):
        return False
    numbers = [int(cell[:_DIGITS]) for cell in cells]
    ascends = all(a < b for a, b in pairwise(numbers))
    return ascends or (len(set(numbers)) == len(numbers) and _is_called_id(name))


def _is_called_id(name: str) -> bool:
    """Whether a column is called as those that number rows, as compound_id is."""
    words = ["", *_WORD.findall(name)]
    return name.lower() == _INDEX or words[-1].lower() in _ID_WORDS


def _holds_numbers(at: int, records: Sequence[Record], kind: str) -> bool:
    """Whether the first cell of a column, or half of its cells, are meant as numbers.

    Empty cells do not count. Cells such as "0,5" and ">10" are meant so, too, and are
    refused by their lines as labels. True and False are numbers if labels are binary.
    """
    cells = [c for _, row in records if at < len(row) and (c := row[at].strip())]
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


def _no_label(place: str, cell: str, kind: str) -> DataError:
    """Word that a cell is no label."""
    allowed, then = "a finite number", ""
    if kind == "binary":
        allowed = "0 or 1"
        then = "; or set csv-label-kind to 'regression' where labels are any numbers"
    must = f"a label must be {allowed}, or empty where it is missing"
    return DataError(
        f"{place}: {must}, got {cell!r}{meaning(cell.strip())}; if that column holds no"
        f" labels, name those that do in csv-label-columns; else correct it{then}"
    )
