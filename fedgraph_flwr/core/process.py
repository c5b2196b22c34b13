"""A process: its device, memory and terminal, and how it is stopped.

A mistake that the user can mend is one line. Its traceback, which would bury that line,
is logged at level DEBUG (environment variable ``FLWR_LOG_LEVEL=DEBUG``).

Flower notices a stop when the next sign of life is due, after up to half a minute. It
then ends the process of the server within seconds, by ``sys.exit`` in the main thread.
That is too late if its own handlers hang, as they do when a SuperLink that has stalled
refuses the run's token: after five seconds nothing more is written. In a simulation the
server runs in another thread, which would never hear of it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import resource
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import is_dataclass
from logging import DEBUG, ERROR, INFO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import psutil
from typing_extensions import override

from .errors import ConfigError, FedGraphError, RunFailedError
from .logs import log
from .words import harmless

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_SHARE = 0.5  # of the memory, for all processes of a machine together
BEAT_S = 10.0  # longest silence of a wait


def in_own_process(action: Callable[..., T], *arguments: object) -> T:
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
    """Return the memory that this process holds now, or the most it ever held."""
    if at_most:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(psutil.Process().memory_info().rss)


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

    def count(part: Any) -> int:
        if id(part) in seen or isinstance(part, np.memmap):
            return 0
        seen.add(id(part))
        if getattr(part, "is_sparse_csr", False):  # whose ``nbytes`` counts zeros
            parts = part.crow_indices(), part.col_indices(), part.values()
            return sum(int(t.nbytes) for t in parts)
        if isinstance(size := getattr(part, "nbytes", None), int):
            return size
        if isinstance(part, Mapping):
            return sum(map(count, part.values()))
        if isinstance(part, list | tuple):
            return sum(map(count, part))
        # What is there, not by name: a property would make what nobody asked for.
        is_ours = type(part).__module__.partition(".")[0] in ("clients", "datasets")
        named = vars(part) if is_ours or is_dataclass(part) else {}
        return sum(map(count, named.values()))

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


def choose_device(name: str) -> torch.device:
    """Turn ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"`` into a device.

    ``"auto"`` is the first GPU where there is one, else the CPU.

    Raises
    ------
    ConfigError
        Another name, or a GPU that this machine does not have.
    """
    import torch  # here: it takes a second

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(
            f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}"
        )
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but this machine has {torch.cuda.device_count()} CUDA"
            ' devices; use device="cpu" or "auto"'
        )
    return device


def log_failure(words: str, error: BaseException) -> None:
    """Log a failure as one line; what nobody foresaw has its traceback below.

    Parameters
    ----------
    words : str
        What failed, e.g. ``"run failed"``.
    """
    line = harmless(f"{words}: {type(error).__name__}: {error}")
    trace = harmless("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, FedGraphError):
        log(ERROR, "%s", line)
        log(DEBUG, "%s", trace)
    else:
        log(ERROR, "%s\n%s", line, trace)


class LastWord(logging.Filter):
    """Log filter: drops Flower's words on an error that :func:`log_failure` has logged.

    Parameters
    ----------
    error : exception
        Flower adds its traceback, and an exit code without a reason.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        about = record.exc_info[1] if record.exc_info else None
        is_exit = record.levelno == ERROR and str(record.msg).startswith("Exit Code:")
        return not (is_exit or about is self._error)


@contextmanager
def announced(words: str, state: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Log what is waited for, at once and then every ten seconds until it is over.

    Parameters
    ----------
    state : callable
        Says how far it is; "" if nothing is known.
    """
    is_over = threading.Event()
    begin = time.monotonic()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            parts = [words, state(), f"{time.monotonic() - begin:.0f} s so far"]
            log(INFO, "%s", " · ".join(filter(None, parts)))

    log(INFO, "%s", words)
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


STOPPED = (
    "stopped by Flower, which ends the process: after `flwr stop`, together with the"
    " SuperLink, when the SuperLink has not answered for a minute, or for an error that"
    " stands above in the log"
)
_PATIENCE_S = 60.0  # summary and models of a large run are written in less
_asked = threading.Event()


class _Ending(SystemExit):
    """Ends the run in the main thread, before Flower goes on to end the process."""


def check_stop() -> None:
    """Raise if Flower wants this process to end; called wherever the server waits.

    Raises
    ------
    RunFailedError
        As a run that fails otherwise, so that what was computed is written.
    """
    if _asked.is_set():
        raise RunFailedError(STOPPED)


@contextmanager
def delayed_stop() -> Iterator[None]:
    """Delay Flower's end of the process until the run has written its results."""
    is_over = threading.Event()
    thread = threading.current_thread()

    def stop() -> None:
        if is_over.is_set():
            return
        if threading.current_thread() is thread:
            raise _Ending
        _asked.set()
        is_over.wait(_PATIENCE_S)

    from . import flower_names  # here: what predicts has no Flower

    flower_names.at_exit(stop)
    try:
        yield
    except _Ending:
        is_over.set()
        flower_names.exit_process()
    finally:
        is_over.set()
        _asked.clear()
