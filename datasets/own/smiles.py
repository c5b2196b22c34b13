"""A user's own molecules: CSV files with a SMILES column and columns of labels.

One file is one client's data. ``data-dir``, or a site's ``data-path``, names either a
file or a folder with one file per client; which of the two makes no difference to the
client's graphs and splits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.files import sha256_of

from ..cache import cache_root, hint_of_near, open_or_build
from ..molecules import (
    LEFT_OUT,
    SMILES_CSV,
    fingerprint,
    list_all,
    warn_left_out,
    warn_once,
)
from ..smiles_table import CsvFormat, CsvMolecules, build_from_csv
from ..splits import need_graphs
from ..tabular.schema_file import ALL, SPLIT
from ..tabular.table import unchanged
from .folder_tables import CORRECT_PLACE

log = logging.getLogger("flwr.fedgraph")

_TABLE = 8  # part of every fingerprint: raise it when a file is read otherwise


def check_csv_settings(settings: RunSettings) -> None:
    """Refuse a run config that gives one file to several clients, or has classes."""
    if settings.csv_label_kind == "classes":
        raise ConfigError(
            f"csv-label-kind of dataset {SMILES_CSV!r} must be 'binary' or"
            " 'regression', got 'classes'; set it in the run config"
        )
    if settings.num_clients > 1 and Path(settings.data_dir).suffix.lower() == ".csv":
        raise ConfigError(
            f"data-dir {settings.data_dir!r} is one file, the whole data of one client,"
            f" but num-clients is {settings.num_clients}; set data-dir to a"
            " folder with one CSV file for each client, or leave it empty and start"
            " each SuperNode with --node-config 'data-path=\"...\"'"
        )


def client_file(settings: RunSettings, client_id: int) -> Path:
    """Return the file that :func:`load_client_file` reads for a client."""
    files, is_folder = _files(settings.data_dir)
    return files[client_id if is_folder else 0]


def load_client_file(settings: RunSettings, client_id: int) -> CsvMolecules:
    """Load the molecules of one client, memory-mapped, in the order of the file.

    ``data_dir`` is the client's file, or a folder whose ``.csv`` files, sorted by name,
    are those of the clients.

    Raises
    ------
    ConfigError
        No ``data_dir``, or a folder with another number of files than clients.
    DataError
        A file is wrong, files have different label columns, a task has no label in any
        of them, or the client has fewer than 3 molecules or no label.
    """
    files, is_folder = _files(settings.data_dir)
    if is_folder and len(files) != settings.num_clients:
        raise ConfigError(
            f"the folder {settings.data_dir} has {len(files)} .csv file(s), one for"
            f" each client, but num-clients is {settings.num_clients}; set"
            f" num-clients to {len(files)}"
        )
    form = CsvFormat.of(settings)
    sets = [load_csv(path, form, cache_dir=settings.cache_dir) for path in files]
    own = client_id if is_folder else 0
    columns = sets[own].tasks, sets[own].numbering, sets[own].unused
    is_guess = not settings.csv_label_columns.strip()
    _tell_columns(files[own], *map(tuple, columns), is_guess=is_guess)
    if bad := sets[own].bad:
        count = len(bad) + len(sets[own])
        words = f"{len(bad)} of {count} rows of {files[own]} cannot be used"
        warn_left_out(words, list_all(bad, "line"))
    for remark in sets[own].remarks:
        warn_once(f"{files[own]}: {remark}", about=LEFT_OUT)
    _check_client(sets[own], client_id, files[own])
    are_all = len(sets) == settings.num_clients
    _check_tasks(files, sets, settings.data_dir, are_all=are_all)
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
        raise DataError(
            f"there is no file or folder {path}{hint_of_near(path)}; {CORRECT_PLACE}"
        )
    return path


def _files(data_dir: str) -> tuple[list[Path], bool]:
    """CSV files that can be seen, and whether they lie in a folder of several."""
    path = own_place(data_dir, "a CSV file, or of a folder with one")
    if path.is_file():
        return [path], False
    found = (p for p in path.iterdir() if p.suffix.lower() == ".csv")
    files = sorted(p for p in found if not p.name.startswith("."))
    if not files:
        raise DataError(
            f"the folder {path} has no .csv file; put one into it for each client, or"
            f" {CORRECT_PLACE}"
        )
    return files, True


@cache
def _tell_columns(
    path: Path,
    labels: tuple[str, ...],
    ids: tuple[str, ...],
    unused: tuple[str, ...],
    *,
    is_guess: bool,
) -> None:
    """Log once per process which columns of a file are labels, and which are not.

    It is told of cached files too: who starts a later run may be somebody else.
    """
    if ids:
        named = ", ".join(name or "without a name" for name in ids)
        log.warning(
            f"{path}: column(s) {named} count rows and are not taken for labels; if"
            " they are, name the label columns in csv-label-columns"
        )
    if unused:
        drawn = "; the split is drawn by split-seed and held-out" * (
            SPLIT in map(str.lower, unused)
        )
        log.warning(f"{path}: not used: column(s) {', '.join(unused)}{drawn}")
    if is_guess and (len(labels) > 1 or unused):
        log.warning(
            f"{path}: column(s) {', '.join(map(repr, labels))} hold numbers, nothing"
            " says which are labels, and all are predicted; name the label columns,"
            f" also unused ones, in csv-label-columns ({ALL!r} takes these)"
        )
    log.info("%s: labels are columns %s", path, ", ".join(labels))


def _check_tasks(
    files: Sequence[Path], sets: Sequence[CsvMolecules], place: str, *, are_all: bool
) -> None:
    """Refuse files of unlike labels and, if they ``are_all``, a task without any."""
    tasks = sets[0].tasks
    for path, found in zip(files, sets, strict=True):
        if found.tasks != tasks:
            raise DataError(
                f"{path.name} has the label columns {found.tasks}, but {files[0].name}"
                f" has {tasks}; name those that all have in csv-label-columns"
            )
    missing = np.all([np.isnan(found.y).all(axis=0) for found in sets], axis=0)
    if are_all and missing.any():  # else others, elsewhere, may have labels
        empty = [tasks[at] for at in np.flatnonzero(missing)]
        raise DataError(
            f"no molecule in {place} has a label in column(s) {', '.join(empty)};"
            " leave them out of csv-label-columns"
        )


def _check_client(molecules: CsvMolecules, client_id: int, path: Path) -> None:
    need_graphs(len(molecules), client_id, "molecule", path)
    missing = np.isnan(molecules.y).all(axis=0)
    if missing.all():
        raise DataError(
            f"client {client_id} has no label at all: columns"
            f" {', '.join(molecules.tasks)} of {path} are empty; add labels, or leave"
            " this client out"
        )
    if empty := [molecules.tasks[at] for at in np.flatnonzero(missing)]:
        log.warning("client %d has no label of %s", client_id, ", ".join(empty))


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
