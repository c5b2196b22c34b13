"""MOON: model-contrastive federated learning.

Li, He, Song 2021, arXiv:2103.16257. FedAvg whose local loss pulls the representation
of a graph towards that of the received model and away from that of the client's own
model at the end of its previous round.

Message fields
--------------
down, up  ``shared/<name>``, as FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import number
from ..core.tasks import GRAPH_CLASSIFICATION

TEMPERATURE = 0.5  # of the contrast, as the authors use it


@dataclass(frozen=True, kw_only=True)
class MoonParams(Settings):
    """Parameters of MOON."""

    TABLE = "moon"

    mu: float = number(1.0, 0)
    """Weight of the contrast between models; 0 is FedAvg. The authors tune 0.001 to 10.
    """

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name FedAvg, where nothing contrasts."""
        return "" if self.mu else "has moon.mu 0: FedAvg"


METHOD = Method(
    params=MoonParams,
    clients={GRAPH_CLASSIFICATION: "clients.moon:MoonClient"},
)
