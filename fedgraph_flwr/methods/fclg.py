"""FCLG: federated contrastive learning of graph-level representations.

Li, Agrawal, Ramnath, Jin 2024, arXiv:2411.12098. Clients learn one encoder without
labels; the server averages (FedAvg, weighted by the number of graphs). The local loss
contrasts a graph with its diffusion view (intra, Eq. 5-6) and the local model with the
received one and with that of the previous local epoch (inter, Eq. 7). Rows of the
paper are values of ``inter``: "graphs" is FCLG, "nodes" FCLG-H (Eq. 8), "none"
Intra-FedAvg, "kl" and "mse" Intra-KL (Eq. 2) and Intra-MSE (Eq. 3). "previous-round"
takes the client's model of the previous round instead of the previous epoch, as MOON
does (Li et al. 2021, arXiv:2103.16257).

Message fields
--------------
down  ``shared/<name>``: all tensors of the encoder.
up    ``shared/<name>``: the same after training.
Nothing else travels, unless ``embedding.evaluation`` is "pooled" (see ``tasks.py``).

The appendix with the paper's hyper-parameters cannot be found; defaults are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import Value, choice, number
from ..core.tasks import GRAPH_EMBEDDING

TEMPERATURE = 0.5  # tau (Eq. 5)
INTER_TEMPERATURE = 0.5  # tau' (Eq. 7), and that of the softmax of "kl"
# Shared settings of every row of the paper, K, E, T and the split (Sec. 5).
RUN: Mapping[str, Value] = {
    "num-clients": 6,
    "num-server-rounds": 20,
    "partition": "dominance",
    "held-out": 0.0,
    "local-epochs": 5,
    "batch-size": 64,
    "optimizer": "adamw",
    "weight-decay": 0.01,
    "persist-optimizer": False,
    "hidden-dim": 64,
    "num-layers": 3,
    "dropout": 0.0,
    "shared-group": "all",
}


@dataclass(frozen=True, kw_only=True)
class FCLGParams(Settings):
    """Parameters of FCLG and its variants: the second loss, by name."""

    TABLE = "fclg"
    RUN = RUN

    inter: str = choice(
        "graphs", "graphs", "nodes", "none", "kl", "mse", "previous-round"
    )
    """Second loss: FCLG (`graphs`), FCLG-H (`nodes`), Intra-FedAvg (`none`), Intra-KL
    (`kl`), Intra-MSE (`mse`), or as MOON (`previous-round`)."""

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name Intra-FedAvg, where the received model is contrasted with itself."""
        is_flat = epochs == 1 and self.inter in ("graphs", "nodes")
        return "has local-epochs 1, a contrast of 0: Intra-FedAvg" if is_flat else ""


@dataclass(frozen=True, kw_only=True)
class InfoMaxParams(Settings):
    """Terms that InfoGraph and MVGRL can add to their loss; FedAvg without any."""

    TABLE = "infomax"

    proximal_mu: float = number(0.0, 0)
    """InfoGraph and MVGRL: weight of FedProx's term."""
    moon_mu: float = number(0.0, 0)
    """InfoGraph and MVGRL: weight of MOON's contrast of embeddings."""


@dataclass(frozen=True, kw_only=True)
class InfoGraphParams(InfoMaxParams):
    """InfoGraph (Sun et al. 2020, arXiv:1908.01000) as a federated baseline.

    Shared settings are those of the authors' code where it has any: 5 layers of 32,
    Adam.
    """

    RUN: ClassVar[Mapping[str, Value]] = {
        **RUN,
        "optimizer": "adam",
        "weight-decay": 0.0,
        "hidden-dim": 32,
        "num-layers": 5,
    }


@dataclass(frozen=True, kw_only=True)
class MVGRLParams(InfoMaxParams):
    """MVGRL (Hassani and Khasahmadi 2020, arXiv:2006.05582) as a federated baseline.

    The diffusion view is FCLG's by default: PPR with the authors' alpha of 0.2.
    """

    RUN: ClassVar[Mapping[str, Value]] = {
        **RUN,
        "optimizer": "adam",
        "weight-decay": 0.0,
        "hidden-dim": 512,
        "num-layers": 4,
    }


METHODS = {
    "fclg": Method(
        params=FCLGParams,
        clients={GRAPH_EMBEDDING: "clients.fclg:FCLGClient"},
    ),
    "infograph": Method(
        params=InfoGraphParams,
        clients={GRAPH_EMBEDDING: "clients.infomax:InfoGraphClient"},
    ),
    "mvgrl": Method(
        params=MVGRLParams,
        clients={GRAPH_EMBEDDING: "clients.infomax:MVGRLClient"},
    ),
}
