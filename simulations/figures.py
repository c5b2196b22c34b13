"""Draw the figures of finished runs again: ``python -m simulations.figures FOLDER...``.

A folder is a run's results folder, or one that holds several. Figures go into the run's
folder, as at the end of the run itself; their paths are printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.figures import draw_run
from fedgraph_flwr.figures_data import read_summary
from fedgraph_flwr.figures_embedding import draw_embeddings
from fedgraph_flwr.figures_tasks import draw_task_relations

SUMMARY = "summary.json"


def find_runs(folder: Path) -> list[Path]:
    """Run folders at or directly below ``folder``, by name.

    Raises
    ------
    ConfigError
        There is none.
    """
    found = [folder] if (folder / SUMMARY).is_file() else []
    found += sorted(p.parent for p in folder.glob(f"*/{SUMMARY}"))
    if not found:
        raise ConfigError(
            f"{folder} is no results folder and holds none: no {SUMMARY} there or one"
            " level below; give the folder that a run printed at its end"
        )
    return found


def draw(run_dir: Path, rounds: list[int] | None = None) -> list[Path]:
    """Draw what a run's folder has data for; maps of ``rounds``, if given."""
    return [
        *draw_run(run_dir),
        *draw_embeddings(run_dir, rounds, seed=read_summary(run_dir).get("seed", 0)),
        *draw_task_relations(run_dir, rounds),
    ]


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
        help="rounds of maps of embeddings and of tasks; default: the last",
    )
    options = parser.parse_args(argv)
    try:
        runs = [run for folder in options.folders for run in find_runs(folder)]
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for run_dir in runs:
        for path in draw(run_dir, options.rounds):
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
