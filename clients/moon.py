"""Client side of MOON (Li, He, Song 2021, arXiv:2103.16257, Sec. 3)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.methods.moon import TEMPERATURE, MoonParams

from .graphs.batching import Batch
from .mixins import ModelContrast
from .models.gin import GIN
from .tasks.graph_classifier import GraphClassifierClient


@final
class MoonClient(ModelContrast[MoonParams], GraphClassifierClient[MoonParams]):
    """FedAvg with a contrast to the received model and to the own previous one.

    Differs from the authors' code: no projection head, the representation is the
    input of the last layer; before a client's first round the previous model is the
    received one, which makes the term a constant. The frozen models have no dropout.
    """

    PER_GRAPH = True

    @override
    def represent(self, model: GIN, batch: Batch) -> Tensor:
        """Input of the last layer."""
        return model.represent(batch, None)

    @override
    def epoch(self, number: int) -> Tensor:
        """Represent all graphs by the two frozen models, once per round; train."""
        if number == 0:
            self.freeze()
        return super().epoch(number)

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross-entropy + mu * mean contrast (Eq. 3 and 4)."""
        z = self.model.represent(batch, generator)
        logits, weight = self.model.readout(z), self.class_weights
        loss = nn.functional.cross_entropy(logits, batch.y, weight)
        return loss + self.params.mu * self.contrast(z, batch, TEMPERATURE)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        return self.as_previous()
