"""Client side of AdaFGL: FedAvg's training, then a model of its own, without messages.

Li et al. 2024, arXiv:2401.11750; formulas of the authors' released code.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import Optimizer
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.adafgl import (
    ALPHA,
    BETA,
    HOPS,
    LEARNING_RATE,
    LINK_COSINE,
    WEIGHT_DECAY,
    WIDTH,
    AdaFGLParams,
)

from .graphs.node_data import NodeData
from .graphs.structure import propagate_labels
from .graphs.whole_graph import NodeStructure, WholeGraph
from .job import Job, ModelSpec
from .models.adafgl_nets import (
    UNTRAINED,
    AdaFGLNet,
    AdaFGLPredictor,
    Branches,
    Corrected,
    as_logits,
    branch_loss,
    check_size,
    correct,
    fused,
)
from .tasks.node_classifier import NodeClassifierClient
from .training import make_optimizer, optimizer_tensors

_KNOWLEDGE, _SCORE = "adafgl/knowledge", "adafgl/homophily"
_SHARED = "extractor."
_STEPS, _MIX = 10, 0.5  # of the homophily score


def homophily_score(
    graph: NodeStructure,
    y: Tensor,
    train: Tensor,
    num_classes: int,
    rng: np.random.Generator,
) -> float:
    """Accuracy of labels of one half of the training nodes, propagated, on the other.

    From 0 to 1; 1/2 without a node to check. Ties go to the lowest class.

    Parameters
    ----------
    y : int64 tensor, shape (num_nodes,)
    train : int64 tensor
        Training nodes; ``rng`` draws the half that keeps its labels.
    """
    order = train[torch.from_numpy(rng.permutation(len(train))).to(train.device)]
    kept, check = order[: len(order) // 2], order[len(order) // 2 :]
    if not len(check):
        return 0.5
    start = torch.full((len(y), num_classes), 1 / num_classes, device=y.device)
    start[kept] = one_hot(y[kept], num_classes).to(start.dtype)
    spread = propagate_labels(graph, start, kept, steps=_STEPS, alpha=_MIX)
    return float((spread[check].argmax(1) == y[check]).double().mean())


def _corrected(graph: WholeGraph, known: Tensor) -> Corrected:
    return correct(graph, known, alpha=ALPHA, least=LINK_COSINE, hops=HOPS)


@final
class AdaFGLClient(NodeClassifierClient[AdaFGLParams]):
    """Trains the extractor with the others, then branches on its own.

    What the last extractor says of the graph, and the homophily score, are kept with
    the client's state: from then on the branches predict.
    """

    NOT_ELSEWHERE = (
        "clients of adafgl score by what they kept of their own graphs, which says"
        " nothing of others; take another method, or set it to 'own'"
    )
    model: AdaFGLNet

    def __init__(self, job: Job[AdaFGLParams]) -> None:
        super().__init__(job)
        check_size(self.graph.num_nodes)  # in round 1, not after the first stage
        self._known: tuple[Tensor, float] | None = None
        self._has_begun = False  # to train branches, in this message

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[AdaFGLParams]) -> AdaFGLNet:
        generator = spec.common_generator()
        extractor = cls.gnn(spec, generator)
        branches = Branches(
            spec.num_features,
            spec.num_classes,
            width=WIDTH,
            hops=HOPS,
            beta=BETA,
            dropout=spec.settings.dropout,
            generator=generator,
        )
        return AdaFGLNet(extractor, branches)

    @override
    @classmethod
    def build_predictor(cls, spec: ModelSpec[AdaFGLParams]) -> AdaFGLPredictor:
        made = cls.build_model(spec)
        return AdaFGLPredictor(made.extractor, made.branches)

    @override
    @classmethod
    def predict(cls, model: Any, data: NodeData, params: AdaFGLParams) -> Tensor:
        """Read the graph as it is corrected by what the extractor says of its nodes."""
        graph, share = data.whole, float(model.share)
        logits: Tensor = model.extractor(graph, None)
        if share >= 0:
            known = torch.softmax(logits, 1)
            read = _corrected(graph, known)
            logits = as_logits(fused(model.branches(read, None), known, share))
        return logits[data.held_out]

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Tensors of the extractor, all or of its convolutions."""
        below = _SHARED + ("" if settings.shared_group == "all" else "convs.")
        return [n for n in model.state_dict() if n.startswith(below)]

    @property
    def is_personal(self) -> bool:
        """Whether this round is the client's own."""
        return self.params.is_personal(self.round.number)

    @property
    def _is_alone(self) -> bool:
        """Whether the branches predict; what they learn from may be known before."""
        return self._has_begun or _KNOWLEDGE in self.round.stored

    @override
    def private_keys(self) -> list[str]:
        """All tensors once the client trains alone; before, what is not shared."""
        if self.round.number and not self.is_personal:
            return [n for n in super().private_keys() if n.startswith(_SHARED)]
        return list(self.tensors())

    @override
    @cached_property
    def optimizer(self) -> Optimizer:
        """Adam of the extractor; from the client's own first round on, of branches.

        That of the branches goes on through all rounds, which divide one training.
        """
        settings, stored = self.job.settings, self.round.stored
        if not self.is_personal:
            return make_optimizer(self.model.extractor.parameters(), settings, stored)
        own = replace(
            settings,
            optimizer="adam",
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            persist_optimizer=True,
        )
        trained = stored if _KNOWLEDGE in stored else {}
        return make_optimizer(self.model.branches.parameters(), own, trained)

    @override
    def state(self) -> dict[str, Tensor]:
        kept = super().state()
        if self.is_personal and not self.job.settings.persist_optimizer:
            kept |= optimizer_tensors(self.optimizer)
        return kept

    @override
    def train(self, num_epochs: int | None = None) -> Parcel:
        """Train the branches if the round is the client's own."""
        return super().train(self.params.personal_epochs if self.is_personal else None)

    @override
    def epoch(self, number: int) -> Tensor:
        """Ask the extractor what it says before the first step without it."""
        if self.is_personal:
            self._knowledge()
            self._has_begun = True
        return super().epoch(number)

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Losses of the branches in use, or cross-entropy of the extractor."""
        if not self.is_personal:
            return super().loss(batch, generator)
        out, (known, _) = self._outputs(generator), self._knowledge()
        return branch_loss(out, known, batch.y, batch.train)

    @override
    def logits(self, generator: torch.Generator | None) -> Tensor:
        """Of the extractor, or logarithms of what the branches say together."""
        if not self._is_alone:
            found: Tensor = self.model.extractor(self.graph, generator)
            return found
        known, score = self._knowledge()
        if not len(self.graph.train):
            said = known
        else:
            said = fused(self._outputs(None), known, score)
        return as_logits(said)

    @override
    def trained(self) -> dict[str, Tensor]:
        """Pay for noise only where something is sent: nothing of a round of its own."""
        return {} if self.is_personal else super().trained()

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        return Parcel() if self.is_personal else super().update(trained)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        if not self.is_personal:
            return {}
        known, score = self._knowledge()
        return {_KNOWLEDGE: known, _SCORE: torch.tensor(score, dtype=torch.float64)}

    @override
    def predictor(self) -> dict[str, Tensor]:
        """Add the share of the homophilous branch, which this client's labels gave."""
        trained = self._is_alone and len(self.graph.train)
        share = self._knowledge()[1] if trained else UNTRAINED
        return {**super().predictor(), "share": torch.tensor(share, dtype=torch.double)}

    # What the extractor says -----------------------------------------------------

    @torch.no_grad()
    def _knowledge(self) -> tuple[Tensor, float]:
        """P, and the homophily score; made once, from the model that came last."""
        job, graph, stored = self.job, self.graph, self.round.stored
        if self._known is None and _KNOWLEDGE in stored:
            self._known = stored[_KNOWLEDGE].to(job.device), float(stored[_SCORE])
        if self._known is None:
            known = torch.softmax(self.model.extractor(graph, None), 1)
            rng = numpy_rng(job.settings.seed, job.client_id, "hcs")
            args = graph, graph.y, graph.train, known.shape[1], rng
            self._known = known, homophily_score(*args)
        return self._known

    @cached_property
    def corrected(self) -> Corrected:
        """The graph as branches read it."""
        return _corrected(self.graph, self._knowledge()[0])

    def _outputs(self, generator: torch.Generator | None) -> Any:
        return self.model.branches(self.corrected, generator)
