"""The one table of methods: what runs at the server and at clients, by name.

A new paper adds a row to ``METHODS``; nothing else asks for a method's name.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from strategies.adafgl import AdaFGL
from strategies.base import AbstractGraphStrategy
from strategies.fedavg import FedAvg, Local
from strategies.fedgkd import FedGKD
from strategies.fedgmtl import FedGMTL
from strategies.fedgta import FedGTA
from strategies.fedpub import FedPub
from strategies.fedsage_plus import FedSagePlus
from strategies.gcfl import GCFL
from strategies.self_weight import SelfWeight
from strategies.spreadgnn import SpreadGNN

from . import plugins
from .config import AUTO, RunSettings, Settings
from .errors import ConfigError, unknown_name
from .methods.adafgl import AdaFGLParams
from .methods.fclg import FCLGParams, InfoGraphParams, MVGRLParams
from .methods.fedavg import FedAvgParams, FedProxParams, LocalParams
from .methods.fedgkd import FedGKDParams
from .methods.fedgmtl import FedGMTLParams
from .methods.fedgta import FedGTAParams
from .methods.fedpub import FedPubParams
from .methods.fedsage_plus import FedSagePlusParams
from .methods.fedstar import FedStarParams
from .methods.fgcl import FGCLParams
from .methods.gcfl import GCFLParams
from .methods.moon import MoonParams
from .methods.self_weight import SelfWeightParams
from .methods.spreadgnn import SpreadGNNParams
from .overriding import check_overrides
from .tasks import (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
    Task,
)

if TYPE_CHECKING:
    from clients.base import GraphClient

    Client = type[GraphClient[Any]]


@dataclass(frozen=True, kw_only=True)
class MethodOnTask:
    """A method on data of one kind: all that a run of it is made of."""

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    client_row: str | Client
    task: Task
    options: Mapping[str, Any]

    @property
    def client(self) -> Client:
        """What runs at a client. The first use imports torch, which takes a second."""
        return load_client(self.client_row)

    @property
    def has_server_model(self) -> bool:
        """Whether clients train one or more common models; not in self-train."""
        return self.strategy.HAS_MODEL

    def make_strategy(
        self, settings: RunSettings, params: Settings, **kwargs: Any
    ) -> AbstractGraphStrategy:
        """Build the strategy."""
        make: Callable[..., AbstractGraphStrategy] = self.strategy
        made = make(settings, params, **self.options, **kwargs)
        if not hasattr(made, "round"):
            raise ConfigError(
                f"__init__() of {self.strategy.__name__} must call"
                " super().__init__(*args, **kwargs) with all that it was given; write"
                " that as its first line"
            )
        return made


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: what makes a method. What is not given is FedAvg's.

    Parameters
    ----------
    params : type
        Table of the method's own settings.
    strategy : type
        What runs at the server.
    clients : mapping
        What runs at a client, for each task that the method can do, as `load_client`
        reads it. The first task that the data allow is taken, unless the run config
        names one.
    params_of : mapping
        Other tables than ``params``, for tasks whose client has another.
    options : mapping
        Fixed keyword arguments of the strategy, which tell variants apart.

    Raises
    ------
    ConfigError
        A part is missing, or is not what it has to be.
    """

    params: type[Settings] = FedAvgParams
    strategy: type[AbstractGraphStrategy] = FedAvg
    clients: Mapping[Task, str | Client] = field(default_factory=lambda: PLAIN)
    params_of: Mapping[Task, type[Settings]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_class("strategy", self.strategy, AbstractGraphStrategy)
        if not isinstance(self.options, Mapping):
            raise ConfigError(
                "options of a method must be a mapping from names of arguments of the"
                f" strategy to their values, got {self.options!r}"
            )
        check_overrides("strategy", self.strategy, self.options)
        if not isinstance(self.clients, Mapping) or not self.clients:
            raise ConfigError(
                "clients of a method must be a mapping from tasks to classes of"
                f" clients, with one at least, got {self.clients!r}"
            )
        for task, client in self.clients.items():
            if not isinstance(task, Task):
                raise ConfigError(
                    "clients of a method must have tasks as keys, e.g."
                    f" GRAPH_CLASSIFICATION, got {task!r}"
                )
            if not isinstance(client, str):
                from clients.base import GraphClient

                words = f"client of task {task.key!r}"
                _check_class(words, client, GraphClient)
                check_overrides(words, client)
        for params in (self.params, *self.params_of.values()):
            _check_class("params", params, Settings)
            _check_fields(params)

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
            client_row=self.clients[chosen],
            task=chosen.of(label_kind),
            options=self.options,
        )


