"""Client side of MOON (Li, He, Song 2021, arXiv:2103.16257, Sec. 3)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from fedgraph_flwr.methods.moon import MoonParams

from .batching import Batch
from .classifier import ClassifierClient
from .models.gin import GIN
from .terms import model_contrast


@final
class MoonClient(ClassifierClient):
    """FedAvg with a contrast to the received model and to the own previous one.

    Differs from the authors' code: no projection head, the representation is the
    input of the last layer; before a client's first round the previous model is the
    received one, which makes the term a constant. The frozen models have no dropout.
    """

    def begin_epoch(self, epoch: int) -> None:
        """Represent all graphs by the two frozen models, once per round."""
        if epoch > 0:
            return
        self.by_received = self._represent_all(self.model)
        self.by_previous = self._represent_all(self.previous_model())

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross-entropy + mu * mean contrast (Eq. 3 and 4)."""
        assert isinstance(self.job.params, MoonParams)
        z = self.model.represent(batch, generator)
        contrast = model_contrast(
            z,
            self.by_received[batch.index],
            self.by_previous[batch.index],
            self.job.params.temperature,
        ).mean()
        loss = nn.functional.cross_entropy(self.model.readout(z), batch.y)
        return loss + self.job.params.mu * contrast

    def extra_state(self) -> dict[str, Tensor]:
        """Keep the shared tensors as trained."""
        return self.as_previous()

    @torch.no_grad()
    def _represent_all(self, model: GIN) -> Tensor:
        return torch.cat([model.represent(b, None) for b in self.job.data.batches()])
