"""Loads one client's part of a data set, with its split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, IntArray
from fedgraph_flwr.core.errors import ConfigError, DataError

from . import partitioners, splits, synthetic
from .cache import Whole, label_checksum
from .catalog import (
    FILES,
    NATURAL_PLACES,
    ONE_WAY,
    PLANTED,
    SYNTHETIC,
    DatasetInfo,
    find_dataset,
    has_own_graphs,
    is_cut,
    is_one_set,
    label_kind,
    reads_edges,
)
from .edge_items import edge_items
from .molecules import BONDS, SMILES_CSV, Molecules, warn_once
from .node_clients import natural_node_client, node_client, planted_client
from .own.load import client_folder, given_roles, own_graph_client, own_graphs_client
from .own.smiles import check_csv_settings, client_file, load_client_file
from .partitioners import NODE_PARTITIONERS, check_overlap
from .plugged import plugged_client
from .public.moleculenet import load_moleculenet
from .public.natural import NATURAL, natural_graphs
from .public.node_graphs import NODE_SOURCES
from .public.tu import load_tu
from .splits import ALL as ALL_TASKS
from .splits import add_noise, check_noise, mask_tasks
from .tabular.encode import LeftOut
from .tabular.schema_file import GRAPH_CSV, GRAPHS_CSV
from .tabular.table import needing_permission
from .target_scale import check_scales, scaled


def skewed_client(name: str, settings: RunSettings, client_id: int) -> GraphPartition:
    """Client of partition "quantity-skew" of a MoleculeNet set.

    Validation and test graphs are split off the whole set, and every client has them
    all; the others are shared out by :func:`graph_partitions.quantity_skew`.

    Source
    ------
    FedGraphNN's protocol, as used by FGCL and SpreadGNN.
    """
    molecules = load_moleculenet(
        name, data_dir=settings.data_dir, cache_dir=settings.cache_dir
    )
    whole = Whole(label_checksum(molecules.y, molecules.node_ptr), molecules)
    clients, val, test = _skewed(whole, settings)
    own = clients[client_id]
    rows = np.sort(np.concatenate([own, val, test]))
    return GraphPartition(
        client_id=client_id,
        graphs=molecules.take(rows, settings.features),
        graph_ids=np.asarray(molecules.row)[rows],  # whatever RDKit accepts
        train=np.searchsorted(rows, own),
        val=np.searchsorted(rows, val),
        test=np.searchsorted(rows, test),
        tasks=tuple(molecules.tasks),
        shares_held_out=True,
        whole_sha256=whole.sha256,
    )


@lru_cache(maxsize=2)
def _skewed(
    whole: Whole[Molecules], settings: RunSettings
) -> tuple[list[IntArray], IntArray, IntArray]:
    """Training rows of each client, then validation and test rows of all."""
    y, scaffold = whole.content.y, np.array(whole.content.scaffold)
    seed, everything = settings.split_seed, np.arange(len(y))
    train, val, test = splits.split_client(
        everything, y, seed=seed, held_out=settings.held_out
    )
    if settings.split == "scaffold":
        counts = np.array([len(train), len(val), len(test)])
        what = f"molecules of {whole.content.name}"
        roles = splits.by_scaffold(scaffold, counts, what)
        train, val, test = (everything[roles == role] for role in range(3))
    own = partitioners.quantity_skew(
        train, settings.num_clients, seed=seed, alpha=settings.dirichlet_alpha
    )
    return own, val, test


def file_client(name: str, settings: RunSettings, client_id: int) -> GraphPartition:  # noqa: ARG001
    """Client of partition "files": the molecules of its own CSV file.

    The split is that of the column ``split``, if there is one; else it depends on the
    split seed and the usable rows only, hence not on how a file is reached, nor on
    other clients.
    """
    molecules = load_client_file(settings, client_id)
    path = client_file(settings, client_id)
    graphs = molecules.take(np.arange(len(molecules)), settings.features)
    rows, bad = np.array(molecules.row), len(molecules.bad_row)
    if molecules.has_split and settings.held_out > 0:
        roles = given_roles(molecules.role, path, client_id)
        made = splits.with_roles(client_id, graphs, rows, roles)
    else:
        scaffold = np.array(molecules.scaffold)
        made = splits.split_graphs(client_id, graphs, rows, settings, scaffold=scaffold)
    return replace(
        made,
        source=path.name,
        tasks=tuple(molecules.tasks),
        left_out=str(LeftOut("molecules", bad + len(molecules), bad)),
    )


_FROM_TABLES = {GRAPHS_CSV: own_graphs_client, GRAPH_CSV: own_graph_client}
_FOR_MOLECULES = {"quantity-skew": skewed_client, FILES: file_client}


@needing_permission()
def load_partition(settings: RunSettings, client_id: int) -> GraphPartition:
    """Load the graphs of one client with their split.

    They are copies of this client's graphs only.

    Parameters
    ----------
    settings : RunSettings
        ``dataset``, ``partition``, ``features``, ``num_clients``, ``split_seed``,
        ``dirichlet_alpha``, ``dominance``, ``held_out``, ``data_dir``, ``cache_dir``,
        ``task_masks``, the ``split_noise_`` settings and, for a user's own molecules,
        the ``csv_`` settings are read.
    client_id : int
        In ``range(settings.num_clients)``.

    Raises
    ------
    ConfigError
        If data set, partition, client count and client id do not fit together.
    DataError
        If data are missing or unreadable, or some client gets fewer than 3 graphs.
    """
    info = find_dataset(settings.dataset)
    _check_fit(info, settings)
    if not 0 <= client_id < settings.num_clients:
        raise ConfigError(
            f"client id must be in 0..{settings.num_clients - 1} for num-clients"
            f" {settings.num_clients}, got {client_id}; start as many nodes as"
            " num-clients says"
        )
    loaded = _load(info, settings, client_id)
    if not settings.edge_features:
        graphs = loaded.graphs.without_edge_features()
        loaded = replace(loaded, graphs=graphs, data_hash="")
    loaded = edge_items(loaded, settings)
    return add_noise(scaled(loaded, settings), settings)


def _load(info: DatasetInfo, settings: RunSettings, client_id: int) -> GraphPartition:
    """Load a client's graphs as they are in the files."""
    if info.own is not None:
        return plugged_client(info.own, settings, client_id)
    if info.name == PLANTED:
        return planted_client(settings, client_id)
    if info.name in _FROM_TABLES:
        return mask_tasks(_FROM_TABLES[info.name](settings, client_id), settings)
    if info.kind == "nodes" and info.name in NATURAL:
        return natural_node_client(settings, client_id)
    if info.is_one_graph:
        return node_client(info.name, settings, client_id)
    make = _FOR_MOLECULES.get(str(info.automatic["partition"]))
    if make is not None:
        return mask_tasks(make(info.name, settings, client_id), settings)
    if info.name == SYNTHETIC:
        rows = synthetic.client_rows(client_id)
        graphs = whole = synthetic.generate_client(client_id, settings.split_seed)
        group = synthetic.client_group(client_id)
    elif info.name in NATURAL:
        whole = natural_graphs(settings, client_id)
        graphs = whole = whole.take(np.arange(len(whole)))
        rows, group = np.arange(len(whole)), -1
    else:
        whole = load_tu(
            info.members[client_id if len(info.members) > 1 else 0],
            settings.features,
            with_edges=reads_edges(settings),
            data_dir=_folder_of_client(settings, client_id),
            cache_dir=settings.cache_dir,
        )
        rows = np.arange(len(whole))
        if is_cut(settings):
            labels = Whole(label_checksum(whole.y, whole.node_ptr), whole.y)
            rows = _share_out(labels, settings)[client_id]
            if settings.partition == "chunks-overlap":
                warn_once(
                    "partition chunks-overlap: clients share graphs, so that models"
                    " that are averaged have seen test graphs of other clients"
                )
        graphs = whole.take(rows)
        group = -1
    is_whole = is_one_set(settings)
    sha256 = label_checksum(whole.y, whole.node_ptr) if is_whole else ""
    return splits.split_graphs(
        client_id, graphs, rows, settings, group=group, whole_sha256=sha256
    )


