"""Parts of a client that methods of several papers have in common."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel

from .base import GraphClient
from .graphs.batching import Batch
from .job import Job, P
from .losses import model_contrast, pull

_PREVIOUS = "previous/"


class SelfTrain(GraphClient[P]):
    """Mixin: everything is private after the common start; nothing is sent."""

    SENDS_UPDATES = False

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        return Parcel()

    @override
    def private_keys(self) -> list[str]:
        return list(self.tensors())


class Pulled(GraphClient[P]):
    """Mixin: a pull towards the tensors that were received in this round."""

    @override
    def penalty(self) -> Tensor:
        """Weight ||w - w_received||^2 over the shared tensors."""
        return pull(self.tensors(), self.round.received, self.pull_weight())

    @abstractmethod
    def pull_weight(self) -> float:
        """Weight of the pull, >= 0."""


class RemembersModel(GraphClient[P]):
    """Mixin: may keep its own model of the round before, to contrast with it."""

    def as_previous(self) -> dict[str, Tensor]:
        """Shared tensors as they are now, to be kept; private ones are kept anyway."""
        return {_PREVIOUS + n: t for n, t in self._detached(self.shared_keys).items()}

    def previous_model(self) -> Any:
        """Copy of the model as it was after the client's previous round.

        Before its first round: of the received model.
        """
        model = copy.deepcopy(self.model)
        named = model.state_dict()
        for name, tensor in self.round.stored.items():
            if name.startswith(_PREVIOUS):
                named[name.removeprefix(_PREVIOUS)].copy_(tensor)
        return model


class ModelContrast(RemembersModel[P]):
    """Mixin: MOON's term over whatever represents a graph.

    Neither of the two models changes within a round, so all graphs are represented
    by them once, in :meth:`freeze`. The client keeps ``as_previous`` as extra state.
    """

    def __init__(self, job: Job[P]) -> None:
        super().__init__(job)
        self.by_received = self.by_previous = torch.empty(0)

    @abstractmethod
    def represent(self, model: Any, batch: Batch) -> Tensor:
        """Representations of the batch's graphs by ``model``, shape (num_graphs, d).

        One by one: a graph's must not depend on its batch, nor on chance.
        """

    @torch.no_grad()
    def freeze(self) -> None:
        """Represent all graphs by the received model and by the own previous one."""
        self.by_received, self.by_previous = (
            torch.cat([self.represent(m, b) for b in self.data.batches()])
            for m in (self.model, self.previous_model())
        )

    def contrast(self, ours: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Mean over graphs of the term (Eq. 3), given the model's representations."""
        at = batch.index
        return model_contrast(
            ours, self.by_received[at], self.by_previous[at], temperature
        ).mean()
