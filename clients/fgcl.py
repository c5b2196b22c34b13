"""Client side of FGCL, Fed+Noise and their controls without noise.

Yang et al. 2022, arXiv:2207.11836, Sec. III and Algorithm 1. The edges of a graph enter
through its noisy views alone; see ``clients.privacy``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.methods.fgcl import STORE_SIZE, FGCLParams

from .graphs.batching import Batch
from .graphs.csr import send
from .graphs.node_rows import MoleculeData, Nodes
from .graphs.noisy_view import NoisyView
from .graphs.structure import NoEdges, SparseStructure, Structure
from .job import Job, ModelSpec
from .losses import info_nce
from .models.weighted_encoders import GraphModel
from .privacy.laplace import Triangles
from .privacy.negatives import NegativeQueue
from .tasks.multitask import MultiTaskClient


def _clean(batch: Batch, params: FGCLParams) -> Structure:
    if params.views == "no-edges":
        return NoEdges(len(batch.graph_of_node), batch.y.device)
    return SparseStructure(batch)


@final
class FGCLClient(MultiTaskClient[FGCLParams]):
    """Two noisy views, InfoNCE against a queue of past ones, cross-entropy on both.

    For numbers, absolute errors take the place of cross-entropy.

    With ``views`` = "one" cross-entropy on one view (Fed+Noise); "clean" trains on the
    graphs as they are, "no-edges" on their nodes alone.
    """

    WHY_NOT = ""
    model: GraphModel

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[FGCLParams]) -> GraphModel:
        return GraphModel(
            spec.params.encoder,
            spec.num_features,
            spec.num_classes,
            hidden_dim=spec.settings.hidden_dim,
            dropout=spec.settings.dropout,
            generator=spec.common_generator(),
        )

    @override
    @classmethod
    def predict(
        cls, model: nn.Module, data: MoleculeData, params: FGCLParams
    ) -> Tensor:
        """Read clean edges, each of weight 1, or nodes alone as it was trained."""
        pairs = zip(data.evaluation, data.evaluation_nodes, strict=True)
        return torch.cat([model(n, _clean(b, params), None) for b, n in pairs])

    def __init__(self, job: Job[FGCLParams]) -> None:
        super().__init__(job)
        params, privacy = self.params, job.privacy
        self.contrasts = params.views == "two" and params.contrast_weight > 0
        self.queue = NegativeQueue(STORE_SIZE)
        self.is_noisy = params.is_noisy
        if not self.is_noisy:
            return
        epsilons = params.view_epsilons(privacy)
        partition = self.data.partition
        self.train_views = job.site.views(
            partition,
            partition.train,
            name="train",
            epsilons=epsilons,
            mode=privacy.noise_mode,
        )
        self.draws_once = privacy.noise_mode == "once"
        self.triangles: tuple[Triangles, ...] = ()
        self.held_out: NoisyView | None = None
        self.held_out_views = job.site.views(
            partition,
            partition.held_out,
            name="held-out",
            epsilons=epsilons[:1],
            mode="once",
        )

    # Evaluation: view 0 of the held-out graphs ------------------------------------

    @override
    def logits(self, batch: Batch, nodes: Nodes) -> Tensor:
        """Predictions from one noisy view; scores by clean edges would reveal them."""
        structure = self._plain(batch)
        if structure is not None:
            return self.model(nodes, structure, None)  # type: ignore[no-any-return]
        if self.held_out is None:
            self.held_out = self._ready(self.held_out_views.views(0, 0))
        rows = self.held_out.places(batch.positions)
        (embeddings,) = self._embed(self.held_out, [rows], None)
        return self.model.head(embeddings)  # type: ignore[no-any-return]

    # Training -----------------------------------------------------------------------

    @override
    def epoch(self, number: int) -> Tensor:
        """Train on views of this epoch."""
        self.look(number)
        return super().epoch(number)

    def look(self, number: int) -> None:
        """Draw or recall an epoch's views; in the first epoch recall the store."""
        if not self.is_noisy:
            return
        before = self.triangles
        self.triangles = self.train_views.views(self.round.number, number)
        if self.triangles is not before:
            self.view = self._ready(self.triangles)
        if number == 0 and self.contrasts:
            seed, client = self.job.settings.seed, self.job.client_id
            self.draws = numpy_rng(seed, client, self.round.number, "negatives")
            stored, size = self.round.stored, STORE_SIZE
            self.queue = NegativeQueue.from_tensors(stored, size)
            if not len(self.queue):  # the client's first round (Sec. III-C)
                train = self.data.partition.train
                self._push(train[max(0, len(train) - self.params.num_negatives) :])

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Gamma L_c + L_e (Eq. 10)."""
        params, structure = self.params, self._plain(batch)
        if structure is not None:
            nodes = self.data.nodes_of(batch)
            logits = self.model(nodes, structure, generator)
            return self.loss_function()(logits, batch.y)
        num_views = len(self.triangles)
        rows = [self.view.places(batch.positions, k) for k in range(num_views)]
        if not self.contrasts:
            return self._classify(self._embed(self.view, rows, generator), batch)
        chosen = self._choose(batch)
        used, place = np.unique(chosen[chosen >= 0], return_inverse=True)
        if self.draws_once:  # all in one pass
            rows.append(self.view.places(self.queue.positions[used], 1))
            first, second, stored = self._embed(self.view, rows, generator)
        else:
            first, second = self._embed(self.view, rows, generator)
            stored = self._embed_stored(used, generator)
        index = np.full(chosen.shape, -1, np.int64)
        index[chosen >= 0] = place
        contrast = info_nce(
            first, second, stored, send(index, self.job.device), params.temperature
        )
        self._push(batch.positions)  # view 1 of the batch joins the store
        loss = self._classify([first, second], batch)
        return loss + params.contrast_weight * contrast

    def _classify(self, embeddings: Sequence[Tensor], batch: Batch) -> Tensor:
        """L_e (Eq. 9): mean over the views."""
        loss_of = self.loss_function()
        losses = [loss_of(self.model.head(h), batch.y) for h in embeddings]
        return torch.stack(losses).mean()

    def _embed(
        self,
        view: NoisyView,
        groups: Sequence[IntArray],
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """h_G of groups of rows of a view, in as few passes as their sizes allow."""
        found = [
            self.model.embed(view.nodes(part), view.rows(part), generator)
            for part in view.parts(np.concatenate(groups))
        ]
        return list(torch.split(torch.cat(found), [len(rows) for rows in groups]))

    # The store of negatives -----------------------------------------------------------

    def _choose(self, batch: Batch) -> IntArray:
        """Entries of the store that are the negatives of each graph of the batch."""
        y, k = self.data.partition.graphs.y, self.params.num_negatives
        return self.queue.choose(batch.positions, np.asarray(y), k, self.draws)

    def _embed_stored(self, used: IntArray, generator: torch.Generator) -> Tensor:
        """Embeddings of entries ``used`` of the store, by the model as it is."""
        if not len(used):
            return torch.zeros(0, self.job.settings.hidden_dim, device=self.job.device)
        num_nodes = np.diff(self.data.partition.graphs.node_ptr)
        stored = self._ready((self.queue.views(num_nodes),))
        return self._embed(stored, [used], generator)[0]

    def _push(self, positions: IntArray) -> None:
        """Append view 1 of the client's graphs; by reference, if it is drawn once."""
        views = None if self.draws_once else self.triangles[1]
        self.queue.push(positions, views)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        return self.queue.to_tensors()

    def _plain(self, batch: Batch) -> Structure | None:
        """Structure of a run without noise; None with noise."""
        return None if self.is_noisy else _clean(batch, self.params)

    def _ready(self, views: tuple[Triangles, ...]) -> NoisyView:
        """Make views ready to be cut into batches."""
        device, post = self.job.device, self.job.privacy.edge_post
        return NoisyView(*views, device=device, post=post, nodes=self.data.nodes)
