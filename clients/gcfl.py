"""Client side of GCFL and GCFL+: train, keep the private layers, send the update.

Xie et al. 2021, arXiv:2106.13423, Sec. 4.1, Eq. (6).
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from fedgraph_flwr.methods.gcfl import DELTA, GRAD_NORM, GCFLParams

from .base import Array, GraphClient, Metrics, to_arrays
from .tasks.graph_classifier import GraphClassifierClient
from .tasks.node_classifier import NodeClassifierClient
from .training import gradient_norm


class SendsUpdate(GraphClient):
    """Mixin: sends Delta = theta_trained - theta_received of the shared tensors."""

    UPLINK = DELTA

    def uplink(self, trained: dict[str, Tensor]) -> list[Array]:
        """See base class."""
        return to_arrays([trained[n] - self.received[n] for n in self.shared_keys])

    def extra_metrics(self) -> Metrics:
        """Norm of the last mini-batch's gradient, where GCFL+ is to compare that."""
        assert isinstance(self.job.params, GCFLParams)
        if self.job.params.seq_source != "last-grad-norm":
            return {}
        named = dict(self.model.named_parameters())
        return {GRAD_NORM: gradient_norm([named[n] for n in self.shared_keys])}


@final
class GCFLClient(SendsUpdate, GraphClassifierClient):
    """GCFL of clients that classify graphs."""


@final
class NodeGCFLClient(SendsUpdate, NodeClassifierClient):
    """GCFL of clients that classify nodes."""
