"""FedAux: personal averages by the direction of a trained projection of embeddings.

Zhuo, Zhan, Yu 2025: *Personalized Subgraph Federated Learning with Differentiable
Auxiliary Projections*, NeurIPS, arXiv:2505.23864.

Message fields
--------------
down  ``shared/<name>``: the client's own average of the weights.
up    ``shared/<name>``: trained weights, without masks; ``apv`` among them, by which
      clients are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import choice, number
from ..core.tasks import NODE_CLASSIFICATION

APV = "apv"


@dataclass(frozen=True, kw_only=True)
class FedAuxParams(Settings):
    """Parameters of FedAux.

    Differs from the paper as the authors' code does: scores are cosines, and masks stay
    with the client; the projection is not brought to unit length (Theorem 3.1).
    """

    TABLE = "fedaux"

    alpha: float = number(10.0, 0)
    """Sharpens weights exp(alpha cos) / sum; 0: all clients count alike."""
    sigma: float = number(1.0, 0)
    """Width of the kernel along the projection; 0: every node gets the mean of all."""
    compare: str = choice("apv", "apv", "apv-update")
    """What makes clients alike: their projections, or how these moved in the round."""


METHOD = Method(
    params=FedAuxParams,
    strategy="strategies.fedaux:FedAux",
    clients={NODE_CLASSIFICATION: "clients.fedaux:FedAuxClient"},
)
