"""``fedgraph figures``: draw the figures of runs again, into their folders."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedgraph_flwr.results.reader import blaming
from fedgraph_flwr.view.drawers import draw_all

from .report import Runs, find_runs
from .run import numbers


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
    """Draw the figures of runs again, into their folders."""
    chosen = numbers("--rounds", rounds) or None
    for folder in [run for given in folders for run in find_runs(given)]:
        with blaming(folder):
            drawn = draw_all(folder, chosen)
        for path in drawn:
            sys.stdout.write(f"{path}\n")
    return 0
