"""How a command ends: what it cannot do it says on stderr, with exit code 2.

Ctrl-C, SIGTERM and a terminal that is closed end it with exit code 130, and it tidies
up as after an error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from typing import ParamSpec

from .errors import FedGraphError
from .words import BY_HAND, harmless

UNABLE = 2  # exit code of a command that could not do, or look at, what was asked
STOPPED = 130  # exit code of a command that was stopped
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # this of a terminal that is closed
_ONE_S = 1.0  # signals within it are one: `timeout` sends a second to the group
_Given = ParamSpec("_Given")


def command(main: Callable[_Given, int]) -> Callable[_Given, int]:
    """Decorate a command's ``main``: say what ends it, and return the exit code."""

    @wraps(main)
    def started(*args: _Given.args, **kwargs: _Given.kwargs) -> int:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a strange name ends no command
                stream.reconfigure(errors="backslashreplace")
        try:
            with handled_signals():
                try:
                    return main(*args, **kwargs)
                finally:
                    print(end="", flush=True)  # noqa: T201  there may be no output
        except FedGraphError as error:
            print(f"error: {harmless(str(error))}", file=sys.stderr)  # noqa: T201
            return UNABLE
        except BrokenPipeError:  # whoever read standard output has ended, as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return UNABLE
        except KeyboardInterrupt as stop:
            with suppress(OSError):  # the terminal may be closed
                print(f"{BY_HAND}{harmless(str(stop))}", file=sys.stderr)  # noqa: T201
            return STOPPED

    return started


@contextmanager
def handled_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal do as Ctrl-C, also where that does nothing.

    Else Python ends at once: temporary folders, with models of a site, would stay.
    Processes of ``multiprocessing`` hear of it, as of Ctrl-C in a terminal. A signal
    that is ignored, as `nohup` wants it, stays so.
    """
    last = -_ONE_S

    def stop(number: int, frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last < before + _ONE_S:
            return
        for process in multiprocessing.active_children():
            process.terminate()
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(number, frame)  # type: ignore[arg-type]

    is_main = threading.current_thread() is threading.main_thread()
    handled = [s for s in _SIGNALS if is_main and signal.getsignal(s) == signal.SIG_DFL]
    for sign in handled:
        signal.signal(sign, stop)
    try:
        yield
    finally:
        for sign in handled:
            signal.signal(sign, signal.SIG_DFL)
