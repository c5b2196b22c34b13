"""A small graph for node classification, stored as its full matrix."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from .whole_graph import NodeStructure


@final
class DenseGraph(NodeStructure):
    """A small graph as a full matrix, through which gradients reach the edges.

    Parameters
    ----------
    adjacency : tensor, shape (num_nodes, num_nodes)
        Symmetric, with an empty diagonal.
    """

    def __init__(self, adjacency: Tensor) -> None:
        self.adjacency = adjacency
        loops = adjacency + torch.eye(
            len(adjacency), dtype=adjacency.dtype, device=adjacency.device
        )
        root = loops.sum(1).rsqrt()  # degrees are >= 1
        self._normalized = root[:, None] * loops * root  # (num_nodes, num_nodes)

    @override
    def propagate(self, x: Tensor) -> Tensor:
        return self._normalized @ x

    @override
    def mean(self, x: Tensor) -> Tensor:
        degree = self.adjacency.sum(1, keepdim=True)
        return self.adjacency @ x / degree.clamp(min=1)
