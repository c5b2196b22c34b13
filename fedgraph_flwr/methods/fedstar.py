"""FedStar: structure is shared, features are private.

Tan, Liu, Long, Jiang, Lu, Zhang 2023: *Federated Learning on Non-IID Graphs via
Structural Knowledge Sharing*, AAAI, arXiv:2211.13009. Used for nodes as FedGKD's
comparison does.

Message fields
--------------
down, up  ``shared/<name>``: the tensors of the structure channel.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import integer
from ..core.tasks import NODE_CLASSIFICATION


@dataclass(frozen=True, kw_only=True)
class FedStarParams(Settings):
    """Parameters of FedStar: lengths of the two parts of a node's encoding.

    ``walk_length``: probabilities to be back after 1, 2, ... steps of a random walk;
    ``max_degree``: a one-hot degree, larger ones counting as this.
    """

    TABLE = "fedstar"

    walk_length: int = integer(16, 1, 1000)
    max_degree: int = integer(16, 1, 10_000)


METHOD = Method(
    params=FedStarParams,
    clients={NODE_CLASSIFICATION: "clients.fedstar:FedStarClient"},
)
