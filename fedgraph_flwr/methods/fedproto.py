"""FedProto: clients share the mean embedding of each class, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang 2022: *FedProto: Federated Prototype Learning
across Heterogeneous Clients*, AAAI, arXiv:2105.00243. The control is ``local``, which
lambda 0 is.

Message fields
--------------
down  ``shared/<name>`` until a client has begun: the common start;
      ``fedproto/prototypes``, (C, d): of each class, zeros for one that nobody has.
up    ``fedproto/prototypes``, (C, d): means of embeddings of a client's training items;
      ``fedproto/counts``, (C,): how many they are means over. A mean over one item is
      that item's embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.fields import Field, Kind, Phase
from ..core.method import Method
from ..core.rules import MOST_STEPS, integer, number
from ..core.tasks import GRAPH_CLASSIFICATION, NODE_CLASSIFICATION

PROTOTYPES, COUNTS = "fedproto/prototypes", "fedproto/counts"


@dataclass(frozen=True, kw_only=True)
class FedProtoParams(Settings):
    """Parameters of FedProto; lambda is the paper's."""

    TABLE = "fedproto"
    FIELDS = tuple(
        Field(
            name,
            Kind.ARRAY,
            (Phase.TRAINING,),
            what="mean embeddings and numbers of their training items by class",
            consent="statistics",
        )
        for name in (PROTOTYPES, COUNTS)
    )

    proximal_lambda: float = number(1.0, 0)
    """lambda, weight of the squared distance to the prototypes; 0: training alone."""
    min_count: int = integer(1, 1, MOST_STEPS)
    """A class with fewer training items is not told of."""

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name training alone, where nothing pulls."""
        return "" if self.proximal_lambda else "has fedproto.proximal-lambda 0: local"


METHOD = Method(
    params=FedProtoParams,
    strategy="strategies.fedproto:FedProto",
    clients={
        GRAPH_CLASSIFICATION: (
            "clients.fedproto:Prototypical",
            "clients.tasks.graph_classifier:GraphClassifierClient",
        ),
        NODE_CLASSIFICATION: (
            "clients.fedproto:Prototypical",
            "clients.tasks.node_classifier:NodeClassifierClient",
        ),
    },
)
