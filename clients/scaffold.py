"""Client side of SCAFFOLD: gradients are corrected by controls, the own one renewed.

Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel, join, select, with_prefix
from fedgraph_flwr.methods.scaffold import CONTROL, ScaffoldParams

from .base import GraphClient
from .training import to_arrays


class Controlled(GraphClient[ScaffoldParams]):
    """Mixin: each step's gradient is g + c - c_i, on tensors that travel.

    A tensor without a gradient, as a statistic of batches, has a control of 0.

    Differs: option I takes the gradient once, over all training items as one batch
    after the other, with dropout as in training, from a stream of its own.
    """

    @override
    def train(self, num_epochs: int | None = None) -> Parcel:
        named, device = self.tensors(), self.job.device
        came = select(CONTROL, self.round.extras)
        self._common = {n: torch.tensor(a, device=device) for n, a in came.items()}
        zeros = {n: torch.zeros_like(c) for n, c in self._common.items()}
        stored = select(CONTROL, self.round.stored)
        self._own = {n: stored.get(n, z).to(device) for n, z in zeros.items()}
        self._renewed, self._num_steps = dict(self._own), 0
        if self.params.control == "gradient" and len(self.trained_on()):
            self._renewed = zeros | self._gradient()
        loss = super().train(num_epochs)
        if self.params.control == "difference" and self._num_steps:
            scale = 1 / (self._num_steps * self.job.settings.learning_rate)
            self._renewed = {
                n: c - self._common[n] + scale * (self.round.received[n] - named[n])
                for n, c in self._own.items()
            }
        self._renewed = {n: c.detach() for n, c in self._renewed.items()}
        return loss

    def _gradient(self) -> dict[str, Tensor]:
        """Gradient of the mean loss of all training items at the model as it is."""
        self.model.eval()
        self.model.zero_grad(set_to_none=True)
        drawn = self._stream("control", self.job.device)
        for batch, share in self.whole_epoch():
            (self.loss(batch, drawn) * share).backward()  # type: ignore[no-untyped-call]
        grads = {n: self.tensors()[n].grad for n in self._own}
        return {n: g.clone() for n, g in grads.items() if g is not None}

    @override
    def steer(self) -> None:
        self._num_steps += 1
        named = self.tensors()
        for name, own in self._own.items():
            if (grad := named[name].grad) is not None:
                grad += self._common[name] - own

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        moved = {n: c - self._own[n] for n, c in self._renewed.items()}
        beside = with_prefix(CONTROL, to_arrays(moved))
        return join(super().update(trained), Parcel(arrays=beside))

    @override
    def extra_state(self) -> dict[str, Tensor]:
        return with_prefix(CONTROL, self._renewed)
