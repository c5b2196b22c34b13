"""Server side of FGCL: an average, over participants or as Eq. (11) has it.

Yang et al. 2022, arXiv:2207.11836, Sec. III-D.
"""

from __future__ import annotations

from typing import final

from typing_extensions import override

from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fgcl import FGCLParams
from fedgraph_flwr.wire import Parcel, select

from .averaging import weighted_mean
from .fedavg import FedAvg


@final
class FGCL(FedAvg):
    """FedAvg; the weights and the share of the clients that did not train are options.

    Source
    ------
    FGCL, Eq. (11). Differs: as printed it equals M times the mean when all M clients
    train; with ``partial="paper"`` c of them give (c / M) mean + (1 - c / M) theta.
    """

    params: FGCLParams

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Average the models; without any reply nothing changes (Eq. 11 with c = 0)."""
        if not replies:
            return
        by_samples = self.params.weighting == "samples"
        weights = [self.clients[c].num_train if by_samples else 1 for c in replies]
        if not any(weights):
            return
        mean = weighted_mean(
            [select(SHARED, p.arrays) for p in replies.values()], weights
        )
        share = len(replies) / len(self.clients)
        if self.params.partial == "participants" or share == 1:
            self.theta = mean
        else:
            self.theta = weighted_mean([mean, self.theta], [share, 1 - share])
