"""How a command ends: what it cannot do it says on stderr, with exit code 2.

Ctrl-C and SIGTERM end it with exit code 130, and it tidies up as after an error.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import TextIOWrapper
from typing import ParamSpec

from .errors import FedGraphError
from .wording import BY_HAND, harmless

UNABLE = 2  # exit code of a command that could not do, or look at, what was asked
STOPPED = 130  # exit code of a command that was stopped
_ONE_S = 1.0  # signals within it are one: `timeout` sends a second to the group
_Given = ParamSpec("_Given")


def command(main: Callable[_Given, int]) -> Callable[_Given, int]:
    """Decorate a command's ``main``: say what ends it, and return the exit code."""

    @wraps(main)
    def started(*args: _Given.args, **kwargs: _Given.kwargs) -> int:
        out = sys.stdout
        if isinstance(out, TextIOWrapper) and out.errors == "strict":
            # A name that the terminal cannot show ends no command; so is stderr.
            out.reconfigure(errors="backslashreplace")
        try:
            with heeding_sigterm():
                return main(*args, **kwargs)
        except FedGraphError as error:
            sys.stderr.write(f"error: {harmless(str(error))}\n")
            return UNABLE
        except KeyboardInterrupt as stop:
            sys.stderr.write(f"{BY_HAND}{harmless(str(stop))}\n")
            return STOPPED

    return started


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, also where the shell lets that do nothing.

    Else Python ends at once: temporary folders, with models of a site, would stay.
    Processes of ``multiprocessing`` hear of it, as of Ctrl-C in a terminal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    last = -_ONE_S

    def stop(number: int, frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last < before + _ONE_S:
            return
        for process in multiprocessing.active_children():
            process.terminate()
        heeds = signal.getsignal(signal.SIGINT)
        if not callable(heeds):
            raise KeyboardInterrupt
        heeds(number, frame)  # type: ignore[arg-type]

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
