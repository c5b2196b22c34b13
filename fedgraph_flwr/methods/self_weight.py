"""Self-weight: the control for every personalised average.

Ours. A client receives a W_i + (1 - a) mean_j W_j: no features of tasks, no payload
besides the models. FedGKD and FED-PUB count as better only where they are better than
this.

Message fields
--------------
down  ``shared/<name>``: the client's own average.
up    ``shared/<name>``: the trained tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method, on_every_task
from ..core.rules import number


@dataclass(frozen=True, kw_only=True)
class SelfWeightParams(Settings):
    """Parameters of self-weight; with FedGKD's lambda it trains as FedGKD does."""

    TABLE = "self-weight"

    a: float = number(0.5, 0, 1)
    """Share of a client's own model; 0: uniform FedAvg, 1: self-train."""
    proximal_lambda: float = number(0.0, 0)
    """lambda of the squared distance to the received model."""


METHOD = Method(
    params=SelfWeightParams,
    strategy="strategies.self_weight:SelfWeight",
    clients=on_every_task("clients.self_weight:SelfWeighted"),
)
