"""Write finished runs to a tracker: ``python -m simulations.track RUN... --to NAME``.

The numbers and names are those that a run with the key ``tracker`` writes itself. Exits
with 2 if a folder holds no run, the tracker is not installed, or it refuses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedgraph_flwr.core.command import command
from fedgraph_flwr.results.trackers import TRACKERS, import_run

from .report import find_runs


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.track",
        description="Write finished runs to a tracker of experiments.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--to", required=True, choices=sorted(TRACKERS))
    options = parser.parse_args(argv)
    for run in [found for folder in options.runs for found in find_runs(folder)]:
        sys.stdout.write(f"{run.name}: {import_run(run, options.to)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