def _folder_of_client(settings: RunSettings, client_id: int) -> str:
    """Folder of a client's raw files; with partition "files", the client's own.

    That is ``client-<id>`` below ``data_dir`` if it is there, else ``data_dir`` itself,
    as at a site with one client, unless folders of other clients are there.
    """
    if settings.partition != FILES:
        return settings.data_dir
    if not settings.data_dir:
        raise ConfigError(
            f"partition {FILES!r} reads each client's own graphs, but data-dir is"
            " empty; set it to a folder with client-0, client-1, ... in it, or start"
            " each SuperNode with --node-config 'data-path=\"...\"'"
        )
    root, own = Path(settings.data_dir).expanduser(), f"client-{client_id}"
    if (root / own).is_dir():
        return str(root / own)
    if others := sorted(path.name for path in root.glob("client-*") if path.is_dir()):
        raise DataError(
            f"{root} has folders of {len(others)} client(s), as {others[0]}, but no"
            f" {own}, the graphs of client {client_id}; add it, or set num-clients to"
            " the number of folders (on a site: correct clients of --node-config)"
        )
    return settings.data_dir


@lru_cache(maxsize=2)
def _share_out(labels: Whole[IntArray], settings: RunSettings) -> list[IntArray]:
    """Rows of every client in a single real data set."""
    y = labels.content
    if settings.num_clients > len(y):
        raise ConfigError(
            f"more clients than graphs: num-clients is {settings.num_clients}, but"
            f" {settings.dataset} has {len(y)} graphs; set num-clients to"
            f" {len(y) // splits.MIN_GRAPHS} or less"
        )
    return partitioners.partition_graphs(
        settings.partition,
        y,
        num_clients=settings.num_clients,
        seed=settings.split_seed,
        alpha=settings.dirichlet_alpha,
        dominance=settings.dominance,
    )


