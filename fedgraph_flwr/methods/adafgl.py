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
from ..core.rules import MOST_STEP, MOST_STEPS, choice, integer, number
from ..core.tasks import NODE_CLASSIFICATION

MOST_NODES = 8192  # of one client: its pairs are held as dense matrices


@dataclass(frozen=True, kw_only=True)
class AdaFGLParams(Settings):
    """Parameters of AdaFGL.

    Parameters
    ----------
    federated_rounds : int
        R_1, rounds of averaging. The rounds after it are the clients' own.
    personal_epochs : int
        Steps of a client in each round after that.
    learning_rate, weight_decay : float
        Of Adam in these steps.
    width : int
        Hidden units of the branches.
    alpha : float
        Share of the edges in the corrected graph; the rest are links between nodes
        that the averaged model predicts alike.
    beta : float
        Share of these links in the similarity of the heterophilous branch.
    link_cosine : float
        tau, cosine of predictions above which two nodes are linked.
    hops : int
        Powers of the corrected graph that features are smoothed by.
    fusion : str
        "soft": both branches, weighted by the homophily score; "hard": the one that
        ``threshold`` picks; "homo", "hete": always that branch.
    threshold : float
        Homophily score from which "hard" takes the homophilous branch.
    """

    TABLE = "adafgl"

    federated_rounds: int = integer(100, 1, 999_999)
    personal_epochs: int = integer(10, 1, MOST_STEPS)
    learning_rate: float = number(0.01, 0, MOST_STEP)
    weight_decay: float = number(5e-4, 0)
    width: int = integer(64, 1, 100_000)
    alpha: float = number(0.05, 0, 1)
    beta: float = number(0.2, 0, 1)
    link_cosine: float = number(0.999, -1, 1)
    hops: int = integer(3, 0, 100)
    fusion: str = choice("soft", "soft", "hard", "homo", "hete")
    threshold: float = number(0.9, 0, 1)

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
