"""Lets ``flwr stop`` end a run between two polls, with a summary.

Flower notices a stop when the next sign of life is due, after up to half a minute. It
then ends the process of the server within seconds, by ``sys.exit`` in the main thread.
That is too late if its own handlers hang, as they do when a SuperLink that has stalled
refuses the run's token: after five seconds nothing more is written. In a simulation the
server runs in another thread, which would never hear of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .core import flower
from .errors import RunFailedError

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
def heeding_stops() -> Iterator[None]:
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

    flower.at_exit(stop)
    try:
        yield
    except _Ending:
        is_over.set()
        flower.exit_process()
    finally:
        is_over.set()
        _asked.clear()
