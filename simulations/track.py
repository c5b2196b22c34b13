"""``fedgraph track``: write finished runs to a tracker of experiments.

The numbers and names are those that a run with the key ``tracker`` writes itself.
"""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from fedgraph_flwr.results.trackers import TRACKERS, import_run

from .report import Runs, find_runs


def track(
    runs: Runs,
    *,
    to: Annotated[str, typer.Option(click_type=click.Choice(sorted(TRACKERS)))],
) -> int:
    """Write finished runs to a tracker of experiments."""
    for run in [found for folder in runs for found in find_runs(folder)]:
        sys.stdout.write(f"{run.name}: {import_run(run, to)}\n")
    return 0
