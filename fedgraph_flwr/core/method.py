"""What a method is made of: a built-in one and a plug-in are declared alike.

A method's file ends with ``METHOD = Method(...)``. Classes may be named by text,
``"module:Class"``: then what needs no client imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import get_annotations
from typing import Any

from .config import Settings
from .errors import ConfigError
from .tasks import (
    EDGE_CLASSIFICATION,
    GRAPH_CLASSIFICATION,
    LINK_PREDICTION,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
    Task,
)

# A class or its name; of several the first are mixins, which override the last.
Named = str | type[Any]
Client = Named | tuple[Named, ...]

# The client of each task as FedAvg has it: it trains, and sends the shared tensors.
PLAIN: Mapping[Task, Client] = {
    GRAPH_CLASSIFICATION: "clients.tasks.graph_classifier:GraphClassifierClient",
    MULTI_TASK_CLASSIFICATION: "clients.multitask_gnn:MultiTaskGNNClient",
    NODE_CLASSIFICATION: "clients.tasks.node_classifier:NodeClassifierClient",
    EDGE_CLASSIFICATION: "clients.tasks.edge_learner:EdgeClassifierClient",
    LINK_PREDICTION: "clients.tasks.edge_learner:LinkPredictorClient",
}


def on_every_task(mixin: Named) -> dict[Task, Client]:
    """Add a mixin, by ``"module:Class"`` or itself, to the plain client of any task."""
    return {task: (mixin, client) for task, client in PLAIN.items()}  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What makes a method. What is not given is FedAvg's.

    Parameters
    ----------
    params : type
        Table of the method's own settings.
    strategy : type or str
        What runs at the server.
    clients : mapping
        What runs at a client, for each task that the method can do. The first task
        that the data allow is taken, unless the run config names one.
    params_of : mapping
        Other tables than ``params``, for tasks whose client has another.
    options : mapping
        Fixed keyword arguments of the strategy, which tell variants apart.
    distil : callable or str
        Function beside the clients' code that trains at the server, where strategies
        compute without torch: they are handed it as ``distil``, bound to the class of
        the clients and to ``Resolved.spec``. "": none.

    Raises
    ------
    ConfigError
        A parameter would be read without a check, or not at all.
    """

    params: type[Settings] = Settings
    strategy: Named = "strategies.fedavg:FedAvg"
    clients: Mapping[Task, Client] = field(default_factory=lambda: PLAIN)
    params_of: Mapping[Task, type[Settings]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    distil: Any = ""

    def __post_init__(self) -> None:
        for params in (self.params, *self.params_of.values()):
            declared = get_annotations(params)
            names = {n for n, t in declared.items() if "ClassVar" not in str(t)}
            if not is_dataclass(params) or names - {f.name for f in fields(params)}:
                raise ConfigError(
                    f"params {params.__name__} must be decorated with"
                    " @dataclass(frozen=True, kw_only=True)"
                )
            for f in fields(params):
                if "rule" not in f.metadata:
                    raise ConfigError(
                        f"params {params.__name__}: field {f.name!r} says nothing of"
                        " the values that it may have; declare it as in"
                        f" {f.name}: float = number(0.1, 0), which is 0.1 by default"
                        " and never below 0"
                    )
