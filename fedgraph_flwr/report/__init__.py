"""The report of runs: one HTML file that opens offline, in any browser.

It has no scripts and loads nothing. Everything in it comes from results folders.
``python -m simulations.report`` makes it of several runs; a run makes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING
from pathlib import Path

from flwr.common.logger import log

from ..files import write_text
from ..results.reader import REPORT, blaming
from .gather import gather
from .page import render

__all__ = ["REPORT", "write_own_report", "write_report"]


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of runs, in the order of ``folders``.

    Parameters
    ----------
    folders : sequence of Path
        Results folders; a run that goes on or was killed is shown as far as it came.
    out : Path
        HTML file to write.

    Raises
    ------
    DataError
        A folder is no results folder, or a file of it is not what a run writes.
    StorageError
        ``out`` cannot be written.
    """
    views = gather(folders)
    with blaming(*folders):
        page = render(views)
    write_text(out, page)
    return out


def write_own_report(folder: Path) -> None:
    """Write a finished run's report into its folder; warn if that cannot be done."""
    try:
        write_report([folder], folder / REPORT)
    except Exception as error:  # a picture must not fail hours of training
        log(
            WARNING,
            "no %s in %s: %s: %s; all other results are written",
            REPORT,
            folder,
            type(error).__name__,
            error,
        )
