"""One graph as tensors, whole or dense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor
from typing_extensions import override

from .ops import SparseRows, dense_rows, spread, sum_neighbours


class ItemEdges(NamedTuple):
    """What edges that are items have, as ``Batch`` has it."""

    edge_attr: Tensor | None
    edge_weight: Tensor | None

    def rows(self, at: Tensor | slice) -> ItemEdges:
        """Of some of them."""
        return ItemEdges(*(None if array is None else array[at] for array in self))


class NodeStructure(ABC):
    """Along which edges features of the nodes of one graph spread.

    Both maps are linear and take (num_nodes, d) to the same shape.
    """

    @abstractmethod
    def propagate(self, x: Tensor) -> Tensor:
        """D^-1/2 (A + I) D^-1/2 x, D being the degrees of A + I."""

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:
        """Mean over a node's neighbours, without itself; 0 if it has none."""

    def inner(self) -> NodeStructure:
        """Return what the next layer reads: this, but in a sample."""
        return self

    def rows(self, x: Tensor) -> Tensor:
        """Rows of the last layer's output that are of nodes here."""
        return x


@dataclass(frozen=True, kw_only=True)
class WholeGraph(NodeStructure):
    """The graph of a client, which is its only batch.

    Parameters
    ----------
    features : float32 tensor or SparseRows, shape (num_nodes, num_features)
    y : int64 tensor, shape (num_nodes,)
        Where edges are learned, as ``GraphSet`` has it.
    adjacency : sparse CSR tensor, shape (num_nodes, num_nodes)
        A; symmetric.
    normalized : sparse CSR tensor, shape (num_nodes, num_nodes)
        D^-1/2 (A + I) D^-1/2; symmetric.
    inverse_degree : float32 tensor, shape (num_nodes, 1)
        1 / degree, 0 for isolated nodes.
    train, val, test : int64 tensors
        Nodes of each split.
    edge_index : int64 tensor, shape (2, num_edges)
        As ``Batch`` has it.
    edge_attr, edge_weight : tensor, optional
        As ``Batch`` has them.
    pairs, item_edge : int64 tensor, optional
        Where edges are learned, as ``GraphSet`` has them.
    is_undirected : bool
        Every edge is there in both directions.
    """

    features: Tensor | SparseRows
    y: Tensor
    adjacency: Tensor
    normalized: Tensor
    inverse_degree: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None = None
    edge_weight: Tensor | None = None
    pairs: Tensor | None = None
    item_edge: Tensor | None = None
    is_undirected: bool = True

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.adjacency.shape[0]

    @property
    def items(self) -> ItemEdges:
        """Of the items, where edges are learned."""
        assert self.item_edge is not None
        return ItemEdges(self.edge_attr, self.edge_weight).rows(self.item_edge)

    @cached_property
    def x(self) -> Tensor:
        """Features as a dense matrix, for layers of PyTorch Geometric."""
        return dense_rows(self.features)

    @override
    def propagate(self, x: Tensor) -> Tensor:
        return spread(x, self.normalized)

    @override
    def mean(self, x: Tensor) -> Tensor:
        return sum_neighbours(x, self.adjacency) * self.inverse_degree


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
