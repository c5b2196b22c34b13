"""Client side of FedGKD's control: the same local training, and nothing distilled."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .classic import Header
from .losses import pull
from .mixins import Pulled

_OWN = "own/"  # in the state: the model as it was sent


class SelfWeighted(Pulled[SelfWeightParams]):
    """Mixin: sends its trained model and nothing else.

    With secure aggregation the server has the mean alone, and the client mixes it with
    the model that it sent last.

    Pan et al. 2023, Algorithm 1.
    """

    @override
    def load(self, parcel: Parcel, header: Header) -> None:
        super().load(parcel, header)
        self.start = dict(self.round.received)
        with torch.no_grad():
            for name, mean in self.round.received.items():
                own = self.round.stored.get(_OWN + name)
                if own is not None and mean.is_floating_point():
                    mixed = torch.lerp(mean.double(), own.double(), self.params.a)
                    self.start[name] = mixed.to(mean.dtype)
                    self.tensors()[name].copy_(self.start[name])

    @override
    def penalty(self) -> Tensor:
        return pull(self.tensors(), self.start, self.pull_weight())

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        self.own = {_OWN + n: t for n, t in trained.items()}
        return super().update(trained)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        return self.own if self.job.is_summed else {}

    @override
    def pull_weight(self) -> float:
        """Lambda."""
        return self.params.proximal_lambda
