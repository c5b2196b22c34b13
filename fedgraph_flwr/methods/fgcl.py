"""FGCL: federated graph contrastive learning with edge-level differential privacy.

Yang, Zhao, Li, Chen, Xu 2022, arXiv:2207.11836. Clients classify molecules from noisy
views of their graphs: Laplace noise on the adjacency (Eq. 3), two views per graph, a
contrast between them against a store of past noisy graphs (Eq. 6), cross-entropy on
both (Eq. 9). The server averages. The paper's other rows are values of ``views``:
"two" is FGCL, "one" Fed+Noise, "clean" Federated (Centralized with one client);
"no-edges" is ours, the floor that any use of structure must beat.

Noise is set by ``privacy.edge-epsilon`` and its neighbours (``privacy.py``).

Message fields
--------------
down, up  ``shared/<name>``: all tensors.
up        metrics ``privacy/...``: what the client has spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core.config import Settings
from ..core.errors import ConfigError
from ..core.method import Method
from ..core.privacy_settings import PrivacySettings
from ..core.rules import Value, choice, integer, number
from ..core.tasks import MULTI_TASK_CLASSIFICATION

STORE_SIZE = 100  # N, noisy graphs that a client keeps as negatives


@dataclass(frozen=True, kw_only=True)
class FGCLParams(Settings):
    """Parameters of FGCL and its controls.

    Differs: Eq. (11) as printed is M times the mean if all M clients train; the server
    averages the clients that trained.
    """

    TABLE = "fgcl"
    RUN: ClassVar[Mapping[str, Value]] = {"persist-optimizer": False}
    TAKES_WEIGHTS: ClassVar[bool] = True

    views: str = choice("two", "two", "one", "clean", "no-edges")
    """FGCL (`two`), Fed+Noise (`one`), graphs as they are (`clean`), or nodes alone
    (`no-edges`)."""
    encoder: str = choice("gcn", "gcn", "kgnn", "tag", "lightgcn")
    """Encoder of a view."""
    num_negatives: int = integer(10, 0, 100_000)
    """k, negatives per graph."""
    contrast_weight: float = number(0.1, 0)
    """gamma, weight of the contrast."""
    temperature: float = number(1.0, 0, low_open=True)
    """tau, temperature of the contrast."""

    @property
    def is_noisy(self) -> bool:
        """Whether it trains on noisy views."""
        return self.views in ("one", "two")

    def view_epsilons(self, privacy: PrivacySettings) -> tuple[float, ...]:
        """Epsilon of each noisy view of a training graph, if views are noisy."""
        if self.views == "one":
            return (privacy.edge_epsilon,)
        if privacy.edge_epsilon_of == "total":
            return (privacy.edge_epsilon / 2,) * 2
        return privacy.edge_epsilon, privacy.edge_epsilon

    def check(self, privacy: Settings) -> None:
        """Refuse what contradicts itself, or would be ignored, before any draw.

        Noisy views need an epsilon, and the others must not pretend to have one.
        """
        assert isinstance(privacy, PrivacySettings)
        if self.is_noisy and not privacy.edge_epsilon > 0:
            raise ConfigError(
                f"fgcl.views = {self.views!r} trains on noisy graphs, but"
                f" privacy.edge-epsilon is {privacy.edge_epsilon!r}; set it to a number"
                " > 0, or fgcl.views to 'clean'"
            )
        if not self.is_noisy and privacy.edge_epsilon > 0:
            raise ConfigError(
                f"fgcl.views = {self.views!r} uses no noise, but privacy.edge-epsilon"
                f" is {privacy.edge_epsilon!r}; set it to 0, or fgcl.views to 'one' or"
                " 'two'"
            )


METHOD = Method(
    params=FGCLParams,
    clients={MULTI_TASK_CLASSIFICATION: "clients.fgcl:FGCLClient"},
)
