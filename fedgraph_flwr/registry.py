"""The one table of methods: what runs at the server and at clients, by name.

A new paper adds a row to ``METHODS``; nothing else asks for a method's name.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.base import GraphClient
from clients.fclg import FCLGClient
from clients.fedavg import FedSageClient, LimitedSelfTrain, Proximal
from clients.fedgkd import FedGKDClient
from clients.fedgmtl import FedGMTLClient
from clients.fedpub import FedPubClient
from clients.fedsage_plus import FedSagePlusClient
from clients.fedstar import FedStarClient
from clients.fgcl import FGCLClient
from clients.gcfl import SendsUpdate
from clients.infomax import InfoGraphClient, MVGRLClient
from clients.mixins import SelfTrain
from clients.moon import MoonClient
from clients.multitask_gnn import MultiTaskGNNClient
from clients.self_weight import SelfWeightClient
from clients.spreadgnn import SpreadGNNClient
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.tasks.node_classifier import NodeClassifierClient
from strategies.base import AbstractGraphStrategy
from strategies.fedavg import FedAvg, Local
from strategies.fedgkd import FedGKD
from strategies.fedgmtl import FedGMTL
from strategies.fedpub import FedPub
from strategies.fedsage_plus import FedSagePlus
from strategies.gcfl import GCFL
from strategies.self_weight import SelfWeight
from strategies.spreadgnn import SpreadGNN

from .config import AUTO, RunSettings, Settings
from .errors import ConfigError
from .methods.fclg import FCLGParams, InfoGraphParams, MVGRLParams
from .methods.fedavg import FedAvgParams, FedProxParams, LocalParams
from .methods.fedgkd import FedGKDParams
from .methods.fedgmtl import FedGMTLParams
from .methods.fedpub import FedPubParams
from .methods.fedsage_plus import FedSagePlusParams
from .methods.fedstar import FedStarParams
from .methods.fgcl import FGCLParams
from .methods.gcfl import GCFLParams
from .methods.moon import MoonParams
from .methods.self_weight import SelfWeightParams
from .methods.spreadgnn import SpreadGNNParams
from .tasks import (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
    Task,
)

Client = type[GraphClient[Any]]


@dataclass(frozen=True, kw_only=True)
class MethodOnTask:
    """A method on data of one kind: all that a run of it is made of."""

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    client: Client
    task: Task
    options: Mapping[str, Any]

    @property
    def has_server_model(self) -> bool:
        """Whether clients train one or more common models; not in self-train."""
        return self.strategy.HAS_MODEL

    def make_strategy(
        self, settings: RunSettings, params: Settings, **kwargs: Any
    ) -> AbstractGraphStrategy:
        """Build the strategy."""
        make: Callable[..., AbstractGraphStrategy] = self.strategy
        return make(settings, params, **self.options, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: what makes a method.

    Parameters
    ----------
    params : type
        Table of the method's own settings.
    strategy : type
        What runs at the server.
    clients : mapping
        What runs at a client, for each task that the method can do. The first task that
        the data allow is taken, unless the run config names one.
    params_of : mapping
        Other tables than ``params``, for tasks whose client has another.
    options : mapping
        Fixed keyword arguments of the strategy, which tell variants apart.
    """

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    clients: Mapping[Task, Client]
    params_of: Mapping[Task, type[Settings]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, label_kind: str, task: str = AUTO) -> MethodOnTask:
        """Return the method on data of a kind, for a task or the first that fits.

        Parameters
        ----------
        label_kind : str
            Key of ``LABEL_KINDS``. If no task fits it, the first is returned, whose
            ``check`` then says what fits.
        task : str
            "auto", or the ``key`` of a task.

        Raises
        ------
        ConfigError
            The method has no client for the task.
        """
        wanted = [t for t in self.clients if task in (AUTO, t.key)]
        if not wanted:
            known = ", ".join(repr(t.key) for t in self.clients)
            raise ConfigError(
                f"task must be 'auto' or one of those that the method can do ({known}),"
                f" got {task!r}; set task in the run config"
            )
        chosen = next((t for t in wanted if t.fits(label_kind)), wanted[0])
        return MethodOnTask(
            params=self.params_of.get(chosen, self.params),
            strategy=self.strategy,
            client=self.clients[chosen],
            task=chosen.of(label_kind),
            options=self.options,
        )


