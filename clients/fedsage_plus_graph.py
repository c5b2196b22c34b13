"""A graph with further nodes, each joined to one node of the graph (FedSage+)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from .graphs.ops import sum_neighbours
from .graphs.whole_graph import NodeStructure


@final
class MendedGraph(NodeStructure):
    """A client's graph with generated neighbours, in both directions.

    Rows are the graph's nodes, then the generated ones, which are in no split.

    Parameters
    ----------
    adjacency : sparse CSR tensor, shape (num_nodes, num_nodes)
        Symmetric, entries 1.
    x : tensor, shape (num_nodes, num_features)
    generated : tensor, shape (num_new, num_features)
    owner : int64 tensor, shape (num_new,)
        Node on which each generated one hangs.
    """

    def __init__(
        self, adjacency: Tensor, x: Tensor, generated: Tensor, owner: Tensor
    ) -> None:
        self.x = torch.cat([x, generated])
        self.num_nodes, self.owner = len(x), owner
        self._adjacency = adjacency
        degree = adjacency.crow_indices().diff().to(x.dtype)
        extra = torch.bincount(owner, minlength=len(x)).to(x.dtype)
        hanging = torch.ones(len(owner), dtype=x.dtype, device=x.device)
        self._degree = torch.cat([degree + extra, hanging])[:, None]

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over neighbours, (num_nodes + num_new, d) -> the same."""
        known, new = x[: self.num_nodes], x[self.num_nodes :]
        summed = sum_neighbours(known, self._adjacency)
        return torch.cat([summed.index_add(0, self.owner, new), known[self.owner]])

    @override
    def propagate(self, x: Tensor) -> Tensor:
        root = (self._degree + 1).rsqrt()
        scaled = root * x
        return root * (self._sum(scaled) + scaled)

    @override
    def mean(self, x: Tensor) -> Tensor:
        return self._sum(x) / self._degree.clamp(min=1)
