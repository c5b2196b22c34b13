"""``fedgraph figures``: draw the figures of finished runs again.

A folder is a run's results folder, one that holds several, or a client's folder below
``state-dir`` in which a run with sealed letters left how tasks relate. Figures go into
the folder, as at the end of a run; their paths are printed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedgraph_flwr.results.reader import SUMMARY, blaming
from fedgraph_flwr.view.drawers import draw_all
from fedgraph_flwr.view.matrices import site_rounds

from .report import Runs, find_runs
from .run import numbers


def find_folders(folder: Path) -> list[Path]:
    """Folders to draw at or directly below ``folder``, by name.

    Raises
    ------
    ConfigError
        There is none.
    """
    with blaming(folder):
        if site_rounds(folder):
            return [folder]
    sealed = "after a run whose letters are sealed, <state-dir>/<run>/client-<id>"
    return find_runs(folder, SUMMARY, f", or, {sealed} of a site")


def redraw(
    folders: Runs,
    *,
    rounds: Annotated[
        str,
        typer.Option(
            help="Rounds of maps of embeddings and of tasks, e.g. 0,20; else those of"
            " embedding.figure-rounds, and of tasks the last."
        ),
    ] = "",
) -> int:
    """Draw the figures of finished runs again, into their folders."""
    chosen = numbers("--rounds", rounds) or None
    found = [f for folder in folders for f in find_folders(folder)]
    for folder in found:
        with blaming(folder):
            drawn = draw_all(folder, chosen)
        for path in drawn:
            sys.stdout.write(f"{path}\n")
    return 0
