"""What an error may tell outside the site where it was raised.

An operator answers for what leaves a site, and a run config can choose what goes wrong
there. Texts made from data (a cell, a line of column names, whether a file is there)
stay in the site's own log; others get the kind of the error, and what was worded for
them: base names of files, lines, columns by number, what the run itself said.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from .errors import (
    ConfigError,
    FedGraphError,
    PrivacyBudgetError,
    RunFailedError,
    WireError,
)

# Worded from the run config, messages and counts; their values are no data.
_OPEN = (ConfigError, PrivacyBudgetError, RunFailedError, WireError)
_FOLDERS = re.compile(r"(?<![\w.<>])/(?:[^\s/'\",;:()]*/)*(?=[^\s/'\",;:()]*)")
_MOST = 2000  # characters


def full_reason(error: BaseException) -> str:
    """Kind and text of an error, for the log of a site and for simulation.

    Of an error that was not raised on purpose also the line of the plug-in.
    """
    place = "" if isinstance(error, FedGraphError) else _place_in_plugin(error)
    return f"{type(error).__name__}: {error}{place and f' ({place})'}"


def _place_in_plugin(error: BaseException) -> str:
    """Last line of the bundle's plug-ins that an error came through; "" if of none."""
    passed = [
        f"{Path(frame.f_code.co_filename).name}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(("plugins.", "examples."))
    ]
    return passed[-1] if passed else ""


def public_reason(error: Exception, folders: Iterable[str]) -> str:
    """Kind of an error, and the text that others may know.

    Parameters
    ----------
    error : Exception
    folders : iterable of str
        Paths of the site's own folders: where a text names them, the
        base name of a file is left.
    """
    text = error.public if isinstance(error, FedGraphError) else ""
    if not text and isinstance(error, _OPEN):
        text = str(error)
        for folder in sorted(filter(None, folders), key=len, reverse=True):
            own = Path(folder).name if Path(folder).is_file() else "(a folder)"
            text = text.replace(f"{folder}/", "").replace(folder, own)
        text = _FOLDERS.sub("", text)
    kind = type(error).__name__
    if not text:
        return f"{kind}: what is wrong stands in the log of the site"
    return f"{kind}: {text[:_MOST]}; more stands in the log of the site"
