"""Client side of FedAvg's relatives: FedProx, self-train, all data in one place.

FedAvg itself (McMahan et al. 2017, Algorithm 1) is the client of a task as it is. What
FedProx and self-train add to it is the same for every task: mixins, which
the registry joins with the tasks' clients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedavg import FedProxParams, LocalParams

from .base import GraphClient
from .job import P
from .mixins import Pulled, SelfTrain

_EPOCHS = "self-train/epochs"


class Proximal(Pulled[FedProxParams]):
    """Mixin: FedProx's pull towards the received tensors (Li et al. 2020, Eq. 2).

    Differs from the GCFL authors' ``client.py:train_gc_prox``, whose reference point in
    round 1 is the client's own start: here it is always what was received in this
    round.
    """

    @override
    def pull_weight(self) -> float:
        """Mu / 2."""
        return self.params.mu / 2


class LimitedSelfTrain(SelfTrain[LocalParams]):
    """Mixin: self-train as long as a federated run or for ``local.epochs``."""

    PER_GRAPH = True

    @override
    def train(self, num_epochs: int | None = None) -> Parcel:
        """Train for what is left of ``local.epochs``, at most ``local-epochs``."""
        return super().train(self._num_due() if self.params.epochs else None)

    def _num_due(self) -> int:
        per_round = self.job.settings.local_epochs
        return min(per_round, self.params.epochs - self._num_done())

    def _num_done(self) -> int:
        """Epochs of the rounds that this client has done, which may not be all."""
        return int(self.round.stored.get(_EPOCHS, 0))

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """Count epochs, if they are limited."""
        kept = super().extra_state()
        if not self.params.epochs:
            return kept
        return {**kept, _EPOCHS: torch.tensor(self._num_done() + self._num_due())}


class TrainsOnAll(GraphClient[P]):
    """Mixin: the first client trains on the training items of all; others only measure.

    Scores are of a client's own items all the same.
    """

    @property
    def _trains(self) -> bool:
        return self.job.client_id == self.job.settings.first_trainer

    @override
    def train(self, num_epochs: int | None = None) -> Parcel:
        if not self._trains:
            return Parcel()
        own = self.data
        assert self.job.pooled is not None  # sites refuse the method
        self.data = self.job.pooled()
        try:
            return super().train(num_epochs)
        finally:
            self.data = own

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        return super().update(trained) if self._trains else Parcel()
