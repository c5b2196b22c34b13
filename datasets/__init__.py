"""Data sets by name, and the part of one that a client holds.

This package deliberately has the name of Hugging Face's ``datasets``; it is imported
from the application root, which comes first on the path.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedgraph_flwr.config import RunSettings, Value, shown
from fedgraph_flwr.data import GraphPartition, IntArray
from fedgraph_flwr.errors import ConfigError, unknown_name

from . import splits, synthetic
from .atoms import FEATURES as ATOM_FEATURES
from .cache import cache_root, label_checksum
from .diffusion import load_diffusion
from .molecule_clients import file_client, skewed_client
from .node_clients import node_client, planted_client
from .node_partitions import PARTITIONERS as NODE_PARTITIONERS
from .node_partitions import check_overlap
from .smiles_csv import SMILES_CSV, check_hosted, check_single_file
from .task_masks import ALL as ALL_TASKS
from .task_masks import mask_tasks
from .tu import READS as TU_FEATURES
from .tu import load_tu

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "cache_root",
    "check_hosted",
    "check_settings",
    "find_dataset",
    "has_own_graphs",
    "is_cut",
    "is_one_set",
    "label_kind",
    "load_diffusion",
    "load_partition",
    "reads_files",
]

log = logging.getLogger("flwr.fedgraph")

SYNTHETIC = "synthetic"
PLANTED = "planted"
# partitions that a data set leaves no choice of
FILES = "files"
_ONE_WAY = ("datasets", "files", "planted", "quantity-skew")
_FOR_MOLECULES = {"quantity-skew": skewed_client, "files": file_client}
TU_PREFIX = "tu:"
_TU_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANY_TU_CURE = (
    "Any other TU data set with classes is written tu:NAME, e.g. tu:PTC_FM; set"
    " dataset in the run config"
)
MOLECULES = ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
BIOCHEM = (*MOLECULES, "ENZYMES", "DD", "PROTEINS")
MIX = (*BIOCHEM, "COLLAB", "IMDB-BINARY", "IMDB-MULTI")


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that a run can be set to.

    Parameters
    ----------
    name : str
    members : tuple of str
        Data sets it consists of; client ``i`` of a group holds ``members[i]``.
    automatic : mapping
        Recommended value by run-config key, for keys written ``"auto"``, where the
        method's paper has no other.
    fixed : mapping
        The same for keys that the data decide, whatever the method.
    kind : str
        What is known of a graph: its class among several ("classes"), or a label for
        each of one or more tasks, 0 or 1 ("binary") or any number ("regression"), or
        the class of each of its nodes ("nodes"). "" where the run config says; see
        :func:`label_kind`.
    features : tuple of str
        What the setting of that name may be.
    """

    name: str
    members: tuple[str, ...]
    automatic: Mapping[str, Value]
    fixed: Mapping[str, Value]
    kind: str = "classes"
    features: tuple[str, ...] = tuple(TU_FEATURES)


def _info(
    name: str,
    members: tuple[str, ...],
    *,
    partition: str,
    num_clients: int,
    features: str = "labels",
    rounds: int = 200,
    shared_group: str = "convs",
    weight_decay: float = 5e-4,
) -> DatasetInfo:
    sharing: dict[str, Value] = {"num-clients": num_clients, "partition": partition}
    automatic: dict[str, Value] = {
        **sharing,
        "num-server-rounds": rounds,
        "dirichlet-alpha": 0.5,
        "features": features,
        "shared-group": shared_group,
        "weighting": "samples",
        "weight-decay": weight_decay,
        # of the GCFL authors' code, on all of these data
        "held-out": 0.2,
        "local-epochs": 1,
        "batch-size": 128,
        "optimizer": "adam",
        "persist-optimizer": True,
        "hidden-dim": 64,
        "num-layers": 3,
        "dropout": 0.5,
    }
    fixed = sharing if partition in _ONE_WAY else {}
    return DatasetInfo(
        name, members, MappingProxyType(automatic), MappingProxyType(fixed)
    )


def _single(name: str) -> DatasetInfo:
    # 200 rounds, 30 clients for NCI1 and 10 for the others: GCFL, our spec Sec. 3
    num_clients = 30 if name == "NCI1" else 10
    # The papers leave attributes out, which some of their sets have; others keep them.
    features = "labels" if name in MIX else "labels+attributes"
    return _info(
        name, (name,), partition="chunks", num_clients=num_clients, features=features
    )


def _group(name: str, members: tuple[str, ...]) -> DatasetInfo:
    return _info(name, members, partition="datasets", num_clients=len(members))


def _labelled(
    name: str,
    num_clients: int,
    alpha: float,
    *,
    kind: str = "binary",
    partition: str = "quantity-skew",
) -> DatasetInfo:
    # rounds and below: FedGraphNN's code, our spec of FGCL, Sec. 3
    automatic: dict[str, Value] = {
        "num-clients": num_clients,
        "partition": partition,
        "dirichlet-alpha": alpha,
        "held-out": 0.2,
        "features": "atoms",
        "num-server-rounds": 50,
        "local-epochs": 1,
        "batch-size": 32,
        "optimizer": "adam",
        "weight-decay": 0.0,
        "persist-optimizer": False,
        "hidden-dim": 64,
        "num-layers": 2,
        "dropout": 0.3,
        "shared-group": "all",
        "weighting": "samples",
    }
    return DatasetInfo(
        name,
        (name,),
        MappingProxyType(automatic),
        MappingProxyType({"partition": partition}),
        kind,
        tuple(ATOM_FEATURES),
    )


