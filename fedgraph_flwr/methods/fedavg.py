"""FedAvg, FedProx, self-train and all data in one place: what methods stand beside.

McMahan et al. 2017, arXiv:1602.05629 (FedAvg); Li et al. 2020, arXiv:1812.06127
(FedProx). Self-train ("local") is the baseline of Xie et al. 2021, Sec. 5.1: every
client trains alone from the common start.

Message fields
--------------
down  ``shared/<name>``: the averaged tensors (``local``: round 1 only, the start).
up    ``shared/<name>``: the trained tensors (``local``: nothing; ``centralized``: the
      first client alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ..core.config import Settings
from ..core.method import Method, on_every_task
from ..core.rules import MOST_STEPS, integer, number
from ..core.tasks import GRAPH_EMBEDDING
from .fclg import FCLGParams

SHARED, DELTA = "shared/", "delta/"


@dataclass(frozen=True, kw_only=True)
class FedProxParams(Settings):
    """Parameters of FedProx; the default is that of Xie et al. 2021, Sec. 5.1."""

    TABLE = "fedprox"

    mu: float = number(0.01, 0)
    """Weight of the proximal term; 0 is FedAvg."""

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name FedAvg, where nothing pulls, as in a first step."""
        if not self.mu:
            return "has fedprox.mu 0: FedAvg"
        return "" if steps > 1 else "makes one step a round, without a pull: FedAvg"


@dataclass(frozen=True, kw_only=True)
class LocalParams(Settings):
    """Parameters of self-train. GCFL's authors train 50 epochs, or 100 on many sets."""

    TABLE = "local"

    epochs: int = integer(0, 0, MOST_STEPS)
    """A client stops after so many epochs of its own; 0: `local-epochs` in each round.
    """


@dataclass(frozen=True, kw_only=True)
class CentralizedParams(Settings):
    """No parameters: one model is trained, as if no data were apart."""

    NEEDS_ALL = "one client trains on the data of all"
    RUN = MappingProxyType({"shared-group": "all", "persist-optimizer": True})


METHODS = {
    "local": Method(
        params=LocalParams,
        strategy="strategies.fedavg:Local",
        clients={
            **on_every_task("clients.fedavg:LimitedSelfTrain"),
            GRAPH_EMBEDDING: ("clients.mixins:SelfTrain", "clients.fclg:FCLGClient"),
        },
        params_of={GRAPH_EMBEDDING: FCLGParams},
    ),
    "fedavg": Method(),
    "fedprox": Method(
        params=FedProxParams, clients=on_every_task("clients.fedavg:Proximal")
    ),
    "centralized": Method(
        params=CentralizedParams,
        strategy="strategies.fedavg:Centralized",
        clients={
            **on_every_task("clients.fedavg:TrainsOnAll"),
            GRAPH_EMBEDDING: ("clients.fedavg:TrainsOnAll", "clients.fclg:FCLGClient"),
        },
        params_of={GRAPH_EMBEDDING: FCLGParams},
    ),
}
