"""Client side of FedProto: a pull of embeddings to prototypes, and prototypes made.

Tan et al. 2022, arXiv:2105.00243, Eq. (3) and (7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedproto import COUNTS, PROTOTYPES, FedProtoParams

from .mixins import SelfTrain
from .training import to_arrays


class Prototypical(SelfTrain[FedProtoParams]):
    """Mixin: embeddings, which are the input of the last layer, go to prototypes.

    Differs: the distance is squared, a mean over its d numbers.
    """

    model: Any

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Loss of the task + lambda sum_c mean_(y = c) ||h - P_c||^2 / d."""
        task_loss = super().loss  # type: ignore[safe-super]
        h, plain = self._embed(lambda: task_loss(batch, generator))
        if PROTOTYPES not in self.round.extras:
            return plain
        rows = getattr(batch, "train", slice(None))  # of a whole graph
        h, y = h[rows], batch.y[rows]
        goal = torch.tensor(self.round.extras[PROTOTYPES], device=h.device)
        share = goal.any(1)[y] / torch.bincount(y, minlength=len(goal))[y]
        far = (h - goal[y]).square().mean(1)
        return plain + self.params.proximal_lambda * (share * far).sum()

    def _embed(self, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Input of the last layer in a call of the model, and what the call returns."""
        seen: list[Tensor] = []
        hook = self.model.readout.register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        try:
            found = call()
        finally:
            hook.remove()
        return seen[0], found

    @override
    @torch.no_grad()
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        self.model.eval()
        classes, width = self.model.readout.weight.shape
        total = torch.zeros(classes, width, dtype=torch.double, device=self.job.device)
        counts = torch.zeros(classes, dtype=torch.double, device=self.job.device)
        for batch, _ in self.whole_epoch():
            h, _ = self._embed(lambda b=batch: self.model(b, None))  # type: ignore[misc]
            rows = getattr(batch, "train", slice(None))
            total.index_add_(0, batch.y[rows], h[rows].double())
            counts += torch.bincount(batch.y[rows], minlength=classes)
        counts *= counts >= self.params.min_count
        means = total / counts.clamp(min=1)[:, None] * (counts > 0)[:, None]
        made = {PROTOTYPES: means.float(), COUNTS: counts.float()}
        return Parcel(arrays=to_arrays(made))
