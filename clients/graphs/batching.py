"""A client's graphs, collated once, and mini-batches cut from them by slicing.

PyG's ``DataLoader`` collates Python objects graph by graph in every epoch. Here the
graphs of a client lie in flat tensors on the device, and a batch is a handful of
vectorised gathers whose result equals the loader's, batch for batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray, WeightedEdges

from .csr import CollatedDiffusion, csr, gather, repeated, row_pointer, send

_MOST_NODES = 200_000  # of a batch that is evaluated


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Graphs joined into one, as in PyG.

    Parameters
    ----------
    x : tensor, shape (num_nodes, num_features) float32 or (num_nodes,) int64
        Node features; integers name the column of a one-hot row.
    edge_index : int64 tensor, shape (2, num_edges)
        Sorted by source, then target.
    adjacency : sparse CSR tensor, shape (num_nodes, num_nodes)
        Entry (source, target) of each edge is 1. For undirected graphs it is its own
        transpose, and ``adjacency @ x`` sums over neighbours.
    membership : sparse CSR tensor, shape (num_graphs, num_nodes)
        Entry (graph, node) is 1: ``membership @ x`` is sum pooling.
    graph_of_node : int64 tensor, shape (num_nodes,)
    y : int64 tensor (num_graphs,), or float32 tensor (num_graphs, num_tasks)
        Classes, or labels for tasks as models learn them, NaN where missing.
    positions : int64 array, shape (num_graphs,)
        Which of the client's graphs these are; on the host.
    index : int64 tensor, shape (num_graphs,)
        The same on the device.
    edge_attr : tensor, optional
        Edge features: (num_edges, num_edge_features) float32, or (num_edges,) int64
        that name the column of a one-hot row.
    edge_weight : float32 tensor, shape (num_edges,), optional
    graph_x : float32 tensor, shape (num_graphs, num_graph_features), optional
        Features of whole graphs.
    is_undirected : bool
        Every edge is there in both directions.
    """

    x: Tensor
    edge_index: Tensor
    adjacency: Tensor
    membership: Tensor
    graph_of_node: Tensor
    y: Tensor
    positions: IntArray
    index: Tensor
    edge_attr: Tensor | None = None
    edge_weight: Tensor | None = None
    graph_x: Tensor | None = None
    is_undirected: bool = True

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.y)


class SingleBatch(Batch):
    """Batch of one graph: slices of the client's tensors; other fields on demand.

    Cutting a batch takes longer than training on one molecule.
    """

    def __init__(
        self,
        *,
        x: Tensor,
        edge_index: Tensor,
        degree: Tensor,
        y: Tensor,
        position: int,
        is_undirected: bool,
        **more: Tensor,
    ) -> None:
        given = {"x": x, "edge_index": edge_index, "_degree": degree, "y": y, **more}
        # the class is frozen
        vars(self).update(
            given, positions=np.array([position]), is_undirected=is_undirected
        )

    _degree: Tensor

    @override
    @cached_property
    def adjacency(self) -> Tensor:
        return csr(row_pointer(self._degree), self.edge_index[1], len(self._degree))

    @override
    @cached_property
    def membership(self) -> Tensor:
        n, device = len(self._degree), self.y.device
        ptr = torch.tensor([0, n], device=device)
        return csr(ptr, torch.arange(n, device=device), n)

    @override
    @cached_property
    def graph_of_node(self) -> Tensor:
        return torch.zeros_like(self._degree)

    @override
    @cached_property
    def index(self) -> Tensor:
        return torch.tensor([self.positions[0]], device=self.y.device)


