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

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.files import sha256_of

from .cache import cache_root, open_or_build
from .molecules import (
    LEFT_OUT,
    SMILES_CSV,
    fingerprint,
    list_all,
    warn_left_out,
    warn_once,
)
from .raw import hint_of_near
from .schema import ALL, SPLIT
from .smiles_csv_table import CsvFormat, CsvMolecules, build_from_csv
from .splits import need_graphs
from .table import unchanged

log = logging.getLogger("flwr.fedgraph")

_TABLE = 8  # part of every fingerprint: raise it when a file is read otherwise


def check_csv_settings(settings: RunSettings) -> None:
    """Refuse a run config that gives one file to several clients, or has classes.

    Raises
    ------
    ConfigError
        Its ``data_dir`` is a CSV file, and there are more clients than one; or labels
        are to be classes.
    """
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
    """Load the molecules of one client.

    Parameters
    ----------
    settings : RunSettings
        ``data_dir``, ``num_clients``, ``cache_dir`` and the ``csv_`` settings are
        read. Where ``data_dir`` is a file, that is the client's; where it is a folder,
        the client's is number ``client_id`` of its ``.csv`` files, sorted by name.
    client_id : int

    Returns
    -------
    CsvMolecules
        Memory-mapped; molecules are in the order of the file.

    Raises
    ------
    ConfigError
        No ``data_dir``, or a folder with another number of files than clients.
    DataError
        A file is missing or wrong, files of a folder have different label columns, a
        task has no label in any of them, or the client has fewer than 3 molecules or
        no label at all.
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
    _check_same_tasks(files, sets)
    own = client_id if is_folder else 0
    columns = sets[own].tasks, sets[own].numbering, sets[own].unused
    is_guess = not settings.csv_label_columns.strip()
    _tell_columns(files[own], *map(tuple, columns), is_guess=is_guess)
    if bad := sets[own].bad:
        count = len(bad) + len(sets[own])
        told = f"{len(bad)} of {count} rows of {files[own]} cannot be used"
        warn_left_out(told, list_all(bad, "line"))
    for doubt in sets[own].doubts:
        warn_once(f"{files[own]}: {doubt}", about=LEFT_OUT)
    _check_client(sets[own], client_id, files[own])
    if len(sets) == settings.num_clients:  # else others, elsewhere, may have labels
        _check_every_task(sets, settings.data_dir)
    return sets[own]


def _files(data_dir: str) -> tuple[list[Path], bool]:
    """CSV files that can be seen, and whether they lie in a folder of several."""
    if not data_dir:
        raise ConfigError(
            f"dataset {SMILES_CSV!r} reads your own files, but data-dir is empty; set"
            " it to the absolute path of a CSV file or of a folder with one for each"
            " client, or start each SuperNode with --node-config 'data-path=\"...\"'"
        )
    path = Path(data_dir).expanduser()
    if path.is_file():
        return [path], False
    if not path.is_dir():
        raise DataError(
            f"there is no file or folder {path}{hint_of_near(path)}; correct data-dir"
            " (on a site: data-path of --node-config)",
            public="data-path of this site names no file or folder",
        )
    found = (p for p in path.iterdir() if p.suffix.lower() == ".csv")
    files = sorted(p for p in found if not p.name.startswith("."))
    if not files:
        raise DataError(
            f"the folder {path} has no .csv file; put one into it for each client, or"
            " correct data-dir",
            public="the folder that is data-path of this site has no .csv file",
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
        log.warning(
            "%s: column(s) %s count rows and are not taken for labels; if they are,"
            " name the label columns in csv-label-columns",
            path,
            ", ".join(name or "without a name" for name in ids),
        )
    if unused:
        drawn = "; the split is drawn by split-seed and held-out" * (
            SPLIT in map(str.lower, unused)
        )
        log.warning("%s: not used: column(s) %s%s", path, ", ".join(unused), drawn)
    if is_guess and (len(labels) > 1 or unused):
        log.warning(
            "%s: column(s) %s hold numbers, nothing says which are labels, and all are"
            " predicted; name the label columns, also one that is not used now, in"
            " csv-label-columns (%r takes these)",
            path,
            ", ".join(map(repr, labels)),
            ALL,
        )
    log.info("%s: labels are columns %s", path, ", ".join(labels))


def _check_same_tasks(files: Sequence[Path], sets: Sequence[CsvMolecules]) -> None:
    for path, found in zip(files, sets, strict=True):
        if found.tasks != sets[0].tasks:
            raise DataError(
                f"{path.name} has the label columns {found.tasks}, but {files[0].name}"
                f" has {sets[0].tasks}; name the columns that all have in"
                " csv-label-columns",
                public=f"{path.name} and {files[0].name} have different label columns;"
                " name those that all have in csv-label-columns",
            )


def _check_every_task(sets: Sequence[CsvMolecules], place: str) -> None:
    empty = [
        task
        for at, task in enumerate(sets[0].tasks)
        if all(np.isnan(found.y[:, at]).all() for found in sets)
    ]
    if empty:
        raise DataError(
            f"no molecule in {place} has a label in column(s) {', '.join(empty)};"
            " leave them out of csv-label-columns",
            public="a label column is empty in every file; leave it out of"
            " csv-label-columns",
        )


def _check_client(molecules: CsvMolecules, client_id: int, path: Path) -> None:
    need_graphs(len(molecules), client_id, "molecule", path)
    missing = np.isnan(molecules.y)
    if missing.all():
        raise DataError(
            f"client {client_id} has no label at all: columns"
            f" {', '.join(molecules.tasks)} of {path} are empty; add labels, or leave"
            " this client out",
            public=f"client {client_id} has no label at all",
        )
    empty = [t for at, t in enumerate(molecules.tasks) if missing[:, at].all()]
    if empty:
        log.warning("client %d has no label of %s", client_id, ", ".join(empty))


def load_csv(path: Path, form: CsvFormat, *, cache_dir: str = "") -> CsvMolecules:
    """Load one file through the cache.

    Files are told apart by their content: unlike published sets, two of the same name
    and size, even of the same time, may well be different ones.

    Raises
    ------
    DataError
        As :func:`build_from_csv`, or if the file cannot be read, or changes meanwhile.
    """
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; check its permissions",
            public=f"{path.name} cannot be read: {type(error).__name__}",
        ) from error
    entry = cache_root(cache_dir) / f"{SMILES_CSV}-{fingerprint(digest, form, _TABLE)}"

    def read(_: Path) -> CsvMolecules:
        with unchanged(path, digest, lambda: sha256_of(path)):
            return build_from_csv(SMILES_CSV, path, form, raw_sha256=digest)

    return open_or_build(entry, CsvMolecules, read)
