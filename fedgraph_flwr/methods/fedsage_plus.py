"""FedSage+: each client mends its graph with generated neighbours, then FedAvg.

Zhang, Yang, Li, Sun, Yiu 2021: *Subgraph Federated Learning with Missing Neighbor
Generation*, NeurIPS, arXiv:2106.13430. Its cross-client feature loss is off unless
``cross_client`` is set, for it needs features of other clients' nodes.

Message fields
--------------
down, up  ``shared/<name>``: all tensors of the classifier. The generator and what it
          made stay with the client.
opening   up, with ``cross_client``: ``cross/rows``, (num_rows, num_features), features
          of some of the client's training nodes.
down      with ``cross_client``, until the client has trained: ``cross/rows/<client>``
          for each other client that gave any.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.fields import Field, Kind, Phase
from ..core.method import Method
from ..core.rules import flag, integer
from ..core.tasks import NODE_CLASSIFICATION

ROWS = "cross/rows"
ROWS_OF = ROWS + "/"  # and a client
HIDDEN_SHARE = 0.5  # of validation nodes, hidden to learn what is missing
MAX_NEIGHBOURS = 5  # that are generated for a node
NOISE = 1.0  # standard deviation of what is added to a node's latent vector
CROSS_ROWS = 100  # feature rows that a client gives to others
LEARNING_RATE = 1e-3  # of the generator; with the classifier's its tanh saturates


@dataclass(frozen=True, kw_only=True)
class FedSagePlusParams(Settings):
    """Parameters of the neighbour generator.

    In the paper the generator trains in federated rounds; here nothing is exchanged
    but raw features of ``CROSS_ROWS`` training nodes of each client, once, if
    ``cross_client`` is set. That reveals no more: in the paper client j answers
    generated features with the gradient of ||generated - x_u||^2, from which x_u =
    generated - gradient / 2. The loss, of weight 1, is a mean over other clients, in
    the paper a sum. The paper gives no values.
    """

    TABLE = "fedsage-plus"
    FIELDS = (
        Field(
            ROWS,
            Kind.ARRAY,
            (Phase.OPENING,),
            what="feature rows of nodes, for the server and every other client"
            " (fedsage-plus.cross-client)",
            consent="raw_features",
            most=1e15,  # in float32 squares of larger ones may be infinite
        ),
    )

    rounds: int = integer(10, 0, 100_000)
    """Steps of the neighbour generator before a client's first round, in units of
    `local-epochs`."""
    cross_client: bool = flag(False)
    """Train the generator on other clients' rows: the server and all clients see raw
    features."""

    def sends(self) -> tuple[Field, ...]:
        """Rows of features, if they leave the client for the cross-client loss."""
        return self.FIELDS if self.cross_client else ()


METHODS = {
    "fedsage": Method(
        clients={NODE_CLASSIFICATION: "clients.fedsage_plus:FedSageClient"}
    ),
    "fedsage+": Method(
        params=FedSagePlusParams,
        strategy="strategies.fedsage_plus:FedSagePlus",
        clients={NODE_CLASSIFICATION: "clients.fedsage_plus:FedSagePlusClient"},
    ),
}
