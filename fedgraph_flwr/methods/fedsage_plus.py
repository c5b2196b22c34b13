"""FedSage+: each client mends its graph with generated neighbours, then FedAvg.

Zhang, Yang, Li, Sun, Yiu 2021: *Subgraph Federated Learning with Missing Neighbor
Generation*, NeurIPS, arXiv:2106.13430. Without its cross-client feature loss, for which
a client would need the features of other clients' nodes.

Message fields
--------------
down, up  ``shared/<name>``: all tensors of the classifier. The generator and what it
          made stay with the client.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Settings, integer, number


@dataclass(frozen=True, kw_only=True)
class FedSagePlusParams(Settings):
    """Parameters of the neighbour generator.

    ``rounds`` times ``local-epochs`` are its steps before the client's first round
    (the paper's federated rounds of the generator, in which nothing is exchanged
    here). ``hidden_share`` of the validation nodes is hidden to learn what is missing;
    at most ``max_neighbours`` are generated per node; ``noise`` is the standard
    deviation of what is added to a node's latent vector. ``learning_rate`` is the
    generator's; with the classifier's its tanh saturates.
    """

    TABLE = "fedsage-plus"

    rounds: int = integer(10, 0)
    hidden_share: float = number(0.5, 0, 1, low_open=True)
    max_neighbours: int = integer(5, 1)
    noise: float = number(1.0, 0)
    learning_rate: float = number(1e-3, 0)