def joined(mixin: type, client: Client) -> Client:
    """Make a client that is ``client``, but for what ``mixin`` does differently."""
    name = f"{mixin.__name__}{client.__name__}"
    made: Client = types.new_class(name, (mixin, client))
    made.__module__ = __name__
    return made


# The client of each task as FedAvg has it: it trains, and sends the shared tensors.
PLAIN: Mapping[Task, Client] = {
    GRAPH_CLASSIFICATION: GraphClassifierClient,
    MULTI_TASK_CLASSIFICATION: MultiTaskGNNClient,
    NODE_CLASSIFICATION: NodeClassifierClient,
}


def on_every_task(mixin: type) -> dict[Task, Client]:
    """Make the plain client of each task differ by a mixin."""
    return {task: joined(mixin, client) for task, client in PLAIN.items()}


METHODS: Mapping[str, Method] = {
    "local": Method(
        params=LocalParams,
        strategy=Local,
        clients={
            **on_every_task(LimitedSelfTrain),
            GRAPH_EMBEDDING: joined(SelfTrain, FCLGClient),
        },
        params_of={GRAPH_EMBEDDING: FCLGParams},
    ),
    "fedavg": Method(params=FedAvgParams, strategy=FedAvg, clients=PLAIN),
    "fedprox": Method(
        params=FedProxParams,
        strategy=FedAvg,
        clients=on_every_task(Proximal),
    ),
    "gcfl": Method(
        params=GCFLParams,
        strategy=GCFL,
        clients=on_every_task(SendsUpdate),
        options={"use_dtw": False},
    ),
    "gcfl+": Method(
        params=GCFLParams,
        strategy=GCFL,
        clients=on_every_task(SendsUpdate),
        options={"use_dtw": True},
    ),
    "moon": Method(
        params=MoonParams,
        strategy=FedAvg,
        clients={GRAPH_CLASSIFICATION: MoonClient},
    ),
    "fclg": Method(
        params=FCLGParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: FCLGClient},
    ),
    "infograph": Method(
        params=InfoGraphParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: InfoGraphClient},
    ),
    "mvgrl": Method(
        params=MVGRLParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: MVGRLClient},
    ),
    "fgcl": Method(
        params=FGCLParams,
        strategy=FedAvg,
        clients={MULTI_TASK_CLASSIFICATION: FGCLClient},
    ),
    "fedgmtl": Method(
        params=FedGMTLParams,
        strategy=FedGMTL,
        clients={MULTI_TASK_CLASSIFICATION: FedGMTLClient},
    ),
    "spreadgnn": Method(
        params=SpreadGNNParams,
        strategy=SpreadGNN,
        clients={MULTI_TASK_CLASSIFICATION: SpreadGNNClient},
    ),
    "fedsage": Method(
        params=FedAvgParams,
        strategy=FedAvg,
        clients={NODE_CLASSIFICATION: FedSageClient},
    ),
    "self-weight": Method(
        params=SelfWeightParams,
        strategy=SelfWeight,
        clients={NODE_CLASSIFICATION: SelfWeightClient},
    ),
    "fedgkd": Method(
        params=FedGKDParams,
        strategy=FedGKD,
        clients={NODE_CLASSIFICATION: FedGKDClient},
    ),
    "fedpub": Method(
        params=FedPubParams,
        strategy=FedPub,
        clients={NODE_CLASSIFICATION: FedPubClient},
    ),
    "fedstar": Method(
        params=FedStarParams,
        strategy=FedAvg,
        clients={NODE_CLASSIFICATION: FedStarClient},
    ),
    "fedsage+": Method(
        params=FedSagePlusParams,
        strategy=FedSagePlus,
        clients={NODE_CLASSIFICATION: FedSagePlusClient},
    ),
}
