"""Finds the tables in a user's folder: CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.table import Table, Tables

CORRECT_PLACE = "correct data-dir (on a site: data-path of --node-config)"


def holds_tables(folder: Path, *, of_any_kind: bool = False) -> bool:
    """Whether a folder has tables itself, rather than folders of clients.

    A table of nodes is meant, or ``of_any_kind``.
    """
    stems = ("nodes", "edges", "graphs") if of_any_kind else ("nodes",)
    return any(_places(folder, stem) for stem in stems)


def wanted_tables(folder: Path) -> str:
    """Say which tables and columns a folder must have, and which files it has."""
    found = sorted(p.name for p in folder.glob("*.*") if p.is_file())
    return (
        "one graph is nodes.csv (columns node, label, and what describes a node) and"
        " edges.csv (source, target); whole graphs are graphs.csv (graph, and what is"
        " to be predicted), nodes.csv (graph, node, ...) and edges.csv (graph, source,"
        f" target); got {shortened(', '.join(found)) or 'no file'}: rename files and"
        " columns (files in TU's layout are read as tu:NAME)"
    )


def is_one_graph(folder: Path) -> bool:
    """Whether a folder has a table of nodes and none of graphs."""
    return any(_places(folder, "nodes")) and not any(_places(folder, "graphs"))


def find_tables(folder: Path, *, whole_graphs: bool) -> Tables:
    """Find the tables of one client.

    Parameters
    ----------
    folder : Path
        With ``nodes``, ``edges`` and, for whole graphs, ``graphs``, each as ``.csv`` or
        ``.parquet``.
    whole_graphs : bool

    Raises
    ------
    DataError
        A file is missing, or there twice.
    """
    return Tables(
        graphs=_table(folder, "graphs") if whole_graphs else None,
        nodes=_table(folder, "nodes"),
        edges=_table(folder, "edges"),
    )


def _places(folder: Path, stem: str) -> list[Path]:
    return [p for e in ("csv", "parquet") if (p := folder / f"{stem}.{e}").is_file()]


def _table(folder: Path, stem: str) -> Table:
    places = _places(folder, stem)
    if not places:
        raise DataError(
            f"{folder} has no {stem}.csv (nor {stem}.parquet): {wanted_tables(folder)};"
            f" write it as docs/own-data.md shows, or {CORRECT_PLACE}"
        )
    if len(places) > 1:
        raise DataError(
            f"{folder} has {stem}.csv and {stem}.parquet; delete one of them"
        )
    return Table(places[0])
