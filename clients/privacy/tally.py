"""What all clients of a folder have spent, by row; a file is read when it has changed.

A site asks several times per client and message. To read every client's file each time
would take a time that grows with the square of their number.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.files import names_in

from .records import parse_record

Spent = dict[int, float]  # epsilon by row
# Two changes within a tick of the file system's clock may look like one.
_TICK_NS = 100_000_000
_UNITS = 2**1074  # that 1 has; one is the smallest float


class Tally:
    """Epsilon by row, summed over some files of each client.

    Parameters
    ----------
    folder : path
        Holds the folders of clients, ``client-<id>``.
    names : sequence of str
        Of the files that count, in each client's folder.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, names
        self._lock = Lock()
        self._files: dict[str, _File] = {}
        self._sums: defaultdict[int, int] = defaultdict(int)  # by row, in units

    def look(self) -> None:
        """Take in what has changed on the disk.

        Raises
        ------
        DataError
            A file cannot be read.
        """
        folder = str(self._folder)
        try:
            clients = names_in(self._folder, "client-*")
        except OSError as error:
            raise unreadable(self._folder, error) from error
        paths = {f"{folder}/{c}/{name}" for c in clients for name in self._names}
        with self._lock:
            for path in self._files.keys() | paths:
                known = self._files.get(path)
                found = _read_if_changed(path, known) if path in paths else None
                if found is not known:
                    self._exchange(path, known, found)

    def total(self, row: int) -> float:
        """Return what was spent on a row in all files, rounded once."""
        return self._sums.get(row, 0) / _UNITS

    def counts(self, path: Path) -> bool:
        """Whether a file is one of those that are summed, if it is there."""
        return path.name in self._names

    def _exchange(self, path: str, known: _File | None, found: _File | None) -> None:
        before, now = (file.spent if file else {} for file in (known, found))
        for row in before.keys() | now.keys():
            old, new = before.get(row, 0.0), now.get(row, 0.0)
            if old != new:
                self._sums[row] += _exact(new) - _exact(old)
        if found is None:
            del self._files[path]
        else:
            self._files[path] = found


def _exact(epsilon: float) -> int:
    """Return a number in units of the smallest one, so that sums lose nothing."""
    numerator, denominator = epsilon.as_integer_ratio()
    return numerator * (_UNITS // denominator)


@lru_cache(maxsize=16)
def tally(folder: Path, names: tuple[str, ...]) -> Tally:
    """Return the tally that this process keeps of a folder's files."""
    return Tally(folder, names)


def read_spent(path: str) -> Spent:
    """Epsilon by row in one file; none if there is none.

    Raises
    ------
    DataError
        It cannot be read.
    """
    found = _read_if_changed(path, None)
    return dict(found.spent) if found else {}


def unreadable(path: Path, error: Exception) -> DataError:
    """Word the error for a record of privacy that cannot be read."""
    cure = "restore the file from a copy, or delete it and add up by hand"
    if isinstance(error, PermissionError):
        cure = "let this user read and write it"
    return DataError(
        f"privacy record {path} cannot be read: {error!r}; what earlier runs spent is"
        f" unknown, so nothing more is released: {cure}"
    )


@dataclass(frozen=True)
class _File:
    spent: Spent
    mark: tuple[int, ...]  # of the file; empty if a change may leave it as it is


def _read_if_changed(path: str, known: _File | None) -> _File | None:
    """Read a file, unless it is as it was; None if there is none."""
    try:
        # Opened, since other machines' changes of a shared folder are seen then.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mark, changed_at = _mark(descriptor)
            if known is not None and known.mark == mark:
                return known
            is_old = time.time_ns() - changed_at > _TICK_NS
            with open(descriptor, encoding="utf-8", closefd=False) as file:
                stored = parse_record(file.read())["edge"]
        finally:
            os.close(descriptor)
        spent = {int(row): float(epsilon) for row, epsilon in stored.items()}
        if not all(0 <= epsilon < math.inf for epsilon in spent.values()):
            raise ValueError("spent epsilons must be finite and >= 0")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(Path(path), error) from error
    return _File(spent, mark if is_old else ())


def _mark(descriptor: int) -> tuple[tuple[int, ...], int]:
    """Return what tells a file from itself after a change, and when it changed."""
    about = os.fstat(descriptor)
    times = about.st_mtime_ns, about.st_ctime_ns
    return (about.st_ino, about.st_size, *times), max(times)
