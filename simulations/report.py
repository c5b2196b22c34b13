"""``fedgraph report``, ``figures`` and ``track``: what is made of finished runs."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import click
import typer

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.results.reader import CONFIG, blaming
from fedgraph_flwr.results.trackers import TRACKERS, import_run
from fedgraph_flwr.view.drawers import draw_all
from fedgraph_flwr.view.html_report import REPORT, write_report

from .run import numbers

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


def figures(
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
        sys.stdout.writelines(f"{path}\n" for path in drawn)
    return 0


def track(
    runs: Runs,
    *,
    to: Annotated[str, typer.Option(click_type=click.Choice(sorted(TRACKERS)))],
) -> int:
    """Write finished runs to a tracker of experiments, as the key tracker does."""
    for run in [found for folder in runs for found in find_runs(folder)]:
        sys.stdout.write(f"{run.name}: {import_run(run, to)}\n")
    return 0
