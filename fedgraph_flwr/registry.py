"""The one table of methods, and the run configuration resolved against it.

A new paper adds a row to ``METHODS`` and its table to ``pyproject.toml``; nothing else
asks for a method's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import datasets
from clients.base import GraphClient, Job
from clients.fclg import FCLGClient, LocalFCLGClient
from clients.fedavg import (
    FedAvgClient,
    FedProxClient,
    LocalClient,
    NodeFedAvgClient,
    NodeFedProxClient,
    NodeLocalClient,
)
from clients.fedgkd import FedGKDClient
from clients.fedgmtl import FedGMTLClient
from clients.fedper import FedPerClient, FedSageClient
from clients.fedpub import FedPubClient
from clients.fedsage_plus import FedSagePlusClient
from clients.fedstar import FedStarClient
from clients.fgcl import FGCLClient
from clients.gcfl import GCFLClient, NodeGCFLClient
from clients.graphs.batching import ClientData
from clients.infomax import InfoGraphClient, MVGRLClient
from clients.moon import MoonClient
from clients.multitask_gnn import LocalMultiTaskClient, MultiTaskFedAvgClient
from clients.privacy.site import PrivateSite
from clients.self_weight import SelfWeightClient
from clients.spreadgnn import SpreadGNNClient
from clients.store import ClientStore
from strategies.base import AbstractGraphStrategy
from strategies.fedavg import FedAvg, Local
from strategies.fedgkd import FedGKD
from strategies.fedgmtl import FedGMTL
from strategies.fedpub import FedPub
from strategies.fedsage_plus import FedSagePlus
from strategies.fgcl import FGCL
from strategies.gcfl import GCFL
from strategies.self_weight import SelfWeight
from strategies.spreadgnn import SpreadGNN

from .config import RunSettings, Settings, Value, build, check_tables
from .errors import ConfigError, unknown_name
from .methods.fclg import FCLGParams, InfoGraphParams, MVGRLParams
from .methods.fedavg import FedAvgParams, FedProxParams, LocalParams
from .methods.fedgkd import FedGKDParams
from .methods.fedgmtl import FedGMTLParams
from .methods.fedper import FedPerParams
from .methods.fedpub import FedPubParams
from .methods.fedsage_plus import FedSagePlusParams
from .methods.fedstar import FedStarParams
from .methods.fgcl import FGCLParams
from .methods.gcfl import GCFLParams
from .methods.moon import MoonParams
from .methods.multitask import MultiTaskParams
from .methods.self_weight import SelfWeightParams
from .methods.spreadgnn import SpreadGNNParams
from .privacy import PrivacySettings, check_privacy, private_features
from .tasks import (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
    TASKS,
    EmbeddingSettings,
    Task,
)

if not hasattr(datasets, "load_partition"):
    raise ConfigError(
        f"the package 'datasets' was imported from {datasets.__file__}, which is not"
        " this project's; run from the project folder (`. ./env.sh`) and keep other"
        " packages of that name out of its environment"
    )

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: what makes a method.

    ``options`` are fixed keyword arguments of the strategy that tell variants apart.
    ``node_client`` is the client on data whose nodes are classified, for methods that
    have another task besides.
    """

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    client: type[GraphClient]
    task: Task = GRAPH_CLASSIFICATION
    node_client: type[GraphClient] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_server_model(self) -> bool:
        """Whether clients train one or more common models; not in self-train."""
        return self.strategy.HAS_MODEL

    def on(self, label_kind: str) -> Method:
        """Return the row for data of this kind, a key of ``LABEL_KINDS``."""
        if self.node_client is None or label_kind not in NODE_CLASSIFICATION.labels:
            return replace(self, task=self.task.of(label_kind))
        return replace(self, client=self.node_client, task=NODE_CLASSIFICATION)

    def make_strategy(
        self, settings: RunSettings, params: Settings, **kwargs: Any
    ) -> AbstractGraphStrategy:
        """Build the strategy."""
        make: Callable[..., AbstractGraphStrategy] = self.strategy
        return make(settings, params, **self.options, **kwargs)


