"""FedStar: structure is shared, features are private.

Tan, Liu, Long, Jiang, Lu, Zhang 2023: *Federated Learning on Non-IID Graphs via
Structural Knowledge Sharing*, AAAI, arXiv:2211.13009. Used for nodes as FedGKD's
comparison does.

Message fields
--------------
down, up  ``shared/<name>``: the tensors of the structure channel.
"""

from __future__ import annotations

from ..core.method import Method
from ..core.tasks import NODE_CLASSIFICATION

# Lengths of the two parts of a node's encoding: probabilities to be back after 1, 2,
# ... steps of a random walk; a one-hot degree, larger ones counting as this.
WALK_LENGTH, MAX_DEGREE = 16, 16

METHOD = Method(
    clients={NODE_CLASSIFICATION: "clients.fedstar:FedStarClient"},
)
