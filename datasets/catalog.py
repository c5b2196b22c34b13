"""The catalogue of data sets: names, recommended settings, what clients hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from types import MappingProxyType

from fedgraph_flwr.core.config import OF_PAPERS, RunSettings
from fedgraph_flwr.core.errors import ConfigError, unknown_name
from fedgraph_flwr.core.method import Method
from fedgraph_flwr.core.plugins import is_plugin, load
from fedgraph_flwr.core.rules import Value, shown
from fedgraph_flwr.core.tasks import OF_EDGES

from .molecules import FEATURES as ATOM_FEATURES
from .molecules import SMILES_CSV
from .plugged import DataSet
from .public.natural import NATURAL
from .public.node_graphs import HETEROPHILOUS
from .public.transfers import TRANSFERS
from .public.tu import READS as TU_FEATURES
from .tabular.schema_file import GRAPH_CSV, GRAPHS_CSV

SYNTHETIC = "synthetic"
PLANTED = "planted"
# partitions that a data set leaves no choice of
FILES = "files"
NATURAL_PLACES = "natural"
ONE_WAY = ("datasets", "files", "natural", "planted", "quantity-skew")
# partitions by which a client has more or fewer graphs, as classes are large or small
_BY_CLASS = ("dirichlet-labels", "dominance", "iid-classwise")
# keys that few data sets or partitions read
_OF_CSV = ("bad-rows", "label-kind", "label-columns", "smiles-column")
_CSV_KEYS = {
    GRAPH_CSV: ("csv-bad-rows",),
    GRAPHS_CSV: ("csv-bad-rows", "csv-label-kind"),
    SMILES_CSV: tuple(f"csv-{key}" for key in _OF_CSV),
}
_PLANTED = ("planted-nodes", "planted-degree", "planted-features")
_BY_ALPHA = ("dirichlet-labels", "dirichlet-quantity", "quantity-skew")
TU_PREFIX = "tu:"
# TU sets of which little is left without features of edges
WITH_EDGES = ("BZR_MD", "COX2_MD")
_TU_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANY_TU_CURE = (
    "Any other TU data set with classes is written tu:NAME, e.g. tu:PTC_FM; set"
    " dataset in the run config."
)
MOLECULES = ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
BIOCHEM = (*MOLECULES, "ENZYMES", "DD", "PROTEINS")
MIX = (*BIOCHEM, "COLLAB", "IMDB-BINARY", "IMDB-MULTI")


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that a run can be set to.

    Client ``i`` of a group holds ``members[i]``. ``automatic`` has the recommended
    value of keys written ``"auto"``, where the method's paper has no other; ``fixed``
    those that the data decide, whatever the method. ``features`` is what the setting of
    that name may be, ``own`` what a plug-in says.

    ``kind`` is what is known of a graph: its class among several ("classes"), or a
    label for each of one or more tasks, 0 or 1 ("binary") or any number ("regression"),
    or the class of each of its nodes ("nodes") or edges ("edges"); "" where the run
    config says.
    """

    name: str
    members: tuple[str, ...]
    automatic: Mapping[str, Value]
    fixed: Mapping[str, Value]
    kind: str = "classes"
    features: tuple[str, ...] = tuple(TU_FEATURES)
    own: DataSet | None = None

    @property
    def is_one_graph(self) -> bool:
        """Whether a client's items are parts of one graph."""
        return self.kind in ("nodes", "edges")


# of the GCFL authors' code, on all TU sets
_OF_GRAPHS: Mapping[str, Value] = MappingProxyType(
    {
        "num-server-rounds": 200,
        "dirichlet-alpha": 0.5,
        "features": "labels",
        "shared-group": "all",
        "weighting": "samples",
        "weight-decay": 5e-4,
        "csv-label-kind": "binary",
        "held-out": 0.2,
        "local-epochs": 1,
        "batch-size": 128,
        "optimizer": "adam",
        "persist-optimizer": True,
        "hidden-dim": 64,
        "num-layers": 3,
        "dropout": 0.5,
    }
)


def _info(
    name: str,
    partition: str,
    num_clients: int,
    automatic: Mapping[str, Value] = MappingProxyType({}),
    *,
    members: tuple[str, ...] = (),
    fixes_clients: bool = False,
    kind: str = "classes",
    allowed: tuple[str, ...] = tuple(TU_FEATURES),
) -> DatasetInfo:
    """Describe a set whose recommended settings differ from GCFL's in ``automatic``."""
    named: dict[str, Value] = {"partition": partition, "num-clients": num_clients}
    sharing = named if fixes_clients else {"partition": partition}
    return DatasetInfo(
        name,
        members or (name,),
        MappingProxyType({**_OF_GRAPHS, **named, **automatic}),
        MappingProxyType(sharing if partition in ONE_WAY else {}),
        kind,
        allowed,
    )


