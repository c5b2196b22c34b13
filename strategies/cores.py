"""Work that all cores of the server share, with the same bytes on any number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def on_all_cores(
    work: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[Answer]:
    """Call ``work`` for each item; yield the answers in order, or raise as it did.

    Threads help where NumPy computes: it lets others run meanwhile. A caller that
    limits BLAS to one thread gets the same bytes on any number of cores.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "core") as cores:
        yield from cores.map(work, items)
