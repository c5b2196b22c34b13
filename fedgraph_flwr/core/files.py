"""Files that a crash leaves whole or absent, that are checked, or written once.

A file is written beside its target, flushed to the disk and renamed. Files of arrays
carry a checksum of everything in them, so that a damaged one is named and not used.
"""

from __future__ import annotations

import csv
import fcntl
import fnmatch
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, StorageError

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
_PARTIAL = ".tmp"  # end of the names of files that are being written
_ABOUT = "about"  # entry with the checksum and the text
# Numbers of safetensors, as NumPy calls them.
_TYPES = {"BOOL": "?", "C64": "<c8"} | {
    f"{kind.upper()}{8 * size}": f"<{kind}{size}"
    for kind, sizes in {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}.items()
    for size in sizes
}
_MOST_HEADER = 10**8  # bytes, as the format's own library has it
_BUFFER = 2**17  # bytes that are written at once
_FORMULA, _STARTS = ("=", "+", "-", "@"), ("\t", "\r", "\n")  # of cells
_PRIVATE, _ENTER = 0o600, 0o700  # modes of files of arrays, and of folders of a user


def project_root() -> Path:
    """Folder that holds this project's top-level packages."""
    return Path(__file__).resolve().parents[2]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write, which becomes ``path`` once it is on the disk.

    Raises
    ------
    StorageError
        It cannot be written: a full disk, a read-only folder.
    """
    partial = _own_place(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def _own_place(path: Path) -> Path:
    """Name what becomes ``path``, as no other does."""
    # Processes of two containers that share a folder may have one number.
    own = f"{os.getpid()}-{os.urandom(4).hex()}"
    return path.with_name(f".{path.name}.{own}{_PARTIAL}")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give the place of a folder to make, which becomes ``path`` once it is whole.

    Raises
    ------
    OSError
        It cannot be renamed, or something else is at ``path``.
    """
    partial = _own_place(path)
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def is_there(path: Path) -> bool:
    """Whether something is at ``path``.

    ``Path.exists`` says no, from Python 3.14 on, where it cannot tell.

    Raises
    ------
    OSError
        Nobody can tell: a folder may not be searched, or a disk fails.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def from_home(path: str, cure: str) -> Path:
    """Return an absolute path; ``~`` at its begin is the user's home folder.

    Raises
    ------
    DataError
        This user has none, as one of a container may not; ``cure`` says what to set.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise DataError(
            f"{path} is in a home folder that cannot be found: {error} {cure}"
        ) from error


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    """Return the names of what a folder holds; none if it is not there.

    ``Path.glob`` gives none where it cannot tell, either.

    Raises
    ------
    OSError
        Nobody can tell, as of :func:`is_there`.
    """
    try:
        return fnmatch.filter(os.listdir(folder), pattern)  # noqa: PTH208 - faster
    except (FileNotFoundError, NotADirectoryError):
        return []


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unfinished(names: Iterable[str]) -> list[str]:
    """Return those names that files of other processes have until they are whole."""
    own = f".{os.getpid()}-"
    found = (n for n in names if n.startswith(".") and n.endswith(_PARTIAL))
    return [name for name in found if own not in name]


def unwritable(path: Path, error: BaseException) -> StorageError:
    """Word the error of a file that cannot be written, with the cure."""
    return StorageError(
        f"cannot write {path}: {error}; make room on that disk, or make the folder"
        " writable, then resume the run or repeat the command"
    )


def remove(path: Path) -> None:
    """Delete a file if it exists.

    Raises
    ------
    StorageError
        It cannot be deleted: a read-only folder, or a folder of that name.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot delete {path}: {error}; delete it yourself, or make the folder"
            " writable, then resume the run or repeat the command"
        ) from error


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, *, is_private: bool = False) -> None:
    """Make a folder, and those above it, unless they are there.

    Raises
    ------
    StorageError
        It cannot be made.
    """
    try:
        if is_private:
            make_private(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def make_private(path: Path) -> None:
    """Make a folder that this user alone may enter, and those above it, if missing.

    Raises
    ------
    OSError
        It cannot be made.
    """
    try:
        path.mkdir(_ENTER, exist_ok=True)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private(path.parent)
        path.mkdir(_ENTER, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_csv(path: Path, rows: Iterable[Iterable[object]], ending: str = "\n") -> None:
    """Write rows of cells as CSV, each of them :func:`inert`."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=ending).writerows(map(inert, r) for r in rows)
    write_text(path, text.getvalue())


def inert(cell: object) -> object:
    """Text of a CSV cell that no spreadsheet takes for a formula; else the cell.

    Before one that begins like a formula, and is no number, stands an apostrophe. White
    space and invisible characters are passed over, and wide forms are taken for plain.
    """
    text = unicodedata.normalize("NFKC", cell) if isinstance(cell, str) else ""
    seen = next((c for c in text if c.isprintable() and not c.isspace()), "")
    number = r"\s*[-+]?([0-9.]+(e[-+]?[0-9]+)?|inf|nan)\s*"
    is_number = re.fullmatch(number, text)
    is_formula = seen in _FORMULA or str(cell)[:1] in _STARTS
    return f"'{cell}" if text and is_formula and not is_number else cell