METHODS: Mapping[str, Method] = {
    "local": Method(
        params=LocalParams,
        strategy=Local,
        client=LocalClient,
        node_client=NodeLocalClient,
    ),
    "fedavg": Method(
        params=FedAvgParams,
        strategy=FedAvg,
        client=FedAvgClient,
        node_client=NodeFedAvgClient,
    ),
    "fedprox": Method(
        params=FedProxParams,
        strategy=FedAvg,
        client=FedProxClient,
        node_client=NodeFedProxClient,
    ),
    "gcfl": Method(
        params=GCFLParams,
        strategy=GCFL,
        client=GCFLClient,
        node_client=NodeGCFLClient,
        options={"use_dtw": False},
    ),
    "gcfl+": Method(
        params=GCFLParams,
        strategy=GCFL,
        client=GCFLClient,
        node_client=NodeGCFLClient,
        options={"use_dtw": True},
    ),
    "moon": Method(params=MoonParams, strategy=FedAvg, client=MoonClient),
    "fclg": Method(
        params=FCLGParams, strategy=FedAvg, client=FCLGClient, task=GRAPH_EMBEDDING
    ),
    "fclg-local": Method(
        params=FCLGParams, strategy=Local, client=LocalFCLGClient, task=GRAPH_EMBEDDING
    ),
    "infograph": Method(
        params=InfoGraphParams,
        strategy=FedAvg,
        client=InfoGraphClient,
        task=GRAPH_EMBEDDING,
    ),
    "mvgrl": Method(
        params=MVGRLParams, strategy=FedAvg, client=MVGRLClient, task=GRAPH_EMBEDDING
    ),
    "fgcl": Method(
        params=FGCLParams,
        strategy=FGCL,
        client=FGCLClient,
        task=MULTI_TASK_CLASSIFICATION,
    ),
    "local-multitask": Method(
        params=MultiTaskParams,
        strategy=Local,
        client=LocalMultiTaskClient,
        task=MULTI_TASK_CLASSIFICATION,
    ),
    "fedavg-multitask": Method(
        params=MultiTaskParams,
        strategy=FedAvg,
        client=MultiTaskFedAvgClient,
        task=MULTI_TASK_CLASSIFICATION,
    ),
    "fedgmtl": Method(
        params=FedGMTLParams,
        strategy=FedGMTL,
        client=FedGMTLClient,
        task=MULTI_TASK_CLASSIFICATION,
    ),
    "fedper": Method(
        params=FedPerParams,
        strategy=FedAvg,
        client=FedPerClient,
        task=NODE_CLASSIFICATION,
    ),
    "fedsage": Method(
        params=FedAvgParams,
        strategy=FedAvg,
        client=FedSageClient,
        task=NODE_CLASSIFICATION,
    ),
    "self-weight": Method(
        params=SelfWeightParams,
        strategy=SelfWeight,
        client=SelfWeightClient,
        task=NODE_CLASSIFICATION,
    ),
    "spreadgnn": Method(
        params=SpreadGNNParams,
        strategy=SpreadGNN,
        client=SpreadGNNClient,
        task=MULTI_TASK_CLASSIFICATION,
    ),
    "fedgkd": Method(
        params=FedGKDParams,
        strategy=FedGKD,
        client=FedGKDClient,
        task=NODE_CLASSIFICATION,
    ),
    "fedpub": Method(
        params=FedPubParams,
        strategy=FedPub,
        client=FedPubClient,
        task=NODE_CLASSIFICATION,
    ),
    "fedstar": Method(
        params=FedStarParams,
        strategy=FedAvg,
        client=FedStarClient,
        task=NODE_CLASSIFICATION,
    ),
    "fedsage+": Method(
        params=FedSagePlusParams,
        strategy=FedSagePlus,
        client=FedSagePlusClient,
        task=NODE_CLASSIFICATION,
    ),
}