def _nodes(
    name: str, features: str = "row-normalized", *, partition: str = "metis"
) -> DatasetInfo:
    # rounds and below: FedGKD, our spec Sec. 3; held out are 35 % to validate and test
    automatic: dict[str, Value] = {
        "num-clients": 5,
        "partition": partition,
        "dirichlet-alpha": 0.5,
        "held-out": 0.7,
        "features": features,
        "num-server-rounds": 200,
        "local-epochs": 3,
        "batch-size": 1,
        "optimizer": "adam",
        "weight-decay": 1e-6,
        "persist-optimizer": True,
        "hidden-dim": 128,
        "num-layers": 2,
        "dropout": 0.5,
        "shared-group": "all",
        "weighting": "uniform",
    }
    fixed: dict[str, Value] = {"partition": partition} if partition in _ONE_WAY else {}
    allowed = ("raw",) if features == "raw" else ("row-normalized", "raw")
    return DatasetInfo(
        name,
        (name,),
        MappingProxyType(automatic),
        MappingProxyType(fixed),
        "nodes",
        allowed,
    )


DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            _info(
                SYNTHETIC,
                (SYNTHETIC,),
                partition="planted",
                num_clients=10,
                features="degree",
                rounds=50,
                shared_group="all",
                weight_decay=0.0,
            ),
            *map(_single, MIX),
            _group("molecules", MOLECULES),
            _group("biochem", BIOCHEM),
            _group("mix", MIX),
            # clients and alpha: FGCL (our spec, Sec. 3); of MUV and QM8: SpreadGNN;
            # of ESOL and Lipo: FedGraphNN; of FreeSolv: ours
            _labelled("SIDER", 4, 0.2),
            _labelled("BACE", 4, 0.5),
            _labelled("ClinTox", 4, 0.5),
            _labelled("BBBP", 4, 2.0),
            _labelled("Tox21", 8, 3.0),
            _labelled("MUV", 8, 0.3),
            _labelled("ESOL", 4, 2.0, kind="regression"),
            _labelled("FreeSolv", 4, 0.5, kind="regression"),
            _labelled("Lipo", 8, 2.0, kind="regression"),
            _labelled("QM8", 8, 0.5, kind="regression"),
            _labelled(SMILES_CSV, 1, 0.5, kind="", partition="files"),
            *map(_nodes, ("Cora", "CiteSeer", "PubMed", "Photo", "Computers")),
            _nodes("ogbn-arxiv", "raw"),
            _nodes(PLANTED, "raw", partition="planted"),
        )
    }
)


def find_dataset(name: str) -> DatasetInfo:
    """Look a data set up: a key of ``DATASETS``, or ``tu:NAME``.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    if name in DATASETS:
        return DATASETS[name]
    if not name.startswith(TU_PREFIX):
        raise ConfigError(unknown_name("dataset", name, DATASETS, ANY_TU_CURE))
    member = name.removeprefix(TU_PREFIX)
    if not _TU_NAME.fullmatch(member):  # it becomes part of paths
        raise ConfigError(
            f"dataset must be tu:NAME with NAME made of up to 64 letters, digits, - and"
            f" _, got {shown(name)}; set dataset in the run config"
        )
    return _single(member)


def load_partition(settings: RunSettings, client_id: int) -> GraphPartition:
    """Load the graphs of one client with their split.

    Parameters
    ----------
    settings : RunSettings
        ``dataset``, ``partition``, ``features``, ``num_clients``, ``split_seed``,
        ``dirichlet_alpha``, ``dominance``, ``held_out``, ``data_dir``, ``cache_dir``,
        ``task_masks``, ``task_owners`` and, for a user's own molecules, the ``csv_``
        settings are read.
    client_id : int
        In ``range(settings.num_clients)``.

    Returns
    -------
    GraphPartition
        Holds copies of this client's graphs only.

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
    if info.name == PLANTED:
        return planted_client(settings, client_id)
    if info.kind == "nodes":
        return node_client(info.name, settings, client_id)
    make = _FOR_MOLECULES.get(str(info.automatic["partition"]))
    if make is not None:
        return mask_tasks(make(info.name, settings, client_id), settings)
    seed = settings.split_seed
    if info.name == SYNTHETIC:
        rows = synthetic.client_rows(client_id)
        whole = synthetic.load_client(client_id, seed, cache_dir=settings.cache_dir)
        graphs = whole.take(np.arange(len(whole)))
        group = synthetic.client_group(client_id)
    else:
        whole = load_tu(
            info.members[client_id if len(info.members) > 1 else 0],
            settings.features,
            data_dir=_folder_of_client(settings, client_id),
            cache_dir=settings.cache_dir,
        )
        rows = np.arange(len(whole))
        if is_cut(settings):
            shares = _share_out(whole.y, settings)
            rows = shares[client_id]
            if settings.partition == "chunks-overlap":
                _tell_overlap(whole.y, shares, settings, client_id)
        graphs = whole.take(rows)
        group = -1
    train, val, test = splits.split_client(
        np.arange(len(rows)), graphs.y, seed=seed, held_out=settings.held_out
    )
    return GraphPartition(
        client_id=client_id,
        graphs=graphs,
        graph_ids=rows,
        train=train,
        val=val,
        test=test,
        group=group,
        whole_sha256=(
            label_checksum(whole.y, whole.node_ptr) if is_one_set(settings) else ""
        ),
    )


