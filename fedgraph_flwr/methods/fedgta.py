"""FedGTA: averages for each client over those whose propagated labels look alike.

Li, Wu, Zhang, Zhu, Li, Wang 2023: *FedGTA: Topology-aware Averaging for Federated Graph
Learning*, PVLDB 17(1), arXiv:2401.11755. Only the abstract could be read: formulas are
those of the authors' released code (xkLi-Allen/FedGTA), put into our own words before.

Message fields
--------------
down  ``shared/<name>``: the client's own average.
up    ``shared/<name>``: the trained tensors; ``fedgta/moments``: moments of the
      client's propagated labels, from which counts of its training nodes by class can
      be read; ``fedgta/confidence``, (1,).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.fields import COMPUTED, Field, Kind, Phase
from ..core.method import Method
from ..core.rules import integer, number
from ..core.tasks import NODE_CLASSIFICATION

MOMENTS = "fedgta/moments"
CONFIDENCE = "fedgta/confidence"
ALPHA = 0.5  # share of the neighbours in a step of propagation; the rest is the start
# T of the softmax whose entropy makes the confidence. It is almost flat then, and the
# confidence almost a constant of the client's graph.
TEMPERATURE = 20.0


@dataclass(frozen=True, kw_only=True)
class FedGTAParams(Settings):
    """Parameters of FedGTA.

    Defaults are those of the group's second implementation (OpenFGL): the first has
    values for three data sets alone, and raw moments, where we send both kinds.
    """

    TABLE = "fedgta"
    FIELDS = (
        Field(
            MOMENTS,
            Kind.ARRAY,
            (Phase.TRAINING,),
            what="moments of labels, which tell numbers of training nodes by class",
            consent="statistics",
        ),
        Field(CONFIDENCE, Kind.ARRAY, (Phase.TRAINING,), what=COMPUTED),
    )

    steps: int = integer(5, 0, 1000)
    """k, steps of label propagation."""
    moment_orders: int = integer(10, 1, 1000)
    """K, orders of moments. The authors take 6 for Cora, 20 for CiteSeer, 13 for
    PubMed."""
    epsilon: float = number(0.5, -1, 1)
    """Clients with a larger cosine of moments count as alike. The authors: 0.6 for
    CiteSeer, 0.65 for PubMed."""


METHOD = Method(
    params=FedGTAParams,
    strategy="strategies.fedgta:FedGTA",
    clients={NODE_CLASSIFICATION: "clients.fedgta:FedGTAClient"},
)
