"""Draw how tasks relate, at a site: ``python -m simulations.site_tasks FOLDER...``.

The relay of a run with sealed parcels has no Omega to draw; each client keeps its own,
``omega-<round>.npz`` in its folder below ``state-dir``. Figures go beside the files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.figures_tasks import draw_site_tasks


def find_files(folder: Path, rounds: list[int] | None = None) -> list[Path]:
    """Files of the last round of a client's folder, or of ``rounds``.

    Raises
    ------
    DataError
        There is none.
    """
    kept = {int(p.stem[6:]): p for p in sorted(folder.glob("omega-*.npz"))}
    wanted = sorted(kept)[-1:] if rounds is None else rounds
    if not wanted or not set(wanted) <= set(kept):
        raise DataError(
            f"{folder} has omega of rounds {sorted(kept)}, asked for"
            f" {wanted or 'the last'}; give <state-dir>/<run>/client-<id> of a run with"
            " spreadgnn.seal = true, and rounds that it kept"
        )
    return [kept[t] for t in wanted]


def main(argv: list[str] | None = None) -> int:
    """Print the paths of the figures; 2 if there is nothing to draw."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.site_tasks",
        description="Draw how tasks relate, from what a sealed run left at this site.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, nargs="+", help="default: the last")
    options = parser.parse_args(argv)
    try:
        for folder in options.folders:
            for path in find_files(folder, options.rounds):
                sys.stdout.write(f"{draw_site_tasks(path)}\n")
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
