"""Client side of FedSage+: mend the graph once, then FedAvg of a GraphSAGE.

Zhang et al. 2021, arXiv:2106.13430. The generator learns from the client's own graph
and, with ``cross_client``, from feature rows of other clients' nodes. Differs: a sample
of these is exchanged once, before round 1; see also ``cross_loss``.
"""

from __future__ import annotations

import copy
from logging import WARNING
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.config import PAPER, Settings
from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.wire import NamedArrays, select
from fedgraph_flwr.methods.fedsage_plus import (
    CROSS_ROWS,
    HIDDEN_SHARE,
    LEARNING_RATE,
    MAX_NEIGHBOURS,
    NOISE,
    ROWS,
    ROWS_OF,
    FedSagePlusParams,
)

from .fedsage_plus_generator import (
    MendedGraph,
    NeighbourGenerator,
    check_generated,
    choose_neighbours,
    impair,
    train_generator,
    unmended,
)
from .graphs.ops import dense_rows
from .job import Job
from .models.node_gnn import NodeGNN, SAGEConv
from .tasks.node_classifier import NodeClassifierClient

_FEATURES, _OWNER = "mended/features", "mended/owner"


@final
class FedSageClient(NodeClassifierClient[Settings]):
    """FedAvg of a GraphSAGE (FedGKD, Sec. B.2); no neighbours are generated."""

    TAKES_ENCODER = False
    CONV, ENCODERS = SAGEConv, (PAPER,)


@final
class FedSagePlusClient(NodeClassifierClient[FedSagePlusParams]):
    """GraphSAGE on a graph whose missing neighbours are generated once, then kept."""

    TAKES_ENCODER = False
    model: NodeGNN
    CONV, ENCODERS = SAGEConv, (PAPER,)
    WHY_NOT = NOT_ELSEWHERE = (
        "the model of fedsage+ reads a graph that was mended with generated"
        " neighbours, and the generator is not kept; train with fedsage to predict"
    )

    def __init__(self, job: Job[FedSagePlusParams]) -> None:
        super().__init__(job)
        self._mended: MendedGraph | None = None

    @override
    def opening(self) -> NamedArrays:
        """Give features of ``CROSS_ROWS`` training nodes, ascending; all if fewer.

        Drawn by the stream (seed, client, "cross-rows").
        """
        params, job = self.params, self.job
        if not params.cross_client:
            return {}
        train = self.data.partition.train
        rng = numpy_rng(job.settings.seed, job.client_id, "cross-rows")
        count = min(CROSS_ROWS, len(train))
        chosen = np.sort(rng.choice(train, size=count, replace=False))
        return {ROWS: self._features().cpu().numpy()[chosen].astype(np.float32)}

    @override
    def logits(self, generator: torch.Generator | None) -> Tensor:
        """Logits of the client's nodes, then of those generated."""
        graph = self.mended()
        return self.model.logits(graph.x, graph, generator)

    def mended(self) -> MendedGraph:
        """Give the graph with its generated neighbours."""
        if self._mended is None:
            features, owner = (self.round.stored.get(n) for n in (_FEATURES, _OWNER))
            if features is None or owner is None:
                features, owner = self._generate()
            self._mended = MendedGraph(
                self.graph.adjacency,
                self._features(),
                features.to(self.job.device),
                owner.to(self.job.device),
            )
        return self._mended

    @override
    def extra_state(self) -> dict[str, Tensor]:
        graph = self.mended()
        return {_FEATURES: graph.x[graph.num_nodes :], _OWNER: graph.owner}

    def _features(self) -> Tensor:
        return dense_rows(self.graph.features)

    def _generate(self) -> tuple[Tensor, Tensor]:
        """Features and owners of generated neighbours; none if a failure is hidden."""
        features, owner = self._features()[:0], torch.zeros(0, dtype=torch.int64)
        with self.hiding_failure():
            features, owner = self._apply_generator()
        return features, owner

    def _apply_generator(self) -> tuple[Tensor, Tensor]:
        """Train a generator and apply it to the whole graph: features and owners."""
        params, settings, device = self.params, self.job.settings, self.job.device
        x = self._features()
        impaired = impair(
            np.asarray(self.data.partition.graphs.edge_index, np.int64),
            len(x),
            self._hidden(),
        )
        # One stream for all: clients with the same graph must mend it alike.
        seed = derive_seed(settings.seed, "common", "neighbours")
        model = NeighbourGenerator(
            x.shape[1],
            hidden_dim=settings.hidden_dim,
            max_neighbours=MAX_NEIGHBOURS,
            noise=NOISE,
            generator=torch.Generator().manual_seed(seed),
        ).to(device)
        noise = torch.Generator(device).manual_seed(seed)
        train = np.searchsorted(impaired.kept, self.data.partition.train)
        train_generator(
            model,
            copy.deepcopy(self.model).requires_grad_(True),
            impaired,
            x,
            self.graph.y,
            torch.from_numpy(train).to(device),
            steps=params.rounds * settings.local_epochs,
            learning_rate=LEARNING_RATE,
            weight_decay=settings.weight_decay,
            generator=noise,
            others=self._rows_of_others(x),
        )
        with torch.no_grad():
            counts, features = model(unmended(self.graph.adjacency, x), noise)
            owner, slot = choose_neighbours(counts, MAX_NEIGHBOURS)
        check_generated(features)
        return features[owner, slot], owner

    def _rows_of_others(self, x: Tensor) -> list[Tensor]:
        """Rows that other clients gave, ascending by client; stored as ``x`` is."""
        if not self.params.cross_client:
            return []
        given = {int(c): a for c, a in select(ROWS_OF, self.round.extras).items()}
        if not given:
            log(
                WARNING,
                "client %d got no rows of other clients: its neighbours are generated"
                " without the cross-client loss",
                self.job.client_id,
            )
        return [torch.from_numpy(np.array(a)).to(x) for _, a in sorted(given.items())]

    def _hidden(self) -> IntArray:
        """Draw the validation nodes that the generator does not see, ascending."""
        job = self.job
        val = self.data.partition.val
        rng = numpy_rng(job.settings.seed, "common", "hidden")
        count = round(HIDDEN_SHARE * len(val))
        return np.sort(rng.choice(val, size=count, replace=False))
