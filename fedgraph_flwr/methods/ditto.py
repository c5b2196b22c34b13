"""Ditto: a model for each client, pulled to the global one that FedAvg trains.

Li, Hu, Beirami, Smith 2021: *Ditto: Fair and Robust Federated Learning Through
Personalization*, ICML, arXiv:2012.04221. The clients' own models are the method's, and
stay with them. Controls are ``fedavg``, whose model is the global one to the byte, and
``local``, which lambda 0 is.

Message fields
--------------
down, up  ``shared/<name>``, as FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method, on_every_task
from ..core.rules import number


@dataclass(frozen=True, kw_only=True)
class DittoParams(Settings):
    """Parameters of Ditto. The authors choose lambda by client, from 0.05 to 2."""

    TABLE = "ditto"

    proximal_lambda: float = number(0.1, 0)
    """lambda, weight of half the squared distance to the global model; 0: training
    alone."""

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name training alone, where nothing pulls."""
        return "" if self.proximal_lambda else "has ditto.proximal-lambda 0: local"


METHOD = Method(
    params=DittoParams,
    strategy="strategies.ditto:Ditto",
    clients=on_every_task("clients.ditto:Personal"),
)
