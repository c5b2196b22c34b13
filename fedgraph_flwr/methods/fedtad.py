"""FedTAD: the server distils the clients' models, as far as each knows a class.

Zhu, Li, Wu, Wu, Hu, Li 2024: *FedTAD: Topology-aware Data-free Knowledge Distillation
for Subgraph Federated Learning*, IJCAI, arXiv:2404.14061. Only the abstract could be
read: formulas are those of the authors' released code, put into our own words before.

Message fields
--------------
down  ``shared/<name>``: the averaged model, distilled.
up    ``shared/<name>``: the trained tensors; ``fedtad/reliability``, (C,), in a
      client's first reply: Phi, how far to rely on it in each class, which is about its
      number of training nodes of that class.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import RunSettings, Settings
from ..core.errors import ConfigError
from ..core.fields import Field, Kind, Phase
from ..core.method import Method
from ..core.rules import MOST_STEPS, choice, integer, number
from ..core.tasks import NODE_CLASSIFICATION

RELIABILITY = "fedtad/reliability"
WALK_LENGTH = 5  # of walks that may end where they began


@dataclass(frozen=True, kw_only=True)
class FedTADParams(Settings):
    """Parameters of FedTAD; defaults are those of the authors' code.

    Differs in ``reliability``: the authors compare nodes by x and by the *numbers* of
    nodes on random walks, beside which x vanishes, and which depend on how nodes are
    numbered. All that is left of Phi are counts of training nodes, which is "counts".
    """

    TABLE = "fedtad"
    FIELDS = (
        Field(
            RELIABILITY,
            Kind.ARRAY,
            (Phase.TRAINING,),
            what="numbers of their training nodes by class, times how alike neighbours"
            " are",
            consent="statistics",
        ),
    )

    reliability: str = choice("landing", "landing", "none", "counts", "uniform")
    """A training node counts by its likeness to neighbours, in features and `landing`
    probabilities, or features alone; as one; not."""
    semantic_weight: float = number(1.0, 0)
    """lambda_1, weight of the clients' cross-entropy in the generator's loss. The
    authors tuned it from 0.001 to 0.1."""
    distillations: int = integer(5, 0, MOST_STEPS)
    """Pseudo graphs that the server distils with in each round; 0: FedAvg."""

    def sends(self) -> tuple[Field, ...]:
        """Reliability, if anything is made of it."""
        is_read = self.distillations and self.reliability != "uniform"
        return self.FIELDS if is_read else ()

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name FedAvg, where nothing is distilled."""
        return "" if self.distillations else "has fedtad.distillations 0: FedAvg"

    def check_shared(self, settings: RunSettings) -> None:
        """Refuse models of which the server has a part."""
        if settings.shared_group != "all":
            raise ConfigError(
                "shared-group must be 'all' for fedtad, got"
                f" {settings.shared_group!r}: the server asks the clients' models for"
                " classes; set it to 'all' in the run config"
            )


METHOD = Method(
    params=FedTADParams,
    strategy="strategies.fedtad:FedTAD",
    clients={NODE_CLASSIFICATION: "clients.fedtad:FedTADClient"},
    distil="clients.fedtad_distillation:distil",
)
