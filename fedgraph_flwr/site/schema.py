"""``fedgraph site schema``: make a schema.toml from one site's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import click
import typer

from datasets.own.infer import infer_schema
from datasets.tabular.cells import MIN_COUNT
from datasets.tabular.schema_file import TARGET_KINDS, write_schema

from .findings import AsJson


def schema(
    folder: Annotated[Path, typer.Argument(help="Folder with one client's tables.")],
    *,
    out: Annotated[Path, typer.Option(help="File to write, e.g. schema.toml.")],
    targets: Annotated[
        str,
        typer.Option(
            help="Columns of graphs to predict, separated by commas (else the only one"
            " that looks like it; '*': all that do)."
        ),
    ] = "",
    kind: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(("auto", *TARGET_KINDS)),
            help="classes (one per graph), binary (0 or 1 in each column), regression.",
        ),
    ] = "auto",
    min_count: Annotated[
        int,
        typer.Option(
            min=1,
            help="Graphs, or nodes of one graph, that must have a category for it to be"
            " named.",
        ),
    ] = MIN_COUNT,
    no_statistics: Annotated[
        bool,
        typer.Option(
            "--no-statistics",
            help="Tell no mean and no standard deviation; numbers are then not scaled.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Make a schema.toml from one site's tables, to be read by all sites.

    Read the file before you share it: it holds names of columns, categories and classes
    that at least --min-count graphs (or nodes) have, and rounded means and standard
    deviations of columns of numbers. It holds no row, no smallest or largest value and
    no rare category.
    """
    made, notes = infer_schema(
        folder,
        targets=[t.strip() for t in targets.split(",") if t.strip()],
        kind=kind,
        min_count=min_count,
        statistics=not no_statistics,
    )
    write_schema(made, out)
    if as_json:
        facts = {"features": made.width, "outputs": made.num_outputs, "notes": notes}
        print(json.dumps({"out": str(out), "sha256": made.sha256, **facts}))
        return 0
    for note in notes:
        print(f"- {note}")
    print(
        f"{out}: {made.width} column(s) of features,"
        f" {made.num_outputs} {'class(es)' if made.classes else 'target(s)'}."
        " Read it, correct it, then give it to all sites."
    )
    return 0