def tables() -> list[type[Settings]]:
    """Every configuration table, shared settings first, then tasks', then methods'."""
    of_tasks = (task.settings for task in TASKS)
    of_methods = (method.params for method in METHODS.values())
    return [RunSettings, PrivacySettings, *dict.fromkeys((*of_tasks, *of_methods))]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked run configuration with every ``"auto"`` replaced."""

    settings: RunSettings
    params: Settings
    task: Settings
    privacy: PrivacySettings

    @property
    def method(self) -> Method:
        """Row of the method."""
        return METHODS[self.settings.method].on(datasets.label_kind(self.settings))

    def site(
        self, store: ClientStore, *, is_secret: bool, edge_budget: float = math.inf
    ) -> PrivateSite:
        """Privacy of the client whose state ``store`` keeps."""
        return PrivateSite(
            privacy=self.privacy,
            folder=store.folder,
            seed=self.settings.seed,
            is_secret=is_secret,
            edge_budget=edge_budget,
        )

    def job(
        self,
        data: ClientData,
        store: ClientStore,
        site: PrivateSite,
        device: torch.device,
    ) -> Job:
        """Everything a client of this run needs to answer a message."""
        return Job(
            settings=self.settings,
            params=self.params,
            task=self.task,
            learning=self.method.task,
            data=data,
            store=store,
            site=site,
            device=device,
        )

    def to_config(self) -> dict[str, Value]:
        """Flat run-config keys and values: shared, of the task, of the method."""
        return {
            **self.settings.to_config(),
            **self.privacy.to_config(),
            **self.task.to_config(),
            **self.params.to_config(),
        }


def resolve(run_config: Mapping[str, Any]) -> Resolved:
    """Check a flat run config and fill in what is ``"auto"``.

    Raises
    ------
    ConfigError
        Unknown key, method or data set; wrong type; value out of range; no published
        value for an ``"auto"``; settings that contradict each other.
    """
    check_tables(tables(), run_config)
    name = str(run_config["method"])
    if name not in METHODS:
        raise ConfigError(
            unknown_name("method", name, METHODS, "Set method in the run config.")
        )
    info = datasets.find_dataset(str(run_config["dataset"]))
    kind = info.kind or str(run_config["csv-label-kind"])
    method = METHODS[name].on(kind)
    published = getattr(method.params, "AUTO", {}).get(info.name, {})
    automatic = {
        **method.task.automatic,
        **info.automatic,
        **method.params.RUN,
        **info.fixed,
    }
    takes_weights = method.client.TAKES_WEIGHTS
    post = "clamp01" if takes_weights else "round"
    privacy = build(PrivacySettings, run_config, {"privacy.edge-post": post})
    automatic["features"] = private_features(str(automatic["features"]), privacy)
    settings = build(RunSettings, run_config, automatic)
    params = build(method.params, run_config, published)
    task = build(method.task.settings, run_config, {})
    datasets.check_settings(settings)
    method.task.check(settings, kind)
    _check_evaluation(method, task, settings, privacy)
    check_privacy(
        privacy,
        settings,
        takes_weights=takes_weights,
        takes_noise=method.task.takes_edge_noise,
    )
    params.check(privacy)
    if params.NEEDS_ALL and settings.is_sampled:
        raise ConfigError(
            f"client-fraction must be 1 for {name}, got {settings.client_fraction:g}:"
            f" {params.NEEDS_ALL}; set client-fraction to 1 in the run config"
        )
    return Resolved(settings=settings, params=params, task=task, privacy=privacy)


def _check_evaluation(
    method: Method, task: Settings, settings: RunSettings, privacy: PrivacySettings
) -> None:
    if not isinstance(task, EmbeddingSettings):
        return
    if task.evaluation == "pooled" and privacy.update_clip > 0:
        raise ConfigError(
            f"privacy.update-clip is {privacy.update_clip!r}, but with"
            " embedding.evaluation = 'pooled' every client sends the embeddings and"
            " labels of its graphs, which noise on updates does not protect; set"
            " embedding.evaluation to 'local', or privacy.update-clip to 0"
        )
    if task.evaluation == "pooled" and not method.has_server_model:
        raise ConfigError(
            "embedding.evaluation must be 'local' where every client has an encoder of"
            " its own, got 'pooled': embeddings of different encoders cannot be"
            " clustered together; set it to 'local' in the run config"
        )
    late = [r for r in task.drawn_rounds() if r > settings.num_server_rounds]
    if late or (task.figure_rounds and task.evaluation == "local"):
        raise ConfigError(
            f"embedding.figure-rounds must be rounds up to num-server-rounds"
            f" {settings.num_server_rounds}, of a run with embedding.evaluation"
            f" 'pooled', got {task.figure_rounds!r} with {task.evaluation!r}; leave it"
            " empty to draw none"
        )


def defaults() -> dict[str, Value]:
    """Every run-config key with its default, as in ``pyproject.toml``."""
    return {k: v for table in tables() for k, v in table.defaults().items()}


def project_root() -> Path:
    """Folder that holds this project's top-level packages."""
    return _ROOT


__all__ = [
    "METHODS",
    "Method",
    "Resolved",
    "defaults",
    "project_root",
    "resolve",
    "tables",
]
