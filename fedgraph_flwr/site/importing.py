"""``fedgraph site import``: make own tables of the files that a site has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from datasets.own.import_matrices import import_matrices
from datasets.own.import_others import READERS, edge_list, import_others
from datasets.own.import_tables import import_tables
from datasets.tabular.table import Table
from fedgraph_flwr.core.errors import DataError

from .findings import AsJson


def _option(words: str, *names: str, **how: Any) -> Any:
    return typer.Option(*names, help=words, **how)


_FILES = typer.Argument(
    help="Matrices: a .npy or .npz file of all subjects, or a file for each, called as"
    " the subject, or a folder of these. Graphs: .graphml, .gexf, or .pt of PyG."
    " Molecules: .sdf."
)
_EDGES = "Table of edges, as of transfers, or an .edgelist."
_NO_HEADER = "Edges: names of columns, with commas, if the file has no such line."
_FEATURES = "Matrices: a node's features are its row of the matrix, or none."
_ROW_OR_NONE = click.Choice(("row", "none"))


def import_files(
    files: Annotated[list[Path] | None, _FILES] = None,
    *,
    out: Annotated[Path, _option("New folder for the tables.")],
    table: Annotated[Path | None, _option("Matrices: table of the subjects.")] = None,
    nodes: Annotated[Path | None, _option("Table of nodes, as of accounts.")] = None,
    edges: Annotated[Path | None, _option(_EDGES)] = None,
    id_: Annotated[str, _option("Column of names of subjects or nodes.", "--id")] = "",
    label: Annotated[str, _option("Column to predict, of subjects or nodes.")] = "",
    site: Annotated[str, _option("Column of sites: a folder for each.")] = "",
    drop: Annotated[str, _option("Columns to leave out, with commas.")] = "",
    source: Annotated[str, _option("Edges: column of the first end.")] = "source",
    target: Annotated[str, _option("Edges: column of the other end.")] = "target",
    time: Annotated[str, _option("Edges: column of times.")] = "",
    weight: Annotated[str, _option("Edges: column of weights.")] = "",
    edge_label: Annotated[str, _option("Edges: column to predict of edges.")] = "",
    header: Annotated[str, _option(_NO_HEADER)] = "",
    all_nodes: Annotated[
        bool, _option("Ends of edges that --nodes lacks are nodes, too.", "--all-nodes")
    ] = False,
    threshold: Annotated[
        float | None, _option("Matrices: pairs of at least this absolute value.", min=0)
    ] = None,
    density: Annotated[
        float | None,
        _option("Matrices: share of pairs, strongest first.", min=0, max=1),
    ] = None,
    node_features: Annotated[str, _option(_FEATURES, click_type=_ROW_OR_NONE)] = "row",
    array: Annotated[str, _option("Matrices: array of a file with several.")] = "",
    as_json: AsJson = False,
) -> int:
    """Make the tables of own data from the files that you have.

    Either of matrices (FILES and --table), or of graphs or molecules of other programs
    (FILES), or of a table of edges (--edges) and one of nodes (--nodes). Columns get
    the names that own tables have; others stay. Nothing is unpickled but tensors and
    plain values, and no file is changed.
    """
    common: dict[str, Any] = {"site": site, "drop": _list(drop)}
    of_items = {"graph" if files else "node": id_ or "node", "label": label}
    of_edges = {"source": source, "target": target, "time": time, "weight": weight}
    of_edges["label"] = edge_label
    is_cut = threshold is not None or density is not None
    is_other = any(p.suffix.lower() in READERS for f in files or () for p in _in(f))
    if files and table and id_ and not (edges or nodes):
        if threshold is not None and density is not None:
            raise DataError("--threshold and --density are both given; choose one")
        notes = import_matrices(
            files,
            Table(table),
            out,
            names=_given(of_items),
            threshold=threshold,
            density=density,
            features=node_features == "row",
            array=array,
            **common,
        )
    elif files and is_other and not (table or edges or nodes or is_cut or array):
        given = {"id": id_} if files[0].suffix.lower() == ".sdf" else {}
        notes = import_others(
            files,
            out,
            names=_given({**given, "label": label}),
            edge_names=_given(of_edges),
            **common,
        )
    elif edges and not (files or table or is_cut or array):
        if not nodes and (id_ or label or site):
            raise DataError("--id, --label and --site are columns of --nodes; give it")
        notes = import_tables(
            edge_list(edges)
            if edges.suffix == ".edgelist"
            else Table(edges, tuple(_list(header))),
            Table(nodes) if nodes else None,
            out,
            edge_names=_given(of_edges),
            node_names=_given(of_items),
            all_nodes=all_nodes,
            **common,
        )
    else:
        raise DataError(
            "give either FILES of matrices with --table, --id and how to choose pairs,"
            " or FILES of graphs or molecules, or --edges and, if there is one, --nodes"
        )
    if as_json:
        print(json.dumps({"out": str(out), "notes": notes}))
        return 0
    for note in notes:
        print(f"- {note}")
    first = min((path.parent for path in out.rglob("nodes.csv")), default=None)
    if first is None:
        print(f"next: a run with dataset=smiles-csv data-dir={out}")
        return 0
    wanted = " --targets label" * bool(files and label)
    print(f"next: fedgraph site schema {first} --out {out}/schema.toml{wanted}")
    return 0


def _in(path: Path) -> list[Path]:
    return [*path.iterdir()] if path.is_dir() else [path]


def _list(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _given(names: dict[str, str]) -> dict[str, str]:
    return {name: column for name, column in names.items() if column}