def load_client(row: str | Client) -> Client:
    """Import a class by ``"module:Class"``, or join it to a mixin that stands before.

    Our rows hold names and no classes, so that what needs no client imports no torch. A
    plug-in's row may hold the class itself.
    """
    return _load(row) if isinstance(row, str) else row


@cache
def _load(name: str) -> Client:
    *mixins, made = map(resolve_name, name.split())
    for mixin in mixins:
        made = joined(mixin, made)
    loaded: Client = made
    return loaded


def _check_class(what: str, given: object, base: type) -> None:
    """Refuse what is no class of a kind, or lacks methods that it must have."""
    if not (isinstance(given, type) and issubclass(given, base)):
        raise ConfigError(
            f"{what} of a method must be a class derived from {base.__name__}, got"
            f" {given!r}"
        )
    if inspect.isabstract(given):
        lacks = ", ".join(sorted(getattr(given, "__abstractmethods__", ())))
        raise ConfigError(
            f"{what} of a method: {given.__name__} lacks {lacks}; write them, or derive"
            " it from a class that has them"
        )


def _check_fields(params: type[Settings]) -> None:
    """Refuse parameters that would be read without a check, or not at all."""
    declared = inspect.get_annotations(params)
    names = {n for n, t in declared.items() if "ClassVar" not in str(t)}
    if not is_dataclass(params) or names - {f.name for f in fields(params)}:
        raise ConfigError(
            f"params {params.__name__} must be decorated with"
            " @dataclass(frozen=True, kw_only=True)"
        )
    for f in fields(params):
        if "rule" not in f.metadata:
            raise ConfigError(
                f"params {params.__name__}: field {f.name!r} says nothing of the values"
                f" that it may have; declare it as in {f.name}: float = number(0.1, 0),"
                " which is 0.1 by default and never below 0"
            )


def joined(mixin: type, client: Client) -> Client:
    """Make a subclass of ``client`` in which ``mixin`` overrides what it defines."""
    name = f"{mixin.__name__}{client.__name__}"
    made: Client = types.new_class(name, (mixin, client))
    made.__module__ = __name__
    return made


# The client of each task as FedAvg has it: it trains, and sends the shared tensors.
PLAIN: Mapping[Task, str | Client] = {
    GRAPH_CLASSIFICATION: "clients.tasks.graph_classifier:GraphClassifierClient",
    MULTI_TASK_CLASSIFICATION: "clients.multitask_gnn:MultiTaskGNNClient",
    NODE_CLASSIFICATION: "clients.tasks.node_classifier:NodeClassifierClient",
}


def on_every_task(mixin: str | type) -> dict[Task, str | Client]:
    """Add a mixin, by ``"module:Class"`` or itself, to the plain client of any task."""
    if isinstance(mixin, str):
        return {task: f"{mixin} {client}" for task, client in PLAIN.items()}
    return {task: joined(mixin, load_client(client)) for task, client in PLAIN.items()}


