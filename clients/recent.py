"""States that this process has just written, so that it need not read them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.files import Stamp, stamp
from fedgraph_flwr.kept import memory_share

Arrays = dict[str, NDArray[np.generic]]
_SHARE = 0.25  # of the memory that a process may keep data in


class RecentStates:
    """Arrays of the last file that this process wrote to each folder.

    The file counts: if it is gone or another, nothing is taken. Files are those of one
    experiment at a time, up to a number of bytes.

    Parameters
    ----------
    limit : int, optional
        Bytes; by default a quarter of `memory_share`.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._states: dict[Path, tuple[Path, Stamp, Arrays]] = {}  # by folder
        self._bytes = 0

    def keep(self, path: Path, written: Stamp, arrays: Arrays) -> None:
        """Keep what was written to ``path``, if there is room.

        Parameters
        ----------
        path : path
            ``<experiment>/<client>/<file>``.
        written : Stamp
            Of the file.
        arrays : dict of str to array
            Nobody else may change them.
        """
        if self._limit is None:
            self._limit = int(memory_share() * _SHARE)
        if any(folder.parent != path.parent.parent for folder in [*self._states][:1]):
            self._states.clear()
            self._bytes = 0
        self._drop(path.parent)
        size = sum(a.nbytes for a in arrays.values())
        if self._bytes + size <= self._limit:
            self._states[path.parent] = path, written, arrays
            self._bytes += size

    def take(self, path: Path) -> Arrays | None:
        """Hand out what was written to ``path``, once: who takes it may change it."""
        kept = self._drop(path.parent)
        if kept is None or kept[0] != path:
            return None
        try:
            return kept[2] if stamp(path) == kept[1] else None
        except OSError:  # it is gone, as whoever reads it finds out
            return None

    def _drop(self, folder: Path) -> tuple[Path, Stamp, Arrays] | None:
        kept = self._states.pop(folder, None)
        if kept is not None:
            self._bytes -= sum(a.nbytes for a in kept[2].values())
        return kept
