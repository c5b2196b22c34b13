"""The timer, the table and the process of its own that all measurements share."""

from __future__ import annotations

import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from fedgraph_flwr.command import heeding_signals

Answer = TypeVar("Answer")
console = Console(highlight=False)
WARM_UP = 2  # rounds of a run, which are not timed


def median_seconds(
    actions: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each action.

    The actions take turns, so that a busy machine slows all of them; the first turn
    warms up and is not timed. ``time.process_time`` as ``clock`` leaves out what other
    processes take, and counts the time of every thread.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            begin = clock()
            action()
            if turn:
                found[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in found.items()}


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows that have the same columns."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def in_own_process(action: Callable[..., Answer], *arguments: object) -> Answer:
    """Call ``action`` in a new process; what it raises is raised here."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=end_with_parent
    ) as pool:
        return pool.submit(_stoppable, action, *arguments).result()


def _stoppable(action: Callable[..., Answer], *arguments: object) -> Answer:
    with heeding_signals():
        return action(*arguments)


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
    found = re.search(rf"{name}:\s+(\d+) kB", _text(status))
    if not found:
        raise RuntimeError(f"{status} does not tell {name}; run this on Linux")
    return int(found.group(1)) * 1024


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
