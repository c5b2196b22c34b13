"""Work that all cores of the server share, with the same bytes on any number."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, "core") as cores:
        ahead: deque[Future[Answer]] = deque()
        for item in items:
            ahead.append(cores.submit(work, item))
            if len(ahead) > count:  # answers that nobody has read yet take memory
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
