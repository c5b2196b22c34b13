"""Client side of FedTAD: FedAvg's training; once, how far to rely on it by class.

Zhu et al. 2024, arXiv:2404.14061; formulas of the authors' released code.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fedgraph_flwr.core.wire import LAST_ROUND, Parcel, join
from fedgraph_flwr.methods.fedtad import RELIABILITY, WALK_LENGTH, FedTADParams

from .graphs.ops import dense_rows, sum_neighbours
from .graphs.structure import encode_structure
from .tasks.node_classifier import NodeClassifierClient
from .training import to_arrays


def likeness(e: Tensor, adjacency: Tensor) -> Tensor:
    """(1 + sum of cos(e_v, e_u) over neighbours u) / (1 + degree), (num_nodes,).

    ``adjacency`` is sparse, symmetric, of 1s, without loops. An isolated node has 1.
    Differs: no less than 0, as features may have any sign.
    """
    unit = normalize(e, dim=1)
    cosines = (unit * sum_neighbours(unit, adjacency)).sum(1)
    return ((1 + cosines) / (1 + adjacency.crow_indices().diff())).clamp(min=0)


@final
class FedTADClient(NodeClassifierClient[FedTADParams]):
    """Sends its trained model, and Phi until the server has it."""

    TAKES_ENCODER = False

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        sent = super().update(trained)
        if not self.params.sends() or self.round.facts.get(LAST_ROUND):
            return sent
        beside = {RELIABILITY: self.reliability()}
        return join(sent, Parcel(arrays=to_arrays(beside)))

    @torch.no_grad()
    def reliability(self) -> Tensor:
        """Phi, (num_classes,): sums over the training nodes of each class.

        Differs: see ``FedTADParams``. Labels of other nodes are not read.
        """
        graph, train = self.graph, self.graph.train
        share = torch.ones(len(train), device=train.device)
        if self.params.reliability != "counts":
            share = likeness(self._described(), graph.adjacency)[train]
        total = torch.zeros(self.model.out_features, device=train.device).double()
        return total.index_add_(0, graph.y[train], share.double()).float()

    def _described(self) -> Tensor:
        """Write out e_v = [x_v, tau_v], by which nodes are compared."""
        x = dense_rows(self.graph.features)
        if self.params.reliability == "none":
            return x
        edges, steps = self.data.partition.graphs.edge_index, WALK_LENGTH
        tau = encode_structure(edges, len(x), walk_length=steps, max_degree=1)
        return torch.cat([x, torch.from_numpy(tau[:, :steps]).to(x)], 1)
