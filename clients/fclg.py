"""Client side of FCLG and its variants.

Li et al. 2024, arXiv:2411.12098, Algorithm 1: per round the received model is frozen
as ``glob``; per local epoch the model so far is frozen as ``prev``. Neither changes
while it is used, so their embeddings are computed once per round and once per epoch,
not once per batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from fedgraph_flwr.core.data import DiffusionSpec
from fedgraph_flwr.methods.fclg import INTER_TEMPERATURE, TEMPERATURE, FCLGParams

from .graphs.batching import Batch, ClientData
from .graphs.ops import sum_pool
from .job import Job
from .losses import distill_kl, distill_mse, model_contrast, nt_xent
from .mixins import RemembersModel
from .models.weighted_gin import WeightedGIN
from .tasks.graph_embedder import EmbeddingClient


class FCLGClient(RemembersModel[FCLGParams], EmbeddingClient[FCLGParams]):
    """NT-Xent with the diffusion view plus a contrast between models (Eq. 9)."""

    MODEL = WeightedGIN
    model: WeightedGIN

    def __init__(self, job: Job[FCLGParams]) -> None:
        super().__init__(job)
        self.glob = self.prev = torch.empty(0)  # what the frozen models embed

    @override
    @classmethod
    def predict(cls, model: nn.Module, data: ClientData, params: FCLGParams) -> Tensor:
        """Embed by the graphs alone."""
        return torch.cat([model(batch) for batch in data.evaluation])

    @override
    @classmethod
    def diffusion(cls, params: FCLGParams) -> DiffusionSpec:
        """Second view of Sec. 4: personalised PageRank."""
        return DiffusionSpec()

    @override
    def embed(self, batch: Batch) -> Tensor:
        """U of the graphs as they are."""
        return self.model(batch)  # type: ignore[no-any-return]

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Intra + weight * inter (Eq. 9); nothing here is random."""
        params = self.params
        layers = self.model.layers(batch)
        u = self.model.pool(layers, batch)
        v = self.model(batch, self.second_view(batch))
        intra = nt_xent(u, v, TEMPERATURE)
        if params.inter == "none":
            return intra
        if params.inter == "nodes":
            inter = self.contrast_nodes(torch.cat(layers, dim=1), batch)
        elif params.inter in ("graphs", "previous-round"):
            inter = self.contrast_graphs(u, batch)
        else:
            ours, teacher = normalize(u), normalize(self.glob[batch.index])
            if params.inter == "kl":
                inter = distill_kl(ours, teacher, INTER_TEMPERATURE)
            else:
                inter = distill_mse(ours, teacher)
        return intra + inter

    @override
    def epoch(self, number: int) -> Tensor:
        """Freeze ``glob`` once a round and ``prev`` once an epoch, then train."""
        self.freeze(number)
        return super().epoch(number)

    def freeze(self, number: int) -> None:
        """Make the teachers of an epoch of this round."""
        inter = self.params.inter
        if inter == "none":
            return
        if number == 0:
            self.glob = self._freeze(self.model)
            self.prev = self.glob
            if inter == "previous-round":
                self.prev = self._freeze(self.previous_model())
        elif inter in ("graphs", "nodes"):
            self.prev = self._freeze(self.model)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """For "previous-round": the model at the end of the round."""
        if self.params.inter != "previous-round":
            return {}
        return self.as_previous()

    # The second loss, by name ----------------------------------------------------

    def contrast_graphs(self, u: Tensor, batch: Batch) -> Tensor:
        """Eq. (7): mean over graphs."""
        at = batch.index
        ours = u, self.glob[at], self.prev[at]
        return model_contrast(*ours, INTER_TEMPERATURE).mean()

    def contrast_nodes(self, h: Tensor, batch: Batch) -> Tensor:
        """Eq. (8): mean over the nodes of a graph, then over graphs."""
        at = self.data.graphs.node_rows(batch.positions)
        ours = h, self.glob[at], self.prev[at]
        per_node = model_contrast(*ours, INTER_TEMPERATURE)
        summed = sum_pool(per_node[:, None], batch.membership, batch.graph_of_node)
        sizes = batch.membership.crow_indices().diff()
        return (summed[:, 0] / sizes).mean()

    # Teachers --------------------------------------------------------------------

    @torch.no_grad()
    def _freeze(self, model: WeightedGIN) -> Tensor:
        """Embeddings of all graphs, or for "nodes" of all nodes, by ``model``."""
        by_nodes = self.params.inter == "nodes"
        return torch.cat(
            [
                torch.cat(model.layers(b), dim=1) if by_nodes else model(b)
                for b in self.data.batches()
            ]
        )
