"""Client side of FedGTA: FedAvg's training, then moments of propagated labels.

Li et al. 2023, arXiv:2401.11755; formulas of the authors' released code.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel, join
from fedgraph_flwr.methods.fedgta import (
    ALPHA,
    CONFIDENCE,
    MOMENTS,
    TEMPERATURE,
    FedGTAParams,
)

from .graphs.structure import propagate_labels
from .tasks.node_classifier import NodeClassifierClient
from .training import to_arrays

_TINY = 1e-8  # inside the logarithm


def label_moments(soft: Tensor, orders: int) -> Tensor:
    """Mean powers of each class's column, order by order, as one vector.

    Parameters
    ----------
    soft : float64 tensor, shape (num_nodes, num_classes)
    orders : int
        K; orders are 1..K.

    Returns
    -------
    float64 tensor, shape (2 * K * num_classes,)
        Raw moments, then central ones (of the distance from the mean).
    """
    bases = soft, soft - soft.mean(0)
    powers = [(b**p).mean(0) for b in bases for p in range(1, orders + 1)]
    return torch.cat(powers)


def smoothing_confidence(soft: Tensor, degree: Tensor) -> Tensor:
    """sum_v d_v sum_c (1/e + y ln y), never below 0.

    Parameters
    ----------
    soft : float64 tensor, shape (num_nodes, num_classes)
    degree : float64 tensor, shape (num_nodes,)
        Neighbours of each node, without itself.
    """
    per_node = (math.exp(-1) + soft * torch.log(soft + _TINY)).sum(1)
    total: Tensor = (degree * per_node).sum()
    return total.clamp(min=0)


@final
class FedGTAClient(NodeClassifierClient[FedGTAParams]):
    """Sends its trained model, moments of its labels, and how far it is to count."""

    TAKES_ENCODER = False

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        moments = label_moments(self.soft_labels(1.0), self.params.moment_orders)
        beside = {MOMENTS: moments.float(), CONFIDENCE: self._confidence()}
        return join(super().update(trained), Parcel(arrays=to_arrays(beside)))

    def _confidence(self) -> Tensor:
        degree = self.data.graphs.degree.double()
        soft = self.soft_labels(TEMPERATURE)
        return smoothing_confidence(soft, degree).float().reshape(1)

    @torch.no_grad()
    def soft_labels(self, temperature: float) -> Tensor:
        """Propagated labels, float64 (num_nodes, num_classes); rows sum to 1.

        Training nodes start from their label and end with it, the others start from
        what the model says. Labels of validation and test nodes are not read.
        """
        train = self.graph.train
        start = torch.softmax(self.logits(None), dim=1)
        known = one_hot(self.graph.y[train], start.shape[1])
        start[train] = known.to(start.dtype)
        spread = propagate_labels(
            self.graph, start, train, steps=self.params.steps, alpha=ALPHA
        )
        soft = torch.softmax(spread.double() / temperature, dim=1)
        soft[train] = known.double()
        return soft
