"""Client side of GCFL and GCFL+: train, keep the private layers, send the update.

Xie et al. 2021, arXiv:2106.13423, Sec. 4.1, Eq. (6).
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel, with_prefix
from fedgraph_flwr.methods.fedavg import DELTA
from fedgraph_flwr.methods.gcfl import GRAD_NORM, GCFLParams

from .base import GraphClient, Metrics
from .training import to_arrays


class SendsUpdate(GraphClient[GCFLParams]):
    """Mixin: sends Delta = theta_trained - theta_received of the shared tensors."""

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Send Delta, and the gradient's norm if GCFL+ compares those."""
        delta = {n: t - self.round.received[n] for n, t in trained.items()}
        arrays = with_prefix(DELTA, to_arrays(delta))
        return Parcel(arrays=arrays, metrics=self._gradient_norm())

    def _gradient_norm(self) -> Metrics:
        """Norm of the last mini-batch's gradient, if GCFL+ compares those."""
        if not self.params.sends_norms:
            return {}
        named = dict(self.model.named_parameters())
        grads = [named[n].grad for n in self.shared_keys]
        flat = [g.flatten().double() for g in grads if g is not None]
        if not flat:  # nothing was trained
            return {}
        return {GRAD_NORM: float(torch.linalg.vector_norm(torch.cat(flat)))}
