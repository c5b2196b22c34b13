"""MoleculeNet (Wu et al. 2018, arXiv:1703.00564): molecules with several labels each.

The data folder is only read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedgraph_flwr.core.errors import DataError

from ..cache import (
    cache_root,
    checksum,
    fingerprint_files,
    open_or_build,
    raw_folder,
    unpack_gzip,
)
from ..molecules import MoleculeBuilder, Molecules, fingerprint, list_all, warn_once
from ..tabular.table import read_rows

log = logging.getLogger("flwr.fedgraph")


@dataclass(frozen=True)
class RawFile:
    """Name of a set's folder and file, its columns, and whether PyG has it.

    ``key`` is also its name there; ``smiles`` and ``labels`` are places in a line.
    """

    key: str
    file: str
    smiles: int
    labels: slice
    in_pyg: bool = True


RAW: Mapping[str, RawFile] = MappingProxyType(
    {
        "SIDER": RawFile("sider", "sider.csv", 0, slice(1, 28)),
        "BACE": RawFile("bace", "bace.csv", 0, slice(2, 3)),
        "ClinTox": RawFile("clintox", "clintox.csv", 0, slice(1, 3)),
        "BBBP": RawFile("bbbp", "BBBP.csv", -1, slice(-2, -1)),
        "Tox21": RawFile("tox21", "tox21.csv", -1, slice(0, 12)),
        "MUV": RawFile("muv", "muv.csv", -1, slice(0, 17)),
        "ESOL": RawFile("esol", "delaney-processed.csv", -1, slice(-2, -1)),
        "FreeSolv": RawFile("freesolv", "SAMPL.csv", 1, slice(2, 3)),
        "Lipo": RawFile("lipo", "Lipophilicity.csv", 2, slice(1, 2)),
        "QM8": RawFile("qm8", "qm8.csv", 0, slice(1, 13), in_pyg=False),
    }
)


def load_moleculenet(
    name: str, *, data_dir: str = "", cache_dir: str = ""
) -> Molecules:
    """Load one set.

    Parameters
    ----------
    name : str
        A key of ``RAW``.
    data_dir : str
        As in :func:`~datasets.cache.raw_folder`.
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
    found = open_or_build(entry, Molecules, lambda _: _convert(name, path))
    if found.bad:
        warn_once(
            f"{name}: RDKit refuses {len(found.bad)} of {len(found.bad) + len(found)}"
            f" molecules of {path}; they are left out, by row from 0:"
            + "".join(f"\n    {row}" for row in list_all(found.bad, "row"))
        )
    return found


def _find(name: str, data_dir: str, cache: Path) -> Path:
    """Path of the raw file; it is downloaded if no folder is given."""
    raw = RAW[name]
    found = raw_folder(
        f"MoleculeNet set {name!r}",
        "moleculenet",
        [f"{raw.key}/raw"],
        [raw.file],
        data_dir=data_dir,
        cache=cache,
        kept=f"moleculenet/{raw.key}/raw",
        pin=raw.key,
        addresses=(lambda: {raw.file: _address(raw)}) if raw.in_pyg else None,
        unpack=_unpack,
    )
    return (found / raw.file).resolve()


def _address(raw: RawFile) -> str:
    from torch_geometric.datasets import MoleculeNet

    return str(MoleculeNet.url.format(MoleculeNet.names[raw.key][1]))


def _unpack(came: Path, target: Path) -> None:
    """Unpack a .gz, as some of the files come; others are the text itself."""
    with came.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    (unpack_gzip if is_packed else Path.rename)(came, target)


def _convert(name: str, path: Path) -> Molecules:
    """Check, parse and convert one set."""
    log.info("converting MoleculeNet set %s from %s", name, path)
    raw, builder = RAW[name], MoleculeBuilder(as_written=True)
    try:
        digest = checksum([path])
        if not path.read_bytes().endswith(b"\n"):
            raise DataError(f"{path} is empty or cut off: fetch the data set again")
        rows = read_rows(path)
        for row, why in rows.odd.items():
            raise ValueError(f"line {rows.lines[row]} has {why}")
        columns = list(rows.cells)
        tasks = columns[raw.labels]
        smiles = rows.cells[columns[raw.smiles]]
        kept = [row for row, text in enumerate(smiles) if builder.add(text, row)]
        y = [[float(rows.cells[t][row] or "nan") for t in tasks] for row in kept]
        labels = np.array(y, np.float32).reshape(len(y), len(tasks))
    except (OSError, ValueError) as error:
        raise DataError(
            f"MoleculeNet set {name!r} in {path} cannot be read: {error!r}; fetch the"
            " data set again"
        ) from error
    return builder.finish(name, labels, tasks, raw_sha256=digest, bad=builder.bad)
