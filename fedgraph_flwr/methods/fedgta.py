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
from ..core.errors import ConfigError
from ..core.fields import COMPUTED, Field, Kind, Phase
from ..core.method import Method
from ..core.rules import choice, flag, integer, number
from ..core.tasks import NODE_CLASSIFICATION

MOMENTS = "fedgta/moments"
CONFIDENCE = "fedgta/confidence"


@dataclass(frozen=True, kw_only=True)
class FedGTAParams(Settings):
    """Parameters of FedGTA.

    Defaults are those of the group's second implementation (OpenFGL) where the first
    has values for three data sets alone: Cora K 6, CiteSeer K 20 and epsilon 0.6,
    PubMed raw moments, K 13 and epsilon 0.65.

    Parameters
    ----------
    steps : int
        k, steps of label propagation.
    alpha : float
        Share of the neighbours in a step; the rest is the start.
    reinforce : bool
        Whether training nodes gain their label once more after each step.
    temperature : float
        T of the softmax whose entropy makes the confidence. At 20 it is almost flat,
        and the confidence almost a constant of the client's graph.
    moments : str
        "raw", "central" or both ("hybrid").
    moment_orders : int
        K, orders from 1.
    epsilon : float
        Clients count as alike above this cosine of their moments; -1: all, 1: none.
    confidence : str
        Weight of a sender: "smoothing", the paper's, or a control: "edges" (sum of
        degrees), "samples" (training nodes), "uniform".
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
    alpha: float = number(0.5, 0, 1)
    reinforce: bool = flag(True)
    temperature: float = number(20.0, 0, low_open=True)
    moments: str = choice("hybrid", "raw", "central", "hybrid")
    moment_orders: int = integer(10, 1, 1000)
    epsilon: float = number(0.5, -1, 1)
    confidence: str = choice("smoothing", "smoothing", "edges", "samples", "uniform")

    @property
    def moments_per_class(self) -> int:
        """Numbers sent for each class."""
        return self.moment_orders * (2 if self.moments == "hybrid" else 1)

    def check(self, privacy: Settings) -> None:  # noqa: ARG002
        """Refuse to compare what is 0 for every client."""
        if self.moments == "central" and self.moment_orders == 1:
            raise ConfigError(
                "fedgta.moments = 'central' with fedgta.moment-orders = 1 compares"
                " clients by the first central moment alone, which is 0 for all; set"
                " fedgta.moment-orders to 2 or more, or fedgta.moments to another"
            )


METHOD = Method(
    params=FedGTAParams,
    strategy="strategies.fedgta:FedGTA",
    clients={NODE_CLASSIFICATION: "clients.fedgta:FedGTAClient"},
)
