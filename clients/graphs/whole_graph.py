"""One graph as tensors, whole or dense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import GraphPartition

from .batching import ClientData, CollatedGraphs
from .csr import csr, row_pointer, send
from .ops import SparseRows, dense_rows, spread, sum_neighbours

_SPARSE_BELOW = 0.1  # share of entries that are not 0: then sparse products are faster


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


@dataclass(frozen=True, kw_only=True)
class NodeData(ClientData):
    """A partition with its graph, which ``whole`` holds; ``evaluation`` is empty."""

    whole: WholeGraph

    @override
    @classmethod
    def collate(cls, partition: GraphPartition, device: torch.device) -> Self:
        graphs = CollatedGraphs(partition.graphs, device)
        num_nodes = partition.graphs.num_nodes
        x, edges = graphs.x, partition.graphs.edge_index
        if x.dim() == 1:
            x = torch.nn.functional.one_hot(x, partition.graphs.num_features)
            x = x.to(torch.get_default_dtype())
        is_sparse = np.count_nonzero(partition.graphs.x) < _SPARSE_BELOW * x.numel()
        degree, targets = graphs.degree.to(x.dtype), graphs.edge_index[1]
        whole = WholeGraph(
            features=SparseRows.of(x) if is_sparse else x,
            y=graphs.y,
            adjacency=csr(row_pointer(graphs.degree), targets, num_nodes),
            normalized=_normalized(edges, num_nodes, device),
            inverse_degree=torch.where(degree > 0, 1 / degree, 0).unsqueeze(1),
            train=send(partition.train, device),
            val=send(partition.val, device),
            test=send(partition.test, device),
            edge_index=graphs.edge_index.long(),
            is_undirected=graphs.is_undirected,
            **graphs.of_edges,
            **{
                name: send(array, device)
                for name in ("pairs", "item_edge")
                if (array := getattr(partition.graphs, name)) is not None
            },
        )
        return cls(
            partition=partition,
            graphs=graphs,
            evaluation=(),
            num_val=len(partition.val),
            whole=whole,
        )

    @cached_property
    def shown(self) -> WholeGraph:
        """Graph to train on: without later edges, if nodes have a time.

        Those are edges that came about after the newest training node. An edge without
        a time came about with the newer of its nodes.
        """
        graphs, train = self.partition.graphs, self.partition.train
        if graphs.time is None or graphs.pairs is not None or not len(train):
            return self.whole
        times = graphs.edge_time
        if times is None:
            times = np.fmax(*graphs.time[graphs.edge_index])
        kept = np.flatnonzero(~(times > graphs.time[train].max()))
        earlier = replace(self.partition, graphs=graphs.take_edges(kept))
        return self.collate(earlier, self.whole.y.device).whole

    @property
    def held_out(self) -> Tensor:
        """The validation nodes, then the test nodes."""
        return torch.cat([self.whole.val, self.whole.test])


def _normalized(
    edges: NDArray[np.integer], num_nodes: int, device: torch.device
) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 from edges sorted by source, then target."""
    loops = np.arange(num_nodes)
    source = np.concatenate([edges[0], loops]).astype(np.int64)
    target = np.concatenate([edges[1], loops]).astype(np.int64)
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    degree = np.bincount(source, minlength=num_nodes)
    root = degree**-0.5  # in double precision
    weight = torch.from_numpy(root[source] * root[target]).to(torch.get_default_dtype())
    ptr, columns = row_pointer(send(degree, device)), send(target, device)
    return csr(ptr, columns, num_nodes, weight.to(device))


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
