"""MoleculeNet (Wu et al. 2018, arXiv:1703.00564): molecules with several labels each.

PyTorch Geometric's ``MoleculeNet`` reads labels and SMILES in a scratch folder of our
cache that links to the raw file; atoms and bonds are ours. QM8, which that class
does not have, is read by our own CSV reader. The data folder is only read.
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import DataError

from ..cache import (
    cache_root,
    checksum,
    data_folder,
    download,
    fingerprint_files,
    open_or_build,
    set_data_dir,
    unpack_gzip,
)
from ..molecules import MoleculeBuilder, Molecules, fingerprint, list_all, warn_once
from ..smiles_table import CsvFormat, build_from_csv

log = logging.getLogger("flwr.fedgraph")


@dataclass(frozen=True)
class RawFile:
    """Place of a set's file below a data folder, and whether PyG has the set.

    ``key`` is also its name there.
    """

    key: str
    file: str
    in_pyg: bool = True

    @property
    def place(self) -> Path:
        """Path below ``moleculenet``."""
        return Path(self.key) / "raw" / self.file


RAW: Mapping[str, RawFile] = MappingProxyType(
    {
        "SIDER": RawFile("sider", "sider.csv"),
        "BACE": RawFile("bace", "bace.csv"),
        "ClinTox": RawFile("clintox", "clintox.csv"),
        "BBBP": RawFile("bbbp", "BBBP.csv"),
        "Tox21": RawFile("tox21", "tox21.csv"),
        "MUV": RawFile("muv", "muv.csv"),
        "ESOL": RawFile("esol", "delaney-processed.csv"),
        "FreeSolv": RawFile("freesolv", "SAMPL.csv"),
        "Lipo": RawFile("lipo", "Lipophilicity.csv"),
        "QM8": RawFile("qm8", "qm8.csv", in_pyg=False),
    }
)
QM8_TASKS = ",".join(
    f"{target}-{level}"
    for level in ("CC2", "PBE0", "CAM")
    for target in ("E1", "E2", "f1", "f2")
)
_QM8 = CsvFormat("smiles", QM8_TASKS, "refuse", "regression")


def load_moleculenet(
    name: str, *, data_dir: str = "", cache_dir: str = ""
) -> Molecules:
    """Load one set.

    Parameters
    ----------
    name : str
        A key of ``RAW``.
    data_dir : str
        As in :func:`~datasets.cache.data_folder`.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Returns
    -------
    Molecules
        Memory-mapped, in the order of the file. Molecules that RDKit refuses are left
        out; a warning lists them.

    Raises
    ------
    DataError
        If the file is missing, cut off or corrupt.
    """
    cache = cache_root(cache_dir)
    path = _find(name, data_dir, cache)
    key = fingerprint(fingerprint_files([path]))
    entry = cache / f"{name}-{key}"
    found = open_or_build(entry, Molecules, lambda work: _convert(name, path, work))
    if found.bad:
        warn_once(
            f"{name}: RDKit refuses {len(found.bad)} of {len(found.bad) + len(found)}"
            f" molecules of {path}; they are left out, by row from 0:"
            + "".join(f"\n    {row}" for row in list_all(found.bad, "row"))
        )
    return found


def _find(name: str, data_dir: str, cache: Path) -> Path:
    """Path of the raw file; it is downloaded if no folder is given."""
    folder, raw = data_folder(data_dir), RAW[name]
    if folder is None:
        return _download(name, cache)
    places = folder.places("moleculenet", raw.place)
    for place in places:
        if place.is_file():
            return place.resolve()
    raise DataError(
        f"MoleculeNet set {name!r} is not in {folder.says}: looked for"
        f" {', '.join(map(str, places))}; {_cure(raw)}"
        + (", or leave both unset to download it" if raw.in_pyg else "")
    )


def _cure(raw: RawFile) -> str:
    return set_data_dir(f"moleculenet/{raw.place}")


def _download(name: str, cache: Path) -> Path:
    """Download from PyTorch Geometric's address into the cache."""
    raw = RAW[name]
    target = cache / "downloads" / "moleculenet" / raw.place
    if target.is_file():
        return target
    if not raw.in_pyg:
        raise DataError(
            f"no data-dir is set and MoleculeNet set {name!r} has no download here;"
            f" {_cure(raw)}"
        )

    from torch_geometric.datasets import MoleculeNet

    published = MoleculeNet.names[raw.key][1]
    download(
        {target: MoleculeNet.url.format(published)},
        what=f"MoleculeNet set {name!r}",
        pin=raw.key,
        cache=cache,
        entry=target,
        cure=_cure(raw),
        unpack=unpack_gzip if published.endswith(".gz") else Path.rename,
    )
    return target


def _convert(name: str, path: Path, work: Path) -> Molecules:
    """Check, parse and convert one set in the empty folder ``work``."""
    log.info("converting MoleculeNet set %s from %s", name, path)
    if not RAW[name].in_pyg:
        sha256 = checksum([path])
        return build_from_csv(name, path, _QM8, raw_sha256=sha256, as_written=True)
    try:
        header = _header(path)
        raw = work / RAW[name].key / "raw"
        raw.mkdir(parents=True)
        (raw / RAW[name].file).symlink_to(path)
        digest = checksum([path])
    except OSError as error:
        raise DataError(
            f"cannot read MoleculeNet set {name!r} from {path}, or link it in {work}:"
            f" {error}; check permissions and free space"
        ) from error
    builder = MoleculeBuilder(as_written=True)
    y, columns = _parse(name, path, work, builder)
    tasks = header[columns]
    if y.shape[1] != len(tasks):
        raise DataError(
            f"{path} has {len(tasks)} task names for {y.shape[1]} labels; fetch the"
            " data set again"
        )
    return builder.finish(name, y, tasks, raw_sha256=digest, bad=builder.bad)


def _header(path: Path) -> list[str]:
    """Column names; a file that is cut off is refused."""
    with path.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(size - 1, 0))
        last = handle.read(1)
    if last != b"\n":  # PyTorch Geometric would drop the last line in silence
        raise DataError(
            f"{path} {'is empty' if not last else 'does not end with a newline'}: it is"
            " cut off; fetch the data set again"
        )
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            return next(csv.reader(handle))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}; fetch the data set again"
        ) from error


def _parse(
    name: str, path: Path, work: Path, builder: MoleculeBuilder
) -> tuple[NDArray[np.float32], slice]:
    """Run ``MoleculeNet``; return labels (num_kept, num_tasks) and their columns."""
    # here, because it takes seconds to import and the cache mostly spares it
    from torch_geometric.data import Data
    from torch_geometric.datasets import MoleculeNet

    row = iter(range(2**62))

    def from_smiles(smiles: str) -> Any:
        # MoleculeNet skips what has no nodes; the molecule itself stays with us
        return Data(num_nodes=builder.add(smiles, next(row)))

    key = RAW[name].key
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipping molecule")  # counted by us
            dataset = MoleculeNet(str(work), key, from_smiles=from_smiles)
        y = dataset._data.y.numpy().astype(np.float32)
    except Exception as error:  # whatever its parser raises
        raise DataError(
            f"PyTorch Geometric cannot parse MoleculeNet set {name!r} in {path}:"
            f" {error!r}; fetch the data set again"
        ) from error
    columns = MoleculeNet.names[key][4]
    if isinstance(columns, int):
        columns = slice(columns, columns + 1 or None)
    return y, columns
