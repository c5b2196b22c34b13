"""A user's own molecules: CSV files with a SMILES column and columns of labels.

One file is one client's data. ``data-dir``, or a site's ``data-path``, names either a
file or a folder with one file per client; which of the two makes no difference to the
client's graphs and splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.files import sha256_of

from ..cache import cache_root, open_or_build
from ..molecules import (
    SMILES_CSV,
    MoleculeBuilder,
    Molecules,
    add_all,
    fingerprint,
    list_all,
    warn_left_out,
    warn_once,
)
from ..splits import DECIDES, check_is_drawn, need_graphs
from ..tabular.cells import MIN_COUNT, TRUTH, is_missing, not_known, readings
from ..tabular.encode import (
    NO_ROLE,
    Flaw,
    LeftOut,
    encode_roles,
    encode_targets,
    first_few,
    read_numbers,
)
from ..tabular.schema_file import ALL, Schema
from ..tabular.table import (
    CORRECT_PLACE,
    SPLIT,
    Rows,
    is_csv,
    no_column,
    read_rows,
    unchanged,
)

_TABLE = 10  # part of every fingerprint: raise it when a file is read otherwise
_CURE = (
    "if that column holds no labels, name those that do in csv-label-columns; else"
    " correct it, or set csv-label-kind to 'regression' where labels are any numbers"
)


class CsvFormat(NamedTuple):
    """How a file is to be read: the settings ``csv-smiles-column`` and so on.

    ``label_columns`` "" or "*" takes every other column that holds numbers (see
    ``_holds_numbers``) and does not number the rows.
    """

    smiles_column: str
    label_columns: str
    bad_rows: str
    kind: str


def check_csv_settings(settings: RunSettings) -> None:
    """Refuse a run config that gives one file to several clients, or has classes."""
    if settings.csv_label_kind == "classes":
        raise ConfigError(
            f"csv-label-kind of dataset {SMILES_CSV!r} must be 'binary' or"
            " 'regression', got 'classes'; set it in the run config"
        )
    if settings.num_clients > 1 and is_csv(Path(settings.data_dir)):
        raise ConfigError(
            f"data-dir {settings.data_dir!r} is one file, the whole data of one client,"
            f" but num-clients is {settings.num_clients}; set data-dir to a"
            " folder with one CSV file for each client, or leave it empty and start"
            " each SuperNode with --node-config 'data-path=\"...\"'"
        )


def client_file(settings: RunSettings, client_id: int) -> Path:
    """Return the file that :func:`load_client_file` reads for a client."""
    files, _ = _files(settings.data_dir)
    return files[client_id % len(files)]


def load_client_file(settings: RunSettings, client_id: int) -> CsvMolecules:
    """Load the molecules of one client, memory-mapped, in the order of the file.

    ``data_dir`` is the client's file, or a folder whose ``.csv`` files, sorted by name,
    are those of the clients.

    Raises
    ------
    ConfigError
        No ``data_dir``, or a folder with another number of files than clients.
    DataError
        A file is wrong, files have different label columns, or the client has fewer
        than 3 molecules or no label.
    """
    files, is_folder = _files(settings.data_dir)
    if is_folder and len(files) != settings.num_clients:
        raise ConfigError(
            f"the folder {settings.data_dir} has {len(files)} .csv file(s), one for"
            f" each client, but num-clients is {settings.num_clients}; set"
            f" num-clients to {len(files)}"
        )
    form = CsvFormat(
        settings.csv_smiles_column,
        settings.csv_label_columns,
        settings.csv_bad_rows,
        settings.csv_label_kind,
    )
    sets = [load_csv(path, form, cache_dir=settings.cache_dir) for path in files]
    own = client_id if is_folder else 0
    is_guess = not settings.csv_label_columns.strip()
    _tell_columns(files[own], sets[own], is_guess=is_guess)
    if sets[own].has_split:
        check_is_drawn(settings, f"column 'split' of {files[own]}")
        warn_once(f"{files[own]}: column split {DECIDES[settings.held_out > 0]}")
    if bad := sets[own].bad:
        count = len(bad) + len(sets[own])
        words = f"{len(bad)} of {count} rows of {files[own]} cannot be used"
        warn_left_out(words, list_all(bad, "line"))
    for remark in sets[own].remarks:
        warn_once(f"{files[own]}: {remark}")
    need_graphs(len(sets[own]), client_id, "molecule", files[own])
    if np.isnan(sets[own].y).all():
        raise DataError(
            f"client {client_id} has no label at all: columns"
            f" {', '.join(sets[own].tasks)} of {files[own]} are empty; add labels, or"
            " leave this client out"
        )
    for path, found in zip(files, sets, strict=True):
        if found.tasks != sets[0].tasks:
            raise DataError(
                f"{path.name} has the label columns {found.tasks}, but {files[0].name}"
                f" has {sets[0].tasks}; name those that all have in csv-label-columns"
            )
    return sets[own]


def own_place(data_dir: str, what: str) -> Path:
    """Return the path that ``data_dir`` names, for each client ``what`` it must be.

    Raises
    ------
    ConfigError
        It is empty; or DataError, there is nothing.
    """
    if not data_dir:
        raise ConfigError(
            "the data set reads your own files, but data-dir is empty; set it to the"
            f" absolute path of {what} for each client, or start each SuperNode with"
            " --node-config 'data-path=\"...\"'"
        )
    path = Path(data_dir).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; {CORRECT_PLACE}")
    return path


def _files(data_dir: str) -> tuple[list[Path], bool]:
    """CSV files that can be seen, and whether they lie in a folder of several."""
    path = own_place(data_dir, "a CSV file, or of a folder with one")
    if path.is_file():
        return [path], False
    files = sorted(filter(is_csv, path.iterdir()))
    if not files:
        raise DataError(
            f"the folder {path} has no .csv file; put one into it for each client, or"
            f" {CORRECT_PLACE}"
        )
    return files, True


def _tell_columns(path: Path, found: CsvMolecules, *, is_guess: bool) -> None:
    """Log which columns of a file are labels, and which are not.

    It is told of cached files too: who starts a later run may be somebody else.
    """
    if found.numbering:
        named = ", ".join(name or "without a name" for name in found.numbering)
        warn_once(
            f"{path}: column(s) {named} count rows and are not taken for labels; if"
            " they are, name the label columns in csv-label-columns"
        )
    if found.unused:
        drawn = "; the split is drawn by split-seed and held-out" * (
            SPLIT in map(str.lower, found.unused)
        )
        warn_once(f"{path}: not used: column(s) {', '.join(found.unused)}{drawn}")
    if is_guess and (len(found.tasks) > 1 or found.unused):
        warn_once(
            f"{path}: column(s) {', '.join(map(repr, found.tasks))} hold numbers,"
            " nothing says which are labels, and all are predicted; name the label"
            f" columns, also unused ones, in csv-label-columns ({ALL!r} takes these)"
        )


def load_csv(path: Path, form: CsvFormat, *, cache_dir: str = "") -> CsvMolecules:
    """Load one file through the cache, which knows it by its content."""
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; check its permissions"
        ) from error
    entry = cache_root(cache_dir) / f"{SMILES_CSV}-{fingerprint(digest, form, _TABLE)}"

    def read(_: Path) -> CsvMolecules:
        with unchanged(path, digest, lambda: sha256_of(path)):
            return build_from_csv(SMILES_CSV, path, form, raw_sha256=digest)

    return open_or_build(entry, CsvMolecules, read)


@dataclass(frozen=True, kw_only=True)
class CsvMolecules(Molecules):
    """Molecules of a CSV file, as cached.

    ``numbering`` are columns that count rows, ``unused`` further ones that are no
    labels; ``remarks`` name cells that may mean something else, and their share.
    ``role`` is 0 for a molecule that trains, 1 validates, 2 tests, by column ``split``;
    all are -1 without it.
    """

    role: NDArray[np.int8]
    numbering: list[str]
    unused: list[str]
    remarks: list[str]

    @property
    def has_split(self) -> bool:
        """Whether the file has a column ``split``."""
        return bool((self.role != NO_ROLE).all())


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
    rows = read_rows(path)
    find_column(form.smiles_column, rows, "csv-smiles-column", path)
    tasks, ids = _label_columns(form, rows, path)
    kind = Schema(dataset=name, target_kind=form.kind, targets=tuple(tasks))
    flaws, wrong = list[Flaw](), list[Flaw]()
    labels = encode_targets(kind, rows, flaws, cure=_CURE)
    for at, column, text in flaws[:1]:
        raise DataError(f"{path}, line {rows.lines[at]}, column {column!r}: {text}")
    remarks = [rows.told] * bool(rows.told)
    remarks += [
        note
        for task, cells in ((task, rows.cells[task]) for task in tasks)
        for note in not_known(task, cells, MIN_COUNT, numbers=read_numbers(cells))
    ]
    role = np.full(len(rows.lines), NO_ROLE, np.int8)
    if SPLIT in rows.cells and SPLIT not in tasks:
        role = encode_roles(rows, wrong, may_miss=False)
        odd = {row: f"column {column!r} {text}" for row, column, text in wrong}
        rows = replace(rows, odd={**odd, **rows.odd})
    builder = MoleculeBuilder()
    kept, bad = add_all(builder, rows, form.smiles_column)
    named = first_few(list_all(bad, "line"))
    if not kept:
        raise DataError(
            f"{path} has no usable row; give a CSV file with a line of column names and"
            f" a line for each molecule{', got: ' * bool(bad)}{named}"
        )
    are_many = LeftOut("molecules", len(rows.lines), len(bad)).is_much()
    if are_many or (bad and form.bad_rows == "refuse"):
        then = "" if are_many else ", or set csv-bad-rows to 'skip'"
        much = ", more than a third" if are_many else ""
        raise DataError(
            f"{len(bad)} of {len(rows.lines)} rows of {path} cannot be used{much}:"
            f" {named};"
            f" correct them{then}"
        )
    made = builder.finish(name, labels[kept], tasks, raw_sha256=raw_sha256, bad=bad)
    used = {form.smiles_column, *tasks, *ids, SPLIT}
    return CsvMolecules(
        **vars(made),
        role=role[kept],
        numbering=ids,
        unused=[column for column in rows.cells if column and column not in used],
        remarks=remarks,
    )


def find_column(name: str, rows: Rows, key: str, path: Path) -> None:
    """Refuse a file without the column that the run-config key ``key`` names."""
    if name not in rows.cells:
        cure = f"correct {key} in the run config"
        raise no_column(str(path), name, list(rows.cells), cure)


def _label_columns(
    form: CsvFormat, rows: Rows, path: Path
) -> tuple[list[str], list[str]]:
    """Find the columns of labels, and those that were not taken as they count rows."""
    smiles = form.smiles_column
    names = [part.strip() for part in form.label_columns.split(",") if part.strip()]
    if names not in ([], [ALL]):
        for name in names:
            find_column(name, rows, "csv-label-columns", path)
        return list(dict.fromkeys(names)), []
    cells = {
        name: [cell for at, cell in enumerate(column) if at not in rows.odd]
        for name, column in rows.cells.items()
        if name not in (smiles, SPLIT)
    }
    found = [name for name in cells if _holds_numbers(cells[name], form.kind)]
    ids = [name for name in found if not name or _is_id(cells[name])]
    labels = [name for name in found if name not in ids]
    if not labels and rows.lines:
        raise DataError(
            f"{path} has no column of numbers beside {smiles!r}"
            f"{', apart from those that count rows' * bool(ids)}; columns found:"
            f" {', '.join(map(repr, rows.cells))}; name the label columns in"
            " csv-label-columns"
        )
    return labels, ids


def _is_id(cells: Sequence[str]) -> bool:
    """Whether a column numbers rows: whole numbers of many rows, all different."""
    is_whole = all(cell.isascii() and cell.isdigit() for cell in cells)
    return is_whole and MIN_COUNT <= len(cells) == len(set(cells))


def _holds_numbers(cells: Sequence[str], kind: str) -> bool:
    """Whether the first cell of a column, or half of its cells, are meant as numbers.

    Empty cells do not count. Cells such as "0,5" and ">10" are meant so, too, and are
    refused by their lines as labels. True and False are numbers if labels are binary.
    """
    known = [cell for cell in cells if not is_missing(cell)]
    truth = TRUTH if kind == "binary" else {}
    are_meant = [bool(readings(c)) or c.lower() in truth for c in known]
    return bool(known) and (are_meant[0] or 2 * sum(are_meant) >= len(known))