def write_json(path: Path, value: object) -> None:
    """Write JSON."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n")


def plain(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """Arrays each of which is one piece of memory, as processors of today order it.

    Raises
    ------
    TypeError
        A name is none that the format can have.
    """
    for name in arrays:
        if not isinstance(name, str) or name == "__metadata__":  # the format's own
            raise TypeError(
                f"an array is named {name!r}, expected a text other than"
                " '__metadata__'; name it otherwise"
            )
    given = {n: np.asarray(a) for n, a in arrays.items()}
    return {
        n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in given.items()
    }


def encode(arrays: Arrays) -> bytes:
    """Encode named arrays of any layout as safetensors.

    Raises
    ------
    TypeError
        As :func:`plain`.
    SafetensorError
        An array is of no type of numbers that the format has.
    """
    from safetensors.numpy import save  # here and below: what predicts has it not

    return save(plain(arrays))


def write_arrays(
    path: Path,
    arrays: Arrays,
    meta: str = "",
) -> None:
    """Write named arrays, and a text beside them, as safetensors with a checksum.

    The owner alone may read the file.

    Raises
    ------
    StorageError
        As :func:`replacing`.
    TypeError, SafetensorError
        As :func:`encode`.
    """
    from safetensors.numpy import save

    contiguous = plain(arrays)
    # One entry: of several, the library would write another order each time.
    blob = save(contiguous, {_ABOUT: json.dumps([_checksum(contiguous, meta), meta])})
    with (
        replacing(path) as partial,
        open(partial, "xb", _BUFFER, opener=_for_owner) as file,
    ):
        file.write(blob)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, _PRIVATE)


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write named arrays as NumPy does. The owner alone may read the file."""
    with replacing(path) as partial, open(partial, "xb", opener=_for_owner) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path, what: str, cure: str) -> tuple[dict[str, NDArray], str]:  # type: ignore[type-arg]
    """Read what :func:`write_arrays` wrote: arrays and text.

    Parameters
    ----------
    what : str
        Name of the file in the message.
    cure : str
        What to do if it cannot be used.

    Raises
    ------
    DataError
        It cannot be read, has no checksum, or is not what was written.
    """
    try:
        arrays, about = _read_safetensors(path)
        if _ABOUT not in about:
            raise ValueError("it has no checksum, another version wrote it")
        checksum, meta = map(str, json.loads(about[_ABOUT]))
        if checksum != _checksum(arrays, meta):
            raise ValueError("its checksum is not that of its contents")
    except (
        *(OSError, KeyError, TypeError, ValueError),
        *(AttributeError, RecursionError),  # of a header that is none, or of brackets
    ) as error:
        raise DataError(f"{what} {path} cannot be read: {error}; {cure}") from error
    return arrays, meta


def _read_safetensors(path: Path) -> tuple[dict[str, NDArray], dict[str, str]]:  # type: ignore[type-arg]
    """Read arrays and texts: length of a header in JSON, the header, the arrays.

    Each byte is in one array, so that a stranger's take no more memory than their file.
    """
    content = np.memmap(path, np.uint8, "r")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if begin > min(len(content), _MOST_HEADER):
        raise ValueError("its header is longer than it, or than the format has it")
    header = json.loads(content[8:begin].tobytes())
    about, arrays = header.pop("__metadata__", {}), {}
    spans = sorted(of["data_offsets"] for of in header.values())
    ends = [0, *(last for _, last in spans)]
    is_whole = ends == sorted(ends) and begin + ends[-1] == len(content)
    if not is_whole or [first for first, _ in spans] != ends[:-1]:
        raise ValueError("its arrays overlap, or leave bytes out, or it is cut short")
    for name, of in header.items():
        first, last = of["data_offsets"]
        held = np.array(content[begin + first : begin + last])
        arrays[name] = held.view(_TYPES[of["dtype"]]).reshape(of["shape"])
        if [*arrays[name].shape] != of["shape"]:
            raise ValueError(f"array {name!r} has shape {of['shape']!r}")
    return arrays, about


def _checksum(arrays: Arrays, meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise a DataError that names a site's file if it cannot be read or written.

    Raises
    ------
    DataError
        In place of what the system raises.
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be used: {error}; let this user read and write it, make"
            " room on that disk, set state-dir to another folder, or restore the file"
            " from a copy"
        ) from error


def is_kept(path: Path) -> bool:
    """Whether a file of a site is there.

    Raises
    ------
    DataError
        Nobody can tell.
    """
    with usable(path):
        return is_there(path)


def write_once(path: Path, content: bytes) -> bytes:
    """Write ``path`` unless it is there, for the owner's eyes only.

    A reader finds it whole or not at all; of several writers at once one wins. It is on
    the disk when this returns, and outlives a power cut. Returns what the file holds
    now: ``content``, or what was there before.

    Raises
    ------
    DataError
        It cannot be read or written.
    """
    with usable(path):
        if is_there(path):
            return path.read_bytes()
        make_private(path.parent)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)
            sync(path.parent)
        except FileExistsError:  # another was first
            pass
        finally:
            partial.unlink()
        return path.read_bytes()


def locked(path: Path) -> TextIOWrapper:
    """Lock a file until it is closed."""
    try:
        lock = path.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise unwritable(path, error) from error
    return lock
