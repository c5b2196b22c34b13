"""Draw the figures of finished runs again: ``python -m simulations.figures FOLDER...``.

A folder is a run's results folder, one that holds several, or a client's folder below
``state-dir`` in which a run with sealed letters left how tasks relate. Figures go into
the folder, as at the end of a run; their paths are printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgraph_flwr.core.command import command
from fedgraph_flwr.results.reader import SUMMARY, blaming
from fedgraph_flwr.view.drawers import draw_all
from fedgraph_flwr.view.matrices import site_rounds

from .report import find_runs


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


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.figures",
        description="Draw the figures of finished runs again.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--rounds",
        type=int,
        nargs="+",
        help="rounds of maps of embeddings and of tasks; default: of embeddings those"
        " in embedding.figure-rounds of the run, of tasks the last",
    )
    options = parser.parse_args(argv)
    folders = [f for folder in options.folders for f in find_folders(folder)]
    for folder in folders:
        with blaming(folder):
            drawn = draw_all(folder, options.rounds)
        for path in drawn:
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
