"""FED-PUB: personal averages by functional embeddings, and personal weight masks.

Baek, Jeong, Jin, Yoon, Hwang 2023: *Personalized Subgraph Federated Learning*, ICML,
arXiv:2206.10206. Authors' code: JinheonBaek/FED-PUB.

Message fields
--------------
down  ``shared/<name>``: the client's own average of the weights.
up    ``shared/<name>``: trained weights, without masks; ``fedpub/embedding``: what the
      client's model makes of a random graph that all clients draw alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core.config import Settings
from ..core.fields import COMPUTED, Field, Kind, Phase
from ..core.method import Method
from ..core.rules import number
from ..core.tasks import NODE_CLASSIFICATION
from ..core.words import ONE

EMBEDDING = "fedpub/embedding"
MASK_WEIGHT = 1e-3  # lambda_1: smaller entries of masks do not count in evaluation


@dataclass(frozen=True, kw_only=True)
class FedPubParams(Settings):
    """Parameters of FED-PUB.

    ``alpha`` sharpens the weights exp(alpha cos) / sum; the authors' scripts take 3
    for disjoint and 5 for overlapping clients. Differs from the paper as the released
    code does: that builds both penalties from detached tensors, so that they have no
    gradient, and here there are none.
    """

    TABLE = "fedpub"
    FIELDS = (Field(EMBEDDING, Kind.ARRAY, (Phase.TRAINING,), what=COMPUTED),)
    RETIRED: ClassVar[Mapping[str, str]] = {
        "penalties": ONE,
        "proximal-weight": "delete it; it weighed a penalty that was off",
    }

    alpha: float = number(3.0, 0)


METHOD = Method(
    params=FedPubParams,
    strategy="strategies.fedpub:FedPub",
    clients={NODE_CLASSIFICATION: "clients.fedpub:FedPubClient"},
)
