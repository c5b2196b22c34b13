"""Messages in a user's terminal about failures and long waits.

A mistake that the user can mend is one line. Its traceback, which would bury that line,
is logged at level DEBUG (environment variable ``FLWR_LOG_LEVEL=DEBUG``).
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import DEBUG, ERROR, INFO

from flwr.common.logger import log
from typing_extensions import override

from .errors import FedGraphError
from .wording import harmless

BEAT_S = 10.0  # longest silence of a wait


def log_failure(words: str, error: BaseException) -> None:
    """Log a failure as one line; what nobody foresaw has its traceback below.

    Parameters
    ----------
    words : str
        What failed, e.g. ``"run failed"``.
    error : exception
    """
    told = harmless(f"{words}: {type(error).__name__}: {error}")
    trace = harmless("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, FedGraphError):
        log(ERROR, "%s", told)
        log(DEBUG, "%s", trace)
    else:
        log(ERROR, "%s\n%s", told, trace)


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
        """Whether a record is to be logged."""
        about = record.exc_info[1] if record.exc_info else None
        is_exit = record.levelno == ERROR and str(record.msg).startswith("Exit Code:")
        return not (is_exit or about is self._error)


@contextmanager
def announced(words: str, state: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Log what is waited for, at once and then every ten seconds until it is over.

    Parameters
    ----------
    words : str
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
