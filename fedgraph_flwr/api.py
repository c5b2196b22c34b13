"""What authors of plug-ins import, in one place: see ``docs/your-method.md``."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from clients.base import GraphClient
from clients.graphs.ops import dense_rows, project
from clients.job import seeded
from clients.models.encoders import edge_features
from clients.models.gin import GIN, GINConv
from clients.multitask_gnn import MultiTaskGNNClient
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.tasks.node_classifier import NodeClassifierClient
from datasets.plugged import DataSet
from strategies.averaging import weighted_mean

from .core.config import Settings
from .core.fields import Field, Kind, Phase
from .core.method import PLAIN, Method, on_every_task
from .core.rules import choice, flag, integer, number
from .core.tasks import (
    GRAPH_CLASSIFICATION,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
)
from .core.wire import Parcel, select, with_prefix
from .methods.fedavg import SHARED

if TYPE_CHECKING:
    from strategies.base import AbstractGraphStrategy
    from strategies.fedavg import FedAvg
    from strategies.personal import AbstractPersonalStrategy

_STRATEGIES = {
    "AbstractGraphStrategy": "base",
    "AbstractPersonalStrategy": "personal",
    "FedAvg": "fedavg",
}

__all__ = [
    "GIN",
    "GRAPH_CLASSIFICATION",
    "MULTI_TASK_CLASSIFICATION",
    "NODE_CLASSIFICATION",
    "PLAIN",
    "SHARED",
    "AbstractGraphStrategy",
    "AbstractPersonalStrategy",
    "DataSet",
    "FedAvg",
    "Field",
    "GINConv",
    "GraphClassifierClient",
    "GraphClient",
    "Kind",
    "Method",
    "MultiTaskGNNClient",
    "NodeClassifierClient",
    "Parcel",
    "Phase",
    "Settings",
    "choice",
    "dense_rows",
    "edge_features",
    "flag",
    "integer",
    "number",
    "on_every_task",
    "project",
    "seeded",
    "select",
    "weighted_mean",
    "with_prefix",
]


def __getattr__(name: str) -> Any:
    """Import a strategy when it is asked for: what predicts has no Flower."""
    if name not in _STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(f"strategies.{_STRATEGIES[name]}:{name}")
