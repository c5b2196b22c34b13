"""The one table of methods: what runs at the server and at clients, by name.

A new paper adds a row to ``METHODS`` and its table to ``pyproject.toml``; nothing else
asks for a method's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clients.base import GraphClient
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
from clients.infomax import InfoGraphClient, MVGRLClient
from clients.moon import MoonClient
from clients.multitask_gnn import LocalMultiTaskClient, MultiTaskFedAvgClient
from clients.self_weight import SelfWeightClient
from clients.spreadgnn import SpreadGNNClient
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

from .config import RunSettings, Settings
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
from .tasks import (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
    Task,
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: what makes a method.

    ``options`` are fixed keyword arguments of the strategy that tell variants apart.
    ``node_client`` is the client on data whose nodes are classified, for methods that
    have another task besides.
    """

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    client: type[GraphClient[Any]]
    task: Task = GRAPH_CLASSIFICATION
    node_client: type[GraphClient[Any]] | None = None
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