def _tell_overlap(
    y: IntArray, shares: Sequence[IntArray], settings: RunSettings, client_id: int
) -> None:
    """Log which share of the client's test graphs other clients train on."""
    seen, total = splits.trained_elsewhere(
        y, shares, client_id, seed=settings.split_seed, held_out=settings.held_out
    )
    if total:
        log.warning(
            "client %d: other clients train on %d of its %d test graphs (partition"
            " chunks-overlap): models that are averaged have seen them",
            client_id,
            seen,
            total,
        )


def _folder_of_client(settings: RunSettings, client_id: int) -> str:
    """Where a client's raw files are looked for; by partition "files" its own folder.

    That is ``client-<id>`` below ``data_dir`` if it is there, else ``data_dir`` itself,
    as at a site with one client.
    """
    if settings.partition != FILES:
        return settings.data_dir
    if not settings.data_dir:
        raise ConfigError(
            f"partition {FILES!r} reads each client's own graphs, but data-dir is"
            " empty; set it to a folder with client-0, client-1, ... in it, or start"
            " each"
            " SuperNode with --node-config 'data-path=\"...\"'"
        )
    own = Path(settings.data_dir).expanduser() / f"client-{client_id}"
    return str(own) if own.is_dir() else settings.data_dir


def _share_out(y: IntArray, settings: RunSettings) -> list[IntArray]:
    """Rows of every client in a single real data set."""
    if settings.num_clients > len(y):
        raise ConfigError(
            f"more clients than graphs: num-clients is {settings.num_clients}, but"
            f" {settings.dataset} has {len(y)} graphs; set num-clients to"
            f" {len(y) // splits.MIN_GRAPHS} or less"
        )
    return splits.partition_graphs(
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
    if settings.task_masks != ALL_TASKS and label_kind(settings) == "classes":
        raise ConfigError(
            f"task-masks must be {ALL_TASKS!r} where graphs have one class, as in"
            f" dataset {settings.dataset!r}, got {settings.task_masks!r}; set"
            " task-masks in the run config, or dataset to one with several labels"
        )
    if info.name == SMILES_CSV:
        check_single_file(settings)


def reads_files(settings: RunSettings) -> bool:
    """Whether the data set lies in files; others are generated."""
    return find_dataset(settings.dataset).name not in (SYNTHETIC, PLANTED)


def is_one_set(settings: RunSettings) -> bool:
    """Whether all clients hold graphs of one data set in files, by its name."""
    info = find_dataset(settings.dataset)
    return reads_files(settings) and len(info.members) == 1


def is_cut(settings: RunSettings) -> bool:
    """Whether every client takes its part of one whole data set."""
    return is_one_set(settings) and settings.partition != FILES


def has_own_graphs(settings: RunSettings) -> bool:
    """Whether clients may hold graphs of their own under the data set's name."""
    info = find_dataset(settings.dataset)
    return info.automatic["partition"] == "chunks"


def label_kind(settings: RunSettings) -> str:
    """Say what is known of a graph: "classes", "binary", "regression" or "nodes"."""
    return find_dataset(settings.dataset).kind or settings.csv_label_kind


def _check_fit(info: DatasetInfo, settings: RunSettings) -> None:
    """Check what holds at every client, wherever its data are."""
    natural = info.automatic["partition"]
    table = NODE_PARTITIONERS if info.kind == "nodes" else splits.PARTITIONERS
    if natural in _ONE_WAY:
        allowed = [natural]
    else:
        allowed = sorted([*table, FILES] if info.kind == "classes" else table)
    if settings.partition not in allowed:
        raise ConfigError(
            f"partition of dataset {info.name!r} must be"
            f" {' or '.join(repr(kind) for kind in allowed)}, got"
            f" {settings.partition!r}; set partition to 'auto'"
        )
    if natural == "datasets" and settings.num_clients != len(info.members):
        raise ConfigError(
            f"dataset {info.name!r} gives each client one of its {len(info.members)}"
            f" data sets, but num-clients is {settings.num_clients}; set num-clients"
            f" to {len(info.members)} or 'auto'"
        )
    if settings.partition.startswith("metis-overlap"):
        check_overlap(settings.num_clients)
    if settings.features not in info.features:
        raise ConfigError(
            f"features of dataset {info.name!r} must be"
            f" {' or '.join(map(repr, info.features))}, got {settings.features!r}; set"
            " features to 'auto'"
        )
