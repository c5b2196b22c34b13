"""``fedgraph report``: make one HTML page of runs, which opens offline."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.results.reader import CONFIG, blaming
from fedgraph_flwr.view.html_report import REPORT, write_report

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="A run's folder, or one that holds several."),
]


def find_runs(folder: Path) -> list[Path]:
    """Results folders at ``folder`` or directly below, by name.

    Raises
    ------
    ConfigError
        There is none.
    """
    with blaming(folder):
        if (folder / CONFIG).is_file():
            return [folder]
        found = sorted(p.parent for p in folder.glob(f"*/{CONFIG}"))
    if not found:
        raise ConfigError(
            f"{folder} is no results folder and holds none: no {CONFIG} there or one"
            " level below; give the folder that a run printed at its end"
        )
    return found


def report(
    runs: Runs,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"File to write; else {REPORT} in the run's folder, or, of several"
            " runs, here."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> int:
    """Make one HTML page of runs, which opens offline; its path is printed."""
    found = [run for folder in runs for run in find_runs(folder)]
    place = found[0] if len(found) == 1 else Path.cwd()
    page = write_report(found, out or place / REPORT).resolve()
    sys.stdout.write(f"{page}\n")
    if show and not webbrowser.open(page.as_uri()):
        sys.stderr.write(f"no browser was found; open {page} yourself\n")
    return 0
