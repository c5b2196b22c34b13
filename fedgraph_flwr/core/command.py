"""How a command ends: what it cannot do it says on stderr, with exit code 2.

Ctrl-C, SIGTERM and a terminal that is closed end it with exit code 130, and it tidies
up as after an error. What nobody can hear, as the disk of a log is full, ends it not.
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
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import ParamSpec, TextIO

from typing_extensions import Buffer, override

from .errors import FedGraphError, StorageError
from .words import BY_HAND, harmless

UNABLE = 2  # exit code of a command that could not do, or look at, what was asked
STOPPED = 130  # exit code of a command that was stopped
_STDOUT, _STDERR = 1, 2
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # this of a terminal that is closed
_ONE_S = 1.0  # signals within it are one: `timeout` sends a second to the group
_Given = ParamSpec("_Given")


def command(main: Callable[_Given, int]) -> Callable[_Given, int]:
    """Decorate a command's ``main``: say what ends it, and return the exit code."""

    @wraps(main)
    def started(*args: _Given.args, **kwargs: _Given.kwargs) -> int:
        _take_over_streams()
        try:
            with handled_signals():
                try:
                    return main(*args, **kwargs)
                finally:
                    sys.stdout.flush()
        except FedGraphError as error:
            sys.stderr.write(f"error: {harmless(str(error))}\n")
            return UNABLE
        except _UnreadError:
            return UNABLE
        except KeyboardInterrupt as stop:
            sys.stderr.write(f"{BY_HAND}{harmless(str(stop))}\n")
            return STOPPED

    return started


class _UnreadError(BrokenPipeError):
    """Whoever read standard output has ended, as `head` does."""


class _Stream(FileIO):
    """Standard output, or stderr: of that, what cannot be written is lost."""

    _is_given_up = False

    @override
    def write(self, data: Buffer, /) -> int:
        """Write bytes.

        Raises
        ------
        BrokenPipeError, StorageError
            For the first time they cannot be written to standard output.
        """
        try:
            if not self._is_given_up:
                return super().write(data)
        except OSError as error:
            if self.fileno() == _STDOUT:
                self._is_given_up = True
                if isinstance(error, BrokenPipeError):
                    raise _UnreadError from error
                raise StorageError(
                    f"standard output cannot be written: {error}; send it elsewhere,"
                    " or make room on that disk, then repeat the command"
                ) from error
        return memoryview(data).nbytes


def _take_over_streams() -> None:
    """Replace Python's standard output and stderr, unless others have done so.

    A name that the terminal cannot show ends no command, either.
    """
    for number in range(3):  # in the place of a closed one a file would be opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(_STDOUT, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(_STDERR, sys.stderr)


def _stream(number: int, before: TextIO | None) -> TextIOWrapper:
    raw = BufferedWriter(_Stream(number, "w", closefd=False))
    if not isinstance(before, TextIOWrapper):
        return TextIOWrapper(raw, errors="backslashreplace", line_buffering=True)
    with suppress(OSError):  # which the new one tells of
        before.flush()  # what was said before the command comes before it
    # The locale C has either; the second shows names of files as they are, and no more.
    is_strict = before.errors in ("strict", "surrogateescape")
    is_exact = before.errors == "surrogateescape" and before.encoding == "utf-8"
    return TextIOWrapper(
        raw,
        encoding=before.encoding,
        errors="backslashreplace" if is_strict and not is_exact else before.errors,
        line_buffering=before.line_buffering or before.write_through,
    )


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
