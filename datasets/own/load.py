"""One client's graphs from tables, with their split.

``data-dir``, or a site's ``data-path``, holds ``schema.toml`` and either the tables of
one client or a folder for each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.tasks import OF_EDGES
from fedgraph_flwr.core.words import shortened

from ..molecules import SMILES_CSV, list_all, warn_left_out, warn_once
from ..node_clients import draw_roles
from ..splits import (
    DECIDES,
    TRAIN,
    as_split_says,
    check_is_drawn,
    need_graphs,
    split_graphs,
    with_roles,
)
from ..tabular.encode import NO_ROLE, ROLES, count_rows
from ..tabular.schema_file import GRAPH_CSV, GRAPHS_CSV, SCHEMA_FILE, read_schema
from ..tabular.table import (
    CORRECT_PLACE,
    find_tables,
    holds_tables,
    read_rows,
    wanted_tables,
)
from .graph_tables import OwnData, load_folder
from .smiles import client_file, load_client_file, own_place

OWN_TABLES = (GRAPHS_CSV, GRAPH_CSV)


def client_folder(data_dir: str, client_id: int, num_clients: int) -> Path:
    """Find the folder with the tables of a client.

    That is ``data_dir`` itself if it holds tables, else number ``client_id`` of the
    folders in it, sorted by name as text; those that begin with "." or "_" do not
    count.
    """
    folders, is_single = _folders(data_dir)
    if is_single:
        return folders[0]
    if len(folders) != num_clients:
        raise ConfigError(
            f"{data_dir} has {len(folders)} folder(s), one for each client, but"
            f" num-clients is {num_clients}; set num-clients to {len(folders)}"
        )
    return folders[client_id]


def _folders(data_dir: str) -> tuple[list[Path], bool]:
    """Folders of clients, and whether there is only the given one."""
    path = own_place(data_dir, f"a folder with {SCHEMA_FILE} and a folder")
    if path.is_file():
        raise DataError(
            f"{path} is a file: molecules (smiles-csv) have no schema, own tables and"
            f" their schema lie in a folder; {CORRECT_PLACE}"
        )
    folders = sorted(p for p in path.iterdir() if p.is_dir() and p.name[0] not in "._")
    both = [p.name for p in folders if holds_tables(p)]
    if both and holds_tables(path, of_any_kind=True):
        raise DataError(
            f"{path} has tables itself and folders with tables"
            f" ({shortened(', '.join(both))}), of which a run reads only one kind; move"
            " the tables or the folders elsewhere, or begin names of folders that are"
            " to be passed over with '_'"
        )
    if holds_tables(path):
        return [path], True
    if not folders:
        raise DataError(
            f"{path} has neither nodes.csv nor a folder for each client:"
            f" {wanted_tables(path)}; write the tables as docs/own-data.md shows, or"
            f" {CORRECT_PLACE}"
        )
    return folders, False


def count_clients(path: Path) -> int:
    """How many clients' folders there are in a folder; 1 if it is one client's own."""
    try:
        return len(_folders(str(path))[0])
    except DataError:  # which reading the data says
        return 1


def _schema_path(settings: RunSettings) -> Path:
    return Path(settings.data_dir).expanduser() / SCHEMA_FILE


def load_own(settings: RunSettings, client_id: int) -> tuple[Path, OwnData]:
    """Load the tables of one client by the schema beside them, or beside its folder."""
    folder = client_folder(settings.data_dir, client_id, settings.num_clients)
    path = _schema_path(settings)
    schema = read_schema(path)
    if schema.dataset != settings.dataset:
        raise ConfigError(
            f"{path} is for dataset {schema.dataset!r}, but the run has"
            f" {settings.dataset!r}; set dataset in the run config, or give the site"
            " the schema of this run"
        )
    if schema.dataset == GRAPHS_CSV and schema.target_kind != settings.csv_label_kind:
        raise ConfigError(
            f"[target] of {path} has kind {schema.target_kind!r}, but csv-label-kind is"
            f" {settings.csv_label_kind!r}; set csv-label-kind to"
            f" {schema.target_kind!r} in the run config"
        )
    bad_rows, cache_dir = settings.csv_bad_rows, settings.cache_dir
    data = load_folder(folder, schema, bad_rows=bad_rows, cache_dir=cache_dir)
    if data.bad:
        warn_left_out(
            f"{count_rows(data.bad)} row(s) of {folder} do not fit the schema; they are"
            " left out, with graphs or nodes that they name",
            data.bad,
        )
    dropped = [f"{data.num_dropped} row(s)"] if data.num_dropped else []
    why_dropped = "dropped, as they join a node to itself"
    if schema.edges is None:
        why_dropped = "repeat an edge, or join a node to itself"
    for words, found in (
        ("left out, as rows do not fit or name what is elsewhere", data.left_out),
        ("not used", data.not_used),
        (why_dropped, dropped),
    ):
        if found:
            warn_once(f"{folder}: {words}: {', '.join(found)}")
    for remark in data.remarks:
        warn_once(f"{folder}: {remark}")
    if data.has_split:
        if settings.task not in OF_EDGES:
            check_is_drawn(settings, f"column 'split' of {folder}")
        is_read = settings.dataset == GRAPH_CSV or settings.held_out > 0
        is_read &= settings.task not in OF_EDGES
        warn_once(f"{folder}: column split {DECIDES[is_read]}")
    return folder, data


def read_schema_text(settings: RunSettings) -> str:
    """Text of the schema by which a run reads its graphs; "" if there is none.

    A server of sites has none: it sees no data.
    """
    if settings.dataset not in OWN_TABLES or not settings.data_dir:
        return ""
    path = _schema_path(settings)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def list_faults(settings: RunSettings, client_id: int) -> tuple[list[str], list[str]]:
    """List rows of own data that are left out, and columns that may mean another thing.

    Both are empty for other data.
    """
    if settings.dataset == SMILES_CSV:
        found = load_client_file(settings, client_id)
        name = client_file(settings, client_id).name
        return list_all(found.bad, f"{name}, line"), list(found.remarks)
    if settings.dataset not in OWN_TABLES:
        return [], []
    data = load_own(settings, client_id)[1]
    return list(data.bad), list(data.remarks)


def name_items(
    settings: RunSettings, client_id: int, rows: Sequence[int]
) -> tuple[str, list[str]]:
    """Name graphs or nodes of a client by their rows, from 0, in its data.

    Returns what a name is, too: "graph" or "node" of own tables, "line" of edges and of
    own molecules, else "row".
    """
    if settings.dataset == SMILES_CSV:
        lines = read_rows(client_file(settings, client_id)).lines
        return "line", [str(lines[row]) for row in rows]
    if settings.dataset not in OWN_TABLES:
        return "row", [str(row) for row in rows]
    is_whole = settings.dataset == GRAPHS_CSV
    folder = client_folder(settings.data_dir, client_id, settings.num_clients)
    tables = find_tables(folder, whole_graphs=is_whole)
    if settings.task in OF_EDGES:
        of_edge = load_own(settings, client_id)[1].edge_row
        if of_edge is None:
            return "row", [str(row) for row in rows]
        lines = tables.edges.rows.lines
        return "line", [str(lines[of_edge[row]]) for row in rows]
    table, column = (tables.graphs or tables.nodes), "graph" if is_whole else "node"
    return column, [table.rows.cells[column][row] for row in rows]


def own_graphs_client(settings: RunSettings, client_id: int) -> GraphPartition:
    """Whole graphs of one client, split by column ``split`` or by the split seed."""
    folder, data = load_own(settings, client_id)
    need_graphs(len(data.row), client_id, "graph", folder)
    graphs = _copied(data)
    if graphs.has_tasks and np.isnan(graphs.y).all():
        raise DataError(
            f"client {client_id} has no target at all in {folder}; add some, or leave"
            " this client out"
        )
    rows, source = np.array(data.row), f"{folder.name}/graphs"
    if data.has_split and settings.held_out > 0:
        roles = given_roles(data.role, folder, client_id)
        made = with_roles(client_id, graphs, rows, roles)
    else:
        made = split_graphs(client_id, graphs, rows, settings)
    tasks, left_out = tuple(data.tasks), ", ".join(data.left_out)
    return replace(made, source=source, tasks=tasks, left_out=left_out)


def own_graph_client(settings: RunSettings, client_id: int) -> GraphPartition:
    """One graph of one client, whose nodes are classified.

    Nodes without label neither train nor validate nor test, but are neighbours.
    """
    folder, data = load_own(settings, client_id)
    graphs = _copied(data)
    if settings.task in OF_EDGES:  # who trains is drawn of edges
        roles = np.full(len(graphs.y), NO_ROLE)
    elif not graphs.num_classes:
        raise DataError(
            f"client {client_id} has no classes of nodes in {folder}; set task to"
            " 'edge-classification' or 'link-prediction' in the run config, or name"
            " classes of nodes as [target] of the schema"
        )
    elif data.has_split:
        roles = given_roles(data.role, folder, client_id)
    else:
        labelled = np.flatnonzero(graphs.y >= 0)
        roles = np.full(len(graphs.y), NO_ROLE)
        what = f"labelled nodes of client {client_id} in {folder}"
        drawn = draw_roles(
            len(labelled),
            settings,
            derive_seed(settings.split_seed, GRAPH_CSV),
            what=what,
            y=graphs.y[labelled],
        )
        times = None if graphs.time is None else graphs.time[labelled]
        roles[labelled] = as_split_says(drawn, times, settings, what)
    if settings.split != "time":  # training sees all edges
        graphs = replace(graphs, time=None)
    elif settings.task not in OF_EDGES and graphs.edge_time is not None:
        assert graphs.time is not None
        if (graphs.edge_time > graphs.time[roles == TRAIN].max()).all():
            raise DataError(
                f"split is 'time', but no edge of client {client_id} in {folder} is as"
                " old as its newest training node, so that training would see none;"
                " write times of nodes and edges alike, as dates or as numbers, or set"
                " split to 'random' in the run config"
            )
    rows, left_out = np.array(data.row), ", ".join(data.left_out)
    return with_roles(client_id, graphs, rows, roles, left_out=left_out)


def given_roles(role: NDArray[np.int8], place: Path, client_id: int) -> IntArray:
    """Return the roles of column ``split``; each must be there."""
    roles = np.array(role, np.int64)
    if empty := [name for name, role in ROLES.items() if role not in roles]:
        raise DataError(
            f"client {client_id}: column 'split' of {place} names nothing"
            f" {' and nothing '.join(empty)}; name at least one of each, or delete the"
            " column to have a split drawn"
        )
    return roles


def _copied(data: OwnData) -> GraphSet:
    """Copy graphs out of the cache, with which tensors must not share memory."""
    found = {f.name: getattr(data, f.name) for f in fields(GraphSet)}
    copies = {k: np.array(v) for k, v in found.items() if isinstance(v, np.ndarray)}
    return GraphSet(**found | copies)
