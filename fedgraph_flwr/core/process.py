"""Processes that this one starts, and the memory that it holds."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


def in_own_process(action: Callable[..., Answer], *arguments: object) -> Answer:
    """Call ``action`` in a new process; what it raises is raised here."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=end_with_parent
    ) as pool:
        return pool.submit(action, *arguments).result()


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it is gone.

    A pool whose process was killed leaves its workers behind: each would finish its
    work, take what is queued, and then wait for ever.
    """
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once: whoever goes on does this work again


def resident_bytes(*, at_most: bool = False) -> int:
    """Return the memory that this process holds now, or the most it ever held.

    Raises
    ------
    RuntimeError
        The system is not Linux.
    """
    name, status = "VmHWM" if at_most else "VmRSS", Path("/proc/self/status")
    text = status.read_text() if status.is_file() else ""
    if not (found := re.search(rf"{name}:\s+(\d+) kB", text)):
        raise RuntimeError(f"{status} does not tell {name}; run this on Linux")
    return int(found.group(1)) * 1024