def check_settings(settings: RunSettings) -> None:
    """Refuse settings that contradict each other, before anything is loaded.

    Raises
    ------
    ConfigError
        If data set, partition, features and client count do not fit together.
    """
    info = find_dataset(settings.dataset)
    _check_fit(info, settings)
    has_classes = label_kind(settings) not in ("binary", "regression")
    if settings.task_masks != ALL_TASKS and has_classes:
        raise ConfigError(
            f"task-masks must be {ALL_TASKS!r} where items have one class, as"
            f" in dataset {settings.dataset!r}, got {settings.task_masks!r}; set"
            " task-masks in the run config, or dataset to one with several labels"
        )
    check_noise(settings, label_kind(settings))
    has_times = info.name in _FROM_TABLES or label_kind(settings) in ("edges", "links")
    for split, is_there, why in (
        ("time", has_times, "only edges and own tables have times"),
        ("classes", info.name in NODE_SOURCES, "it is for nodes of public graphs"),
        ("scaffold", BONDS in info.features, "only molecules of SMILES have scaffolds"),
    ):
        if settings.split == split and not is_there:
            raise ConfigError(
                f"split must be 'random' for dataset {info.name!r} and task"
                f" {settings.task!r}, got {split!r}: {why}; set split in the run config"
            )
    _check_folds(settings)
    check_scales(settings)
    if info.name == SMILES_CSV:
        check_csv_settings(settings)


def _check_folds(settings: RunSettings) -> None:
    """Refuse a cross-validation that makes no sense."""
    folds, fold = settings.folds, settings.fold
    problem = ""
    if folds == 2:
        problem = "folds must be 1, or 3 or more, so that some part trains, got 2"
    elif fold >= folds:
        problem = f"fold must be below folds, {folds}, got {fold}"
    elif folds > 1 and settings.split != "random":
        problem = f"folds must be 1 with split {settings.split!r}, got {folds}"
    elif folds > 1 and settings.partition == "quantity-skew":
        problem = f"folds must be 1 with partition 'quantity-skew', got {folds}"
    if problem:
        raise ConfigError(f"{problem}; correct it in the run config")


@needing_permission()
def check_hosted(settings: RunSettings, hosted: Sequence[int]) -> None:
    """Refuse to give the data of one client to several clients of a node."""
    if len(hosted) < 2:
        return
    if settings.dataset in _FROM_TABLES:
        count = settings.num_clients
        places = {client_folder(settings.data_dir, c, count) for c in hosted}
    elif settings.dataset == SMILES_CSV:
        places = {client_file(settings, c) for c in hosted}
    elif settings.partition == FILES and has_own_graphs(settings):
        places = {Path(_folder_of_client(settings, c)) for c in hosted}
    else:
        return
    if len(places) < len(hosted):
        raise ConfigError(
            f"this node hosts clients {', '.join(map(str, hosted))}, but"
            f" {settings.data_dir!r} holds the data of one client, on which they would"
            " all train; give the node one of them (clients of --node-config), or a"
            " folder with a folder or CSV file for each client (data-path)"
        )


def _check_fit(info: DatasetInfo, settings: RunSettings) -> None:
    """Check what holds at every client, wherever its data are."""
    natural = info.automatic["partition"]
    table = NODE_PARTITIONERS if info.is_one_graph else partitioners.PARTITIONERS
    if natural in ONE_WAY:
        allowed = [natural]
    else:
        allowed = sorted([*table, FILES] if info.kind == "classes" else table)
    if settings.partition not in allowed:
        raise ConfigError(
            f"partition of dataset {info.name!r} must be"
            f" {' or '.join(repr(kind) for kind in allowed)}, got"
            f" {settings.partition!r}; set partition to 'auto'"
        )
    if natural in ("datasets", NATURAL_PLACES) and settings.num_clients != len(
        info.members
    ):
        raise ConfigError(
            f"dataset {info.name!r} gives each client one of its {len(info.members)}"
            f" {'data sets' if natural == 'datasets' else 'places'}, but num-clients"
            f" is {settings.num_clients}; set num-clients to {len(info.members)} or"
            " 'auto'"
        )
    if settings.partition.startswith("metis-overlap"):
        check_overlap(settings.num_clients)
    if settings.features not in info.features:
        raise ConfigError(
            f"features of dataset {info.name!r} must be"
            f" {' or '.join(map(repr, info.features))}, got {settings.features!r}; set"
            " features to 'auto'"
        )
