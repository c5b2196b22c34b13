"""AdaFGL: federated averaging, then a model of each client's own on a corrected graph.

Li, Wu, Zhang, Sun, Li, Wang 2024: *AdaFGL: A New Paradigm for Federated Node
Classification with Topology Heterogeneity*, ICDE, arXiv:2401.11750. Only the abstract
could be read: formulas are those of the authors' released code (xkLi-Allen/AdaFGL), put
into our own words before.

Message fields
--------------
down  ``shared/<name>``: the averaged model, in rounds 1..R_1 and once after them.
up    ``shared/<name>``: trained tensors, in rounds 1..R_1; no array after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import MOST_STEPS, integer
from ..core.tasks import NODE_CLASSIFICATION

MOST_NODES = 8192  # of one client: its pairs are held as dense matrices
# Values of the released code.
LEARNING_RATE, WEIGHT_DECAY = 0.01, 5e-4  # of Adam in a client's own rounds
WIDTH = 64  # hidden units of the branches
ALPHA = 0.05  # of edges in the corrected graph; the rest links nodes predicted alike
BETA = 0.2  # of these links in the similarity of the heterophilous branch
LINK_COSINE = 0.999  # tau, of predictions: above it two nodes are linked
HOPS = 3  # powers of the corrected graph that features are smoothed by


@dataclass(frozen=True, kw_only=True)
class AdaFGLParams(Settings):
    """Parameters of AdaFGL."""

    TABLE = "adafgl"
    NO_CLASS_WEIGHTS = "its branches have losses of their own"

    federated_rounds: int = integer(100, 1, 999_999)
    """R_1, rounds of averaging. Then clients train alone."""
    personal_epochs: int = integer(10, 1, MOST_STEPS)
    """Steps of a client in each round of its own. The authors take 200 in all."""

    def is_personal(self, server_round: int) -> bool:
        """Whether clients train on their own in a round."""
        return server_round > self.federated_rounds

    def warnings(self, num_rounds: int) -> tuple[str, ...]:
        """Name a run that ends before clients train on their own."""
        if num_rounds > self.federated_rounds:
            return ()
        return (
            f"adafgl.federated-rounds is {self.federated_rounds}, and the run has"
            f" {num_rounds} round(s): no client trains on its own, and no result can be"
            " chosen by validation; set num-server-rounds above"
            f" {self.federated_rounds}, or adafgl.federated-rounds lower",
        )


METHOD = Method(
    params=AdaFGLParams,
    strategy="strategies.adafgl:AdaFGL",
    clients={NODE_CLASSIFICATION: "clients.adafgl:AdaFGLClient"},
)
