"""Disk cache of dataclasses of memory-mapped arrays; safe for many processes.

An entry is one folder: a ``.npy`` file per array and ``manifest.json``, which also has
the other fields. It is built in a scratch folder under a file lock and appears by one
rename, so that a half-built entry is never seen. The first opening in a process checks
every array against the manifest, and so does one after a file has changed; an entry
that fails counts as damaged and is built again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.files import from_home, make_private, sha256_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
log = logging.getLogger("flwr.fedgraph")

CACHE_FORMAT = 2  # part of every fingerprint: raise it when the conversion changes
CACHE_ENV = "FEDGRAPH_CACHE"
MARKER = ".fedgraph-flwr"  # lies in every folder that is made here, and may be deleted
_YOUNG_NS = 1_000_000_000  # a file as young may change and keep its time stamp
_checked: dict[Path, int] = {}  # entry -> hash of its files' stamps, when it was right
_NAMES = (MARKER, "manifest.json")  # of an entry, beside arrays


def cache_root(cache_dir: str = "") -> Path:
    """Return the cache folder: ``cache_dir``, else FEDGRAPH_CACHE, else XDG's."""
    chosen = cache_dir or os.environ.get(CACHE_ENV, "")
    xdg = os.environ.get("XDG_CACHE_HOME", "") or "~/.cache"
    return from_home(
        chosen or f"{xdg}/fedgraph-flwr",
        f"set cache-dir, or the environment variable {CACHE_ENV}, to another one",
    )


def open_or_build(
    entry: Path, kind: type[Record], build: Callable[[Path], Record]
) -> Record:
    """Open a cache entry, building it first if it is missing or damaged.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    kind : type
        Dataclass whose fields are arrays, or values that JSON can hold.
    build : callable
        Makes one; is given an empty scratch folder, removed afterwards.

    Returns
    -------
    kind
        Its arrays are memory-mapped and read-only.

    Raises
    ------
    DataError
        From ``build``, or if the cache folder cannot be written.
    """
    record = _open(entry, kind)
    if record is not None:
        return record
    try:
        with locked(entry):
            record = _open(entry, kind)  # another process may have built it meanwhile
            if record is None:
                with scratch_folder(entry) as scratch:
                    (scratch / "work").mkdir()
                    _write(scratch / "entry", build(scratch / "work"))
                    if os.path.lexists(entry):  # damaged: out of the way, by rename
                        _check_own(entry)
                        entry.rename(scratch / "damaged")
                    (scratch / "entry").rename(entry)
                record = _open(entry, kind)
    except OSError as error:
        raise unusable(entry.parent, error) from error
    if record is None:
        raise DataError(
            f"cache entry {entry} cannot be read back right after writing it; check"
            f" the disk, or set cache-dir (or {CACHE_ENV}) to another folder"
        )
    return record


def fingerprint_files(files: Iterable[Path]) -> str:
    """Hash of places, sizes and times of files; reading contents would take long.

    It is another once a file changes. Two files of one name, size and time may be
    different ones; tools that copy set the time back, not that of the last change.
    """
    digest = hashlib.sha256(f"format {CACHE_FORMAT}".encode())
    for path in files:
        at, stat = path.resolve(), path.stat()
        times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
        digest.update(f"/{at} {stat.st_size} {times}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def checksum(paths: Iterable[Path]) -> str:
    """SHA-256 over the lines ``<sha256>  <file name>``, sorted by name."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: p.name):
        digest.update(f"{sha256_of(path)}  {path.name}\n".encode())
    return digest.hexdigest()


def label_checksum(y: NDArray[Any], node_ptr: NDArray[np.int64]) -> str:
    """SHA-256 over the labels and the numbers of nodes, without edges."""
    digest = hashlib.sha256(f"{y.dtype.str} {y.shape}".encode())
    for array in (y, node_ptr):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def unusable(folder: Path, error: OSError) -> DataError:
    """Word the error for a cache folder that cannot be read or written."""
    return DataError(
        f"the cache folder {folder} cannot be used: {error}; set cache-dir (or the"
        f" environment variable {CACHE_ENV}) to a writable folder with free space"
    )


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold the lock of ``entry``; the system releases it if the process dies."""
    make_private(entry.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(entry.parent / f"{entry.name}.lock", flags, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def scratch_folder(entry: Path) -> Iterator[Path]:
    """Make a folder beside ``entry`` to build in. Hold the lock of ``entry``."""
    prefix = f".{entry.name}.building-"
    for stale in entry.parent.glob(f"{prefix}*"):  # of a killed process: we hold
        if _is_marked(stale):  # the lock, nobody else is at work
            shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=entry.parent))
    (scratch / MARKER).touch()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_marked(folder: Path) -> bool:
    """Whether a folder was made here; empty ones hold nothing to lose."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / MARKER).is_file() or not any(folder.iterdir())


def _check_own(entry: Path) -> None:
    """Refuse to put away a folder that this cache did not make."""
    if _is_marked(entry) and all(
        path.is_file() and (path.name in _NAMES or path.suffix == ".npy")
        for path in entry.iterdir()
    ):
        return
    raise DataError(
        f"{entry} stands where the cache keeps an entry, but was not made by it; move"
        f" it away, or set cache-dir (or {CACHE_ENV}) to another folder"
    )


def _write(folder: Path, record: DataclassInstance) -> None:
    """Write arrays and manifest of one entry."""
    folder.mkdir()
    (folder / MARKER).touch()
    values: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name in (field.name for field in fields(record)):
        value = getattr(record, name)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value)
            np.save(folder / f"{name}.npy", array)
            arrays[name] = _describe(array)
        else:
            values[name] = value
    manifest = {"format": CACHE_FORMAT, **values, "arrays": arrays}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, type and checksum of an array, as they stand in the manifest."""
    return {
        "shape": list(array.shape),
        "dtype": array.dtype.str,
        "crc32": zlib.crc32(np.ascontiguousarray(array).data),
    }


def _open(entry: Path, kind: type[Record]) -> Record | None:
    """Open an entry, or return None if it is missing or damaged."""
    if not entry.is_dir():
        return None
    try:
        stamp, is_settled = _stamp(entry)
        is_known = is_settled and _checked.get(entry) == stamp
        manifest = json.loads((entry / "manifest.json").read_text())
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(kind)):
            if name not in manifest["arrays"]:
                values[name] = manifest[name]
                continue
            array = values[name] = np.load(entry / f"{name}.npy", mmap_mode="r")
            if not is_known and _describe(array) != manifest["arrays"][name]:
                raise ValueError(f"{name}.npy is not as the manifest describes it")
        if is_settled:
            _checked[entry] = stamp
        return kind(**values)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        log.warning("cache entry %s is damaged (%s); it is built again", entry, error)
        return None


def _stamp(entry: Path) -> tuple[int, bool]:
    """Hash names, sizes and times of the files; say whether they prove no change."""
    stats = [(path.name, path.stat()) for path in sorted(entry.iterdir())]
    newest = max((s.st_mtime_ns for _, s in stats), default=0)
    told = [(n, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for n, s in stats]
    return hash(tuple(told)), time.time_ns() - newest > _YOUNG_NS