def _single(name: str) -> DatasetInfo:
    # 30 clients for NCI1 and 10 for the others: GCFL
    num_clients = 30 if name == "NCI1" else 10
    # The papers leave attributes out, which some of their sets have; others keep them.
    features = "labels" if name in MIX else "labels+attributes"
    return _info(name, "chunks", num_clients, {"features": features})


def _group(name: str, members: tuple[str, ...]) -> DatasetInfo:
    # its sets differ in features and classes, so that only the middle can be shared
    own: dict[str, Value] = {"shared-group": "convs"}
    count = len(members)
    return _info(name, "datasets", count, own, members=members, fixes_clients=True)


def _labelled(
    name: str,
    num_clients: int,
    alpha: float,
    *,
    kind: str = "binary",
    partition: str = "quantity-skew",
) -> DatasetInfo:
    # FedGraphNN's code, on which FGCL and SpreadGNN build
    automatic: dict[str, Value] = {
        "dirichlet-alpha": alpha,
        "features": "atoms",
        "num-server-rounds": 50,
        "batch-size": 32,
        "weight-decay": 0.0,
        "persist-optimizer": False,
        "num-layers": 2,
        "dropout": 0.3,
    }
    allowed = tuple(ATOM_FEATURES)
    return _info(name, partition, num_clients, automatic, kind=kind, allowed=allowed)


def _nodes(
    name: str, features: str = "row-normalized", *, partition: str = "metis"
) -> DatasetInfo:
    # FedGKD; held out are 35 % to validate and test
    automatic: dict[str, Value] = {
        "held-out": 0.7,
        "features": features,
        "local-epochs": 3,
        "batch-size": 1,
        "weight-decay": 1e-6,
        "hidden-dim": 128,
        "num-layers": 2,
        "weighting": "uniform",
    }
    allowed = ("raw",) if features == "raw" else ("row-normalized", "raw")
    return _info(name, partition, 5, automatic, kind="nodes", allowed=allowed)


def _transfers(name: str) -> DatasetInfo:
    made, kind = _nodes(name, "raw"), TRANSFERS[name].kind
    return replace(made, automatic={**made.automatic, "held-out": 0.4}, kind=kind)


def _natural(name: str, features: str, *, kind: str = "classes") -> DatasetInfo:
    # ours: no paper has these settings
    members = NATURAL[name][1]
    usual = _nodes(name, "raw") if kind == "nodes" else _single(name)
    automatic: dict[str, Value] = {
        **usual.automatic,
        "features": features,
        "num-clients": len(members),
        "partition": NATURAL_PLACES,
        "num-server-rounds": 100,
        "batch-size": 32,
        "held-out": 0.4 if kind == "nodes" else 0.2,
    }
    fixed: dict[str, Value] = {"partition": NATURAL_PLACES}
    allowed = (features,)
    return DatasetInfo(name, members, automatic, fixed, kind, allowed)


def _own(made: DatasetInfo, automatic: dict[str, Value]) -> DatasetInfo:
    """Describe a user's own graphs; ``automatic`` is our choice, not a paper's."""
    return replace(
        made,
        automatic=MappingProxyType(
            {**made.automatic, "features": "schema", "num-clients": 1, **automatic}
        ),
        fixed=MappingProxyType({"partition": FILES}),
        features=("schema",),
    )


DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            _info(
                SYNTHETIC,
                "planted",
                10,
                {"features": "degree", "num-server-rounds": 50, "weight-decay": 0.0},
                fixes_clients=True,
            ),
            *map(_single, MIX),
            *map(_single, WITH_EDGES),
            _group("molecules", MOLECULES),
            _group("biochem", BIOCHEM),
            _group("mix", MIX),
            # clients and alpha: FedGraphNN's README; of MUV and QM8: SpreadGNN;
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
            _own(
                _info(GRAPHS_CSV, FILES, 1, kind=""),
                {
                    "csv-label-kind": "classes",
                    "num-server-rounds": 50,
                    "batch-size": 32,
                },
            ),
            _own(_nodes(GRAPH_CSV, "raw", partition=FILES), {"held-out": 0.2}),
            *map(_nodes, ("Cora", "CiteSeer", "PubMed", "Photo", "Computers")),
            *map(_nodes, ("CS", "Physics")),
            _nodes("ogbn-arxiv", "raw"),
            # some have features below 0, which have no use of a row's sum
            *(_nodes(name, "raw") for name in HETEROPHILOUS),
            *map(_transfers, TRANSFERS),
            _nodes(PLANTED, "raw", partition="planted"),
            _natural("twitch", "raw", kind="nodes"),
            _natural("airports", "degree", kind="nodes"),
            _natural("abide", "connectivity"),
            _natural("abide-4", "connectivity"),
            _natural("ptc", "labels"),
            _natural("adhd", "degree"),
        )
    }
)


