"""A client's one graph, with what its training and its scores see of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import GraphPartition

from .batching import ClientData, CollatedGraphs
from .csr import csr, row_pointer, send
from .ops import SparseRows
from .sampling import Neighbours
from .whole_graph import WholeGraph

_SPARSE_BELOW = 0.1  # share of entries that are not 0: then sparse products are faster


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
    def trained_on(self) -> WholeGraph:
        """Graph whose edges training sees."""
        return self.shown

    @cached_property
    def _neighbours(self) -> dict[str, Neighbours]:
        return {}

    def neighbours(self, direction: str) -> Neighbours:
        """Edges of that graph, ready to be drawn from."""
        if direction not in self._neighbours:
            self._neighbours[direction] = Neighbours(self.trained_on, direction)
        return self._neighbours[direction]

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