class CollatedGraphs:
    """Flat tensors of many graphs on one device, ready to be cut.

    Sizes are kept on the host too, so that cutting a batch never waits for the
    device: the length of every result is known beforehand.
    """

    def __init__(self, graphs: GraphSet, device: torch.device) -> None:
        self.device, self.is_undirected = device, graphs.is_undirected
        self._node_ptr = graphs.node_ptr
        self._edge_ptr = graphs.edge_ptr
        x = torch.from_numpy(np.ascontiguousarray(graphs.x))
        self.x = (x.long() if x.dim() == 1 else x.float()).to(device)
        # Those of the data set themselves, if they are not on the disk: int32 takes
        # half the memory, and batches have int64.
        edges = np.require(graphs.edge_index, np.int32, ["C", "W", "E"])
        self.edge_index = torch.from_numpy(edges).to(device)
        self.degree = torch.from_numpy(graphs.degrees()).to(device)
        self.y = torch.from_numpy(np.ascontiguousarray(graphs.y)).to(device)
        self.of_edges = self._sent(
            edge_attr=graphs.edge_attr, edge_weight=graphs.edge_weight
        )
        self._of_graphs = self._sent(graph_x=graphs.graph_x)

    def _sent(self, **arrays: NDArray[Any] | None) -> dict[str, Tensor]:
        """Tensors of the arrays that are there; integers as int64."""
        there = {n: np.array(a) for n, a in arrays.items() if a is not None}
        made = {n: torch.from_numpy(a).to(self.device) for n, a in there.items()}
        return {n: t if t.is_floating_point() else t.long() for n, t in made.items()}

    def node_rows(self, positions: IntArray) -> Tensor:
        """Rows, among all nodes, of the nodes of the graphs at ``positions``."""
        return gather(self._node_ptr, positions, self.device)[0]

    def batch(self, positions: IntArray) -> Batch:
        """Join the graphs at ``positions``, in that order."""
        if len(positions) == 1:
            return self._single(int(positions[0]))
        device = self.device
        nodes, node_ptr, node_sizes = gather(self._node_ptr, positions, device)
        edges, _, edge_sizes = gather(self._edge_ptr, positions, device)
        num_nodes = len(nodes)
        index = send(positions, device)
        ids = torch.arange(len(positions), device=device)
        shift = repeated(node_ptr[:-1], edge_sizes, len(edges), device)
        edge_index = self.edge_index[:, edges] + shift
        return Batch(
            x=self.x[nodes],
            edge_index=edge_index,
            adjacency=csr(row_pointer(self.degree[nodes]), edge_index[1], num_nodes),
            membership=csr(
                send(node_ptr, device),
                torch.arange(num_nodes, device=device),
                num_nodes,
            ),
            graph_of_node=torch.repeat_interleave(
                ids, send(node_sizes, device), output_size=num_nodes
            ),
            y=self.y[index],
            positions=positions,
            index=index,
            is_undirected=self.is_undirected,
            **{name: rows[edges] for name, rows in self.of_edges.items()},
            **{name: rows[index] for name, rows in self._of_graphs.items()},
        )

    def _single(self, position: int) -> SingleBatch:
        nodes = slice(*self._node_ptr[position : position + 2].tolist())
        edges = slice(*self._edge_ptr[position : position + 2].tolist())
        return SingleBatch(
            x=self.x[nodes],
            edge_index=self.edge_index[:, edges].long(),
            degree=self.degree[nodes],
            y=self.y[position : position + 1],
            position=position,
            is_undirected=self.is_undirected,
            **{name: rows[edges] for name, rows in self.of_edges.items()},
            **{n: rows[position : position + 1] for n, rows in self._of_graphs.items()},
        )

    def batches(
        self, positions: IntArray, *, max_nodes: int = _MOST_NODES
    ) -> Iterator[Batch]:
        """Join the graphs at ``positions``, in batches of about ``max_nodes`` nodes."""
        sizes = np.diff(self._node_ptr)[positions]
        part = np.cumsum(sizes) // max_nodes
        for number in np.unique(part):
            yield self.batch(positions[part == number])


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """A partition together with its collated graphs and ready evaluation batches.

    ``view`` holds the graphs' weighted second view, for methods that have one.
    """

    partition: GraphPartition
    graphs: CollatedGraphs
    evaluation: tuple[Batch, ...]
    num_val: int
    view: CollatedDiffusion | None = None

    @classmethod
    def collate(cls, partition: GraphPartition, device: torch.device) -> Self:
        """Collate; validation then test graphs form batches to evaluate."""
        learned = replace(partition.graphs, y=partition.targets())
        graphs = CollatedGraphs(learned, device)
        evaluation = tuple(graphs.batches(partition.held_out))
        num_val = len(partition.val)
        return cls(
            partition=partition, graphs=graphs, evaluation=evaluation, num_val=num_val
        )

    def with_view(self, edges: WeightedEdges) -> Self:
        """Add the second view of the graphs."""
        ptr, device = self.partition.graphs.node_ptr, self.graphs.device
        return replace(self, view=CollatedDiffusion(edges, ptr, device))

    def batches(self, *, max_nodes: int = _MOST_NODES) -> Iterator[Batch]:
        """All graphs in order, in batches of about ``max_nodes`` nodes."""
        everyone = np.arange(len(self.partition.graphs))
        return self.graphs.batches(everyone, max_nodes=max_nodes)
