"""Run experiments, compare them and check the software: what a user starts by hand."""

from __future__ import annotations

import sys
from types import TracebackType


def _without_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write(f"stopped by Ctrl-C{error}\n")
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # a command, whose imports take seconds
    sys.excepthook = _without_traceback