METHODS: Mapping[str, Method] = {
    "local": Method(
        params=LocalParams,
        strategy=Local,
        clients={
            **on_every_task("clients.fedavg:LimitedSelfTrain"),
            GRAPH_EMBEDDING: "clients.mixins:SelfTrain clients.fclg:FCLGClient",
        },
        params_of={GRAPH_EMBEDDING: FCLGParams},
    ),
    "fedavg": Method(params=FedAvgParams, strategy=FedAvg, clients=PLAIN),
    "fedprox": Method(
        params=FedProxParams,
        strategy=FedAvg,
        clients=on_every_task("clients.fedavg:Proximal"),
    ),
    "gcfl": Method(
        params=GCFLParams,
        strategy=GCFL,
        clients=on_every_task("clients.gcfl:SendsUpdate"),
        options={"use_dtw": False},
    ),
    "gcfl+": Method(
        params=GCFLParams,
        strategy=GCFL,
        clients=on_every_task("clients.gcfl:SendsUpdate"),
        options={"use_dtw": True},
    ),
    "moon": Method(
        params=MoonParams,
        strategy=FedAvg,
        clients={GRAPH_CLASSIFICATION: "clients.moon:MoonClient"},
    ),
    "fclg": Method(
        params=FCLGParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: "clients.fclg:FCLGClient"},
    ),
    "infograph": Method(
        params=InfoGraphParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: "clients.infomax:InfoGraphClient"},
    ),
    "mvgrl": Method(
        params=MVGRLParams,
        strategy=FedAvg,
        clients={GRAPH_EMBEDDING: "clients.infomax:MVGRLClient"},
    ),
    "fgcl": Method(
        params=FGCLParams,
        strategy=FedAvg,
        clients={MULTI_TASK_CLASSIFICATION: "clients.fgcl:FGCLClient"},
    ),
    "fedgmtl": Method(
        params=FedGMTLParams,
        strategy=FedGMTL,
        clients={MULTI_TASK_CLASSIFICATION: "clients.fedgmtl:FedGMTLClient"},
    ),
    "spreadgnn": Method(
        params=SpreadGNNParams,
        strategy=SpreadGNN,
        clients={MULTI_TASK_CLASSIFICATION: "clients.spreadgnn:SpreadGNNClient"},
    ),
    "fedsage": Method(
        params=FedAvgParams,
        strategy=FedAvg,
        clients={NODE_CLASSIFICATION: "clients.fedavg:FedSageClient"},
    ),
    "self-weight": Method(
        params=SelfWeightParams,
        strategy=SelfWeight,
        clients={NODE_CLASSIFICATION: "clients.self_weight:SelfWeightClient"},
    ),
    "fedgkd": Method(
        params=FedGKDParams,
        strategy=FedGKD,
        clients={NODE_CLASSIFICATION: "clients.fedgkd:FedGKDClient"},
    ),
    "fedpub": Method(
        params=FedPubParams,
        strategy=FedPub,
        clients={NODE_CLASSIFICATION: "clients.fedpub:FedPubClient"},
    ),
    "fedgta": Method(
        params=FedGTAParams,
        strategy=FedGTA,
        clients={NODE_CLASSIFICATION: "clients.fedgta:FedGTAClient"},
    ),
    "adafgl": Method(
        params=AdaFGLParams,
        strategy=AdaFGL,
        clients={NODE_CLASSIFICATION: "clients.adafgl:AdaFGLClient"},
    ),
    "fedstar": Method(
        params=FedStarParams,
        strategy=FedAvg,
        clients={NODE_CLASSIFICATION: "clients.fedstar:FedStarClient"},
    ),
    "fedsage+": Method(
        params=FedSagePlusParams,
        strategy=FedSagePlus,
        clients={NODE_CLASSIFICATION: "clients.fedsage_plus:FedSagePlusClient"},
    ),
}


def find_method(name: str) -> Method:
    """Look a method up: a row of ``METHODS``, or that of a plug-in, ``module:NAME``.

    Raises
    ------
    ConfigError
        There is none of this name, or the plug-in cannot be used.
    """
    if plugins.is_plugin(name):
        return plugins.load(name, Method)
    if name not in METHODS:
        cure = (
            "Set method in the run config, or write a plug-in as module:NAME"
            " (docs/your-method.md)."
        )
        raise ConfigError(unknown_name("method", name, METHODS, cure))
    return METHODS[name]