def _plugged(name: str, own: DataSet) -> DatasetInfo:
    """Describe a plug-in's data set, which gives each client its own graphs."""
    usual = _nodes(name) if own.of_nodes else _single(name)
    automatic: dict[str, Value] = {
        **usual.automatic,
        "features": "raw",
        "num-clients": own.num_clients,
        **own.settings,
        "partition": FILES,
    }
    fixed: dict[str, Value] = {"partition": FILES}
    return replace(usual, automatic=automatic, fixed=fixed, features=("raw",), own=own)


def find_dataset(name: str) -> DatasetInfo:
    """Look a data set up: a key of ``DATASETS``, ``tu:NAME``, or a plug-in's name.

    Raises
    ------
    ConfigError
        If the name is unknown, or the plug-in cannot be used.
    """
    if is_plugin(name):
        return _plugged(name, load(name, DataSet))
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


def reads_files(settings: RunSettings) -> bool:
    """Whether the data set is read from files; others are generated."""
    info = find_dataset(settings.dataset)
    if info.own is not None:
        return info.own.reads_files
    return info.name not in (SYNTHETIC, PLANTED)


def is_users(settings: RunSettings) -> bool:
    """Whether the data are a user's own, not published or generated ones of ours."""
    info = find_dataset(settings.dataset)
    return info.name == SMILES_CSV or has_schema(settings) or info.own is not None


def list_unread(settings: RunSettings) -> list[str]:
    """Name run-config keys that mean nothing for this data set and partition."""
    of_csv, info = _CSV_KEYS.get(settings.dataset, ()), find_dataset(settings.dataset)
    is_unread = {
        **{key: key not in of_csv for key in _CSV_KEYS[SMILES_CSV]},
        # without samples an epoch on one graph is one step
        "batch-size": info.is_one_graph and not settings.fanout,
        "fanout": not info.is_one_graph,
        "component": not (info.is_one_graph and is_cut(settings)),
        "data-dir": settings.dataset in (SYNTHETIC, PLANTED),
        "dirichlet-alpha": settings.partition not in _BY_ALPHA,
        "dominance": settings.partition != "dominance",
        "held-out": settings.folds > 1,
        "negatives": label_kind(settings) != "links",
        **dict.fromkeys(_PLANTED, settings.dataset != PLANTED),
    }
    return [key for key, holds in is_unread.items() if holds]


def is_downloaded(settings: RunSettings) -> bool:
    """Whether missing files are downloaded; a user's own never are."""
    return reads_files(settings) and not is_users(settings)


def reads_edges(settings: RunSettings) -> bool:
    """Whether features of edges are read from a TU set's files."""
    if is_plugin(settings.method):
        rows = load(settings.method, Method).clients.values()
        named = [n for row in rows for n in (row if isinstance(row, tuple) else (row,))]
        made = (resolve_name(n) if isinstance(n, str) else n for n in named)
        if any(getattr(one, "READS_EDGES", False) for one in made):
            return True
    return settings.dataset in WITH_EDGES or settings.encoder not in OF_PAPERS


def is_one_set(settings: RunSettings) -> bool:
    """Whether all clients hold graphs of one data set in files, by its name."""
    info = find_dataset(settings.dataset)
    return reads_files(settings) and len(info.members) == 1


def is_cut(settings: RunSettings) -> bool:
    """Whether every client takes its part of one whole data set."""
    return is_one_set(settings) and settings.partition != FILES


def is_published(settings: RunSettings) -> bool:
    """Whether rounds are chosen as papers on the data set choose them, by its score."""
    name = find_dataset(settings.dataset).name
    is_ours = name in (*NATURAL, *TRANSFERS)
    return name in DATASETS and settings.partition != FILES and not is_ours


def tells_class_sizes(settings: RunSettings) -> bool:
    """Whether numbers of clients' graphs tell how many there are of each class."""
    return is_cut(settings) and settings.partition in _BY_CLASS


def has_own_graphs(settings: RunSettings) -> bool:
    """Whether clients may hold graphs of their own under the data set's name."""
    info = find_dataset(settings.dataset)
    return info.automatic["partition"] == "chunks"


def has_schema(settings: RunSettings) -> bool:
    """Whether clients' graphs are read by a schema that they share."""
    return "schema" in find_dataset(settings.dataset).features


def label_kind(settings: RunSettings) -> str:
    """Say what is learned of a graph: a key of ``LABEL_KINDS``."""
    return kind_of(
        find_dataset(settings.dataset), settings.csv_label_kind, settings.task
    )


def kind_of(info: DatasetInfo, csv_kind: str, task: str) -> str:
    """Say what is learned of a graph of a data set, in a task by its key."""
    kind = info.kind or csv_kind
    return OF_EDGES.get(task, kind) if info.is_one_graph else kind
