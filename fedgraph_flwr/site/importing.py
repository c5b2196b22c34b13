"""``fedgraph site import``: make own tables of matrices, or of edges and nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import click
import typer

from datasets.own.import_matrices import Choice, import_matrices
from datasets.own.import_tables import import_tables
from datasets.tabular.table import Table
from fedgraph_flwr.core.errors import DataError

from .findings import AsJson


def import_files(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Matrices: a .npy or .npz file of all subjects, or a file for each,"
            " called as the subject, or a folder of these."
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="New folder for the tables.")],
    table: Annotated[
        Path | None, typer.Option(help="Matrices: table with a row for each subject.")
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="Table of nodes, such as accounts.")
    ] = None,
    edges: Annotated[
        Path | None, typer.Option(help="Table of edges, such as transfers.")
    ] = None,
    id_: Annotated[
        str, typer.Option("--id", help="Column that names a subject or node.")
    ] = "",
    label: Annotated[
        str, typer.Option(help="Column to predict, of subjects or nodes.")
    ] = "",
    site: Annotated[
        str, typer.Option(help="Column of sites: a folder for each site.")
    ] = "",
    drop: Annotated[
        str, typer.Option(help="Columns to leave out, separated by commas.")
    ] = "",
    source: Annotated[str, typer.Option(help="Edges: column of the first end.")] = "",
    target: Annotated[str, typer.Option(help="Edges: column of the other end.")] = "",
    time: Annotated[str, typer.Option(help="Edges: column of times.")] = "",
    weight: Annotated[str, typer.Option(help="Edges: column of weights.")] = "",
    edge_label: Annotated[
        str, typer.Option(help="Edges: column to predict of edges.")
    ] = "",
    header: Annotated[
        str,
        typer.Option(
            help="Edges: names of columns, separated by commas, if the first line of"
            " the file has none."
        ),
    ] = "",
    all_nodes: Annotated[
        bool,
        typer.Option(
            "--all-nodes", help="Ends of edges that --nodes lacks are nodes, too."
        ),
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, help="Matrices: pairs of at least this absolute value."),
    ] = None,
    density: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Matrices: share of the pairs, strongest first."
        ),
    ] = None,
    node_features: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(("row", "none")),
            help="Matrices: features of a node are its row, or none.",
        ),
    ] = "row",
    array: Annotated[
        str, typer.Option(help="Matrices: array of a .npz file that has several.")
    ] = "",
    as_json: AsJson = False,
) -> int:
    """Make the tables of own data from the files that you have.

    Either of matrices (FILES and --table) or of a table of edges (--edges) and one of
    nodes (--nodes). Columns get the names that own tables have; others stay. Nothing is
    unpickled, and no file is changed.
    """
    of_matrices = {"threshold": threshold, "density": density, "array": array}
    of_tables = {"source": source, "target": target, "time": time, "weight": weight}
    left_out = _list(drop)
    if files and table and not (edges or nodes):
        others = {"edge-label": edge_label, "header": header, "all-nodes": all_nodes}
        _refuse(of_tables | others, "--edges")
        if threshold is not None and density is not None:
            raise DataError("--threshold and --density are both given; choose one")
        if not id_:
            raise DataError(f"--id must name the column of {table} that names subjects")
        notes = import_matrices(
            files,
            Table(table),
            out,
            names={"graph": id_} | ({"label": label} if label else {}),
            choice=Choice(threshold, density, node_features == "row"),
            site=site,
            drop=left_out,
            array=array,
        )
    elif edges and not (files or table):
        _refuse(of_matrices, "FILES")
        if not nodes and (id_ or label or site):
            raise DataError("--id, --label and --site are columns of --nodes; give it")
        named = of_tables | {"label": edge_label}
        named |= {"source": source or "source", "target": target or "target"}
        notes = import_tables(
            Table(edges, tuple(_list(header))),
            Table(nodes) if nodes else None,
            out,
            edge_names={k: v for k, v in named.items() if v},
            node_names={"node": id_ or "node"} | ({"label": label} if label else {}),
            site=site,
            drop=left_out,
            all_nodes=all_nodes,
        )
    else:
        raise DataError(
            "give either FILES of matrices and --table, or --edges and, if there is"
            " one, --nodes"
        )
    if as_json:
        print(json.dumps({"out": str(out), "notes": notes}))
        return 0
    for note in notes:
        print(f"- {note}")
    first = next(iter(sorted(p.parent for p in out.rglob("nodes.csv"))))
    wanted = " --targets label" * bool(files and label)
    print(f"next: fedgraph site schema {first} --out {out}/schema.toml{wanted}")
    return 0


def _list(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _refuse(given: Mapping[str, object], other: str) -> None:
    """Refuse options that say nothing of the files that are given."""
    if odd := [name for name, value in given.items() if value not in (None, "", False)]:
        raise DataError(
            f"--{odd[0]} belongs to {other}, which is not given; leave it out"
        )
