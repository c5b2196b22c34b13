"""Client side of MOON (Li, He, Song 2021, arXiv:2103.16257, Sec. 3)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor, nn

from fedgraph_flwr.methods.moon import MoonParams

from .base import GraphClient
from .batching import Batch
from .classifier import ClassifierClient
from .models.gin import GIN
from .terms import model_contrast


class ModelContrast(GraphClient):
    """Mixin: MOON's term over whatever represents a graph.

    Neither of the two models changes within a round, so all graphs are represented
    by them once, in :meth:`freeze`. The client keeps ``as_previous`` as extra state.
    """

    @abstractmethod
    def represent(self, model: Any, batch: Batch) -> Tensor:
        """Representations of the batch's graphs by ``model``, shape (num_graphs, d).

        One by one: a graph's must not depend on its batch, nor on chance.
        """

    @torch.no_grad()
    def freeze(self) -> None:
        """Represent all graphs by the received model and by the own previous one."""
        received, previous = self.model, self.previous_model()
        self.by_received, self.by_previous = (
            torch.cat([self.represent(m, b) for b in self.data.batches()])
            for m in (received, previous)
        )

    def contrast(self, ours: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Mean over graphs of the term (Eq. 3), given the model's representations."""
        at = batch.index
        return model_contrast(
            ours, self.by_received[at], self.by_previous[at], temperature
        ).mean()


@final
class MoonClient(ModelContrast, ClassifierClient):
    """FedAvg with a contrast to the received model and to the own previous one.

    Differs from the authors' code: no projection head, the representation is the
    input of the last layer; before a client's first round the previous model is the
    received one, which makes the term a constant. The frozen models have no dropout.
    """

    def represent(self, model: GIN, batch: Batch) -> Tensor:
        """Input of the last layer."""
        return model.represent(batch, None)

    def begin_epoch(self, epoch: int) -> None:
        """Represent all graphs by the two frozen models, once per round."""
        if epoch == 0:
            self.freeze()

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross-entropy + mu * mean contrast (Eq. 3 and 4)."""
        params = self.job.params
        assert isinstance(params, MoonParams)
        z = self.model.represent(batch, generator)
        loss = nn.functional.cross_entropy(self.model.readout(z), batch.y)
        return loss + params.mu * self.contrast(z, batch, params.temperature)

    def extra_state(self) -> dict[str, Tensor]:
        """Keep the shared tensors as trained."""
        return self.as_previous()
