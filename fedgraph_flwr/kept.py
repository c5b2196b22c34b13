"""Cache of what a process has loaded, as far as it fits into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_SHARE = 0.5  # of the memory, for all processes of a machine together


class Kept(Generic[T]):
    """Values by key, up to a number of bytes.

    What does not fit is not kept, but for the last value. A process that visits more
    clients than fit goes round in a circle: to drop the oldest for the newest would
    then drop each of them just before its turn.

    Parameters
    ----------
    limit : int, optional
        Bytes; by default `memory_share`.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._values: dict[Hashable, T] = {}
        self._last: tuple[Hashable, T] | None = None
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of ``key``; make it if it is not kept."""
        if key in self._values:
            return self._values[key]
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        self._last = None  # before the next is made: there may be room for one alone
        value = make()
        if self._limit is None:
            self._limit = memory_share()
        size = num_bytes(value)
        if self._bytes + size <= self._limit:
            self._values[key] = value
            self._bytes += size
        else:
            self._last = key, value
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._last, self._bytes = None, 0

    def __len__(self) -> int:
        return len(self._values) + (self._last is not None)


def num_bytes(value: Any) -> int:
    """Bytes of all arrays and tensors that a value holds; those on disk are free."""
    seen: set[int] = set()
    places: set[tuple[int, int]] = set()

    def count(part: Any) -> int:
        if id(part) in seen or isinstance(part, np.memmap):
            return 0
        seen.add(id(part))
        if getattr(part, "is_sparse_csr", False):  # whose ``nbytes`` counts zeros
            parts = part.crow_indices(), part.col_indices(), part.values()
            return sum(new(t.data_ptr(), t.nbytes) for t in parts)
        if isinstance(part, np.ndarray):
            return new(part.ctypes.data, part.nbytes)
        if hasattr(part, "data_ptr"):  # a tensor, which may be that of an array
            return new(part.data_ptr(), part.nbytes)
        if isinstance(size := getattr(part, "nbytes", None), int):
            return size
        if is_dataclass(part) and not isinstance(part, type):
            # What is there, not by name: a property would make what nobody asked for.
            return sum(map(count, vars(part).values()))
        if isinstance(part, Mapping):
            return sum(map(count, part.values()))
        if isinstance(part, list | tuple):
            return sum(map(count, part))
        named = getattr(part, "__dict__", None)
        is_ours = type(part).__module__.partition(".")[0] in ("clients", "datasets")
        return sum(map(count, named.values())) if named and is_ours else 0

    def new(place: int, size: int) -> int:
        if (place, size) in places:
            return 0
        places.add((place, size))
        return size

    return count(value)


def memory_share() -> int:
    """Bytes that this process may keep: half the memory, over the cores.

    Each core may have a process of its own.
    """
    return int(memory() * _SHARE / (os.cpu_count() or 1))


def memory() -> int:
    """Bytes of memory of this machine, or of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _CGROUP.is_file() and (allowed := _CGROUP.read_text().strip()).isdigit():
        total = min(total, int(allowed))
    return total
