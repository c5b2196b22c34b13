"""Make one HTML page of runs: ``python -m simulations.report RUN... [--open]``.

A run may be a results folder or a folder of several. The page opens offline. The path
of the page is printed. Exits with 2 if a folder holds no run or cannot be shown.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.results.reader import CONFIG, blaming
from fedgraph_flwr.view.html_report import REPORT, write_report


def find_runs(folder: Path, mark: str = CONFIG, cure: str = "") -> list[Path]:
    """Results folders at ``folder`` or directly below, by name.

    Parameters
    ----------
    folder : Path
    mark : str
        A file that each of them has; by default unfinished runs have it too.
    cure : str
        What else can be given.

    Raises
    ------
    ConfigError
        There is none.
    """
    with blaming(folder):
        if (folder / mark).is_file():
            return [folder]
        found = sorted(p.parent for p in folder.glob(f"*/{mark}"))
        is_cut_off = (folder / CONFIG).is_file()
    if is_cut_off and not found:
        raise ConfigError(
            f"the run in {folder} goes on, or was killed: there is no {mark} yet; if it"
            f' was killed, start it again with resume="{folder}"'
        )
    if not found:
        raise ConfigError(
            f"{folder} is no results folder and holds none: no {mark} there or one"
            f" level below; give the folder that a run printed at its end{cure}"
        )
    return found


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.report",
        description="Make one HTML page of runs, which opens offline.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="HTML",
        help=f"file to write; default: {REPORT} in the run's folder, or, of several"
        " runs, in the working folder",
    )
    parser.add_argument("--open", action="store_true", help="show it in a browser")
    options = parser.parse_args(argv)
    runs = [run for folder in options.runs for run in find_runs(folder)]
    place = runs[0] if len(runs) == 1 else Path.cwd()
    out = write_report(runs, options.out or place / REPORT).resolve()
    sys.stdout.write(f"{out}\n")
    if options.open and not webbrowser.open(out.as_uri()):
        sys.stderr.write(f"no browser was found; open {out} yourself\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
