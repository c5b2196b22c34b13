"""How a command says why it cannot do what is asked: on stderr, with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from .errors import FedGraphError
from .wording import harmless

UNABLE = 2  # exit code of a command that could not do, or look at, what was asked
_Given = ParamSpec("_Given")


def command(main: Callable[_Given, int]) -> Callable[_Given, int]:
    """Decorate a command's ``main``: say a `FedGraphError`, and return ``UNABLE``."""

    @wraps(main)
    def started(*args: _Given.args, **kwargs: _Given.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except FedGraphError as error:
            sys.stderr.write(f"error: {harmless(str(error))}\n")
            return UNABLE

    return started
