"""Lets ``flwr stop`` end a run between two polls, with a summary.

Flower notices a stop when the next sign of life is due, after up to half a minute. It
then ends the process of the server within seconds, by ``sys.exit`` in the main thread.
In a simulation the server runs in another thread, which would never hear of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.exit import add_exit_handler

from .errors import RunFailedError

STOPPED = (
    "stopped by Flower, which ends the process: after `flwr stop`, together with the"
    " SuperLink, or for an error that stands above in the log"
)
_PATIENCE_S = 60.0  # summary and models of a large run are written in less
_asked = threading.Event()


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
def heeding_stops() -> Iterator[None]:
    """Delay Flower's end of the process until the run has written its results."""
    is_over = threading.Event()
    thread = threading.current_thread()

    def stop() -> None:
        # In the main thread the run itself is what is interrupted: it hears at once.
        if not is_over.is_set() and threading.current_thread() is not thread:
            _asked.set()
            is_over.wait(_PATIENCE_S)

    add_exit_handler(stop, run_before_force_exit=True)
    try:
        yield
    finally:
        is_over.set()
        _asked.clear()
