"""Parts of a client that methods of several papers have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from .base import Array, GraphClient
from .graphs.batching import Batch
from .losses.terms import model_contrast


class SelfTrain(GraphClient):
    """Mixin: everything is private after the common start; nothing is sent."""

    SENDS_UPDATES = False

    def uplink(self, trained: dict[str, Tensor]) -> list[Array]:  # noqa: ARG002
        """Send nothing."""
        return []

    def private_keys(self) -> list[str]:
        """All tensors."""
        return list(self.tensors())


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
