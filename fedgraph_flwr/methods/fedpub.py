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

from dataclasses import dataclass

from ..core.config import Settings
from ..core.fields import COMPUTED, Field, Kind, Phase
from ..core.method import Method
from ..core.tasks import NODE_CLASSIFICATION

EMBEDDING = "fedpub/embedding"
ALPHA = 3.0  # sharpens exp(alpha cos) / sum; as the authors' for disjoint clients


@dataclass(frozen=True, kw_only=True)
class FedPubParams(Settings):
    """What replies of FED-PUB hold beside models.

    Differs from the paper as the released code does: that builds both penalties from
    detached tensors, so that they have no gradient, and here there are none.
    """

    TABLE = "fedpub"
    FIELDS = (Field(EMBEDDING, Kind.ARRAY, (Phase.TRAINING,), what=COMPUTED),)


METHOD = Method(
    params=FedPubParams,
    strategy="strategies.fedpub:FedPub",
    clients={NODE_CLASSIFICATION: "clients.fedpub:FedPubClient"},
)
