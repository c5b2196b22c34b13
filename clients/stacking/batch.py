"""Graphs of several clients as one batch with equally many rows for each client.

Rows beyond a client's own nodes are padding: no edge touches them and no graph of the
client holds them, so nothing that they hold reaches a loss or a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray

from ..graphs.batching import CollatedGraphs
from ..graphs.csr import csr, gather, repeated, row_pointer, send
from .padding import begins, padded


@dataclass(frozen=True, kw_only=True)
class StackedBatch:
    """A batch of each of C clients, with N rows for nodes and G for graphs.

    Parameters
    ----------
    x : tensor, shape (C, N, num_features) float32 or (C, N) int64
        As in :class:`~clients.graphs.batching.Batch`.
    adjacency : sparse CSR tensor, shape (C * N, C * N)
        Symmetric; a block for each client.
    membership : sparse CSR tensor, shape (C * G, C * N)
    graph_of_node : int64 tensor, shape (C * N,)
        Row of ``membership``; padded nodes have a graph that is padding too.
    y : int64 tensor, shape (C * G,)
    weight : float32 tensor, shape (C * G,)
        1 / number of the client's graphs, or 0 for padding.
    num_nodes, num_graphs : int64 arrays, shape (C,)
        Of each client, without padding; on the host.
    """

    x: Tensor
    adjacency: Tensor
    membership: Tensor
    graph_of_node: Tensor
    y: Tensor
    weight: Tensor
    num_nodes: IntArray
    num_graphs: IntArray


class JoinedGraphs:
    """Flat tensors of the graphs of several clients, ready to be cut into batches.

    Parameters
    ----------
    members : sequence of CollatedGraphs
        One for each client; features of one width and form.
    """

    def __init__(self, members: Sequence[CollatedGraphs]) -> None:
        self.device = members[0].device
        self.x = torch.cat([m.x for m in members])
        self.edge_index = torch.cat([m.edge_index for m in members], 1)
        self.degree = torch.cat([m.degree for m in members])
        self.y = torch.cat([m.y for m in members])
        pointers = [m.pointers for m in members]
        self._node_ptr = _joined([nodes for nodes, _ in pointers])
        self._edge_ptr = _joined([edges for _, edges in pointers])
        sizes = np.array([len(nodes) - 1 for nodes, _ in pointers])
        self._first = begins(sizes)  # graph of a client

    def batch(self, positions: Sequence[IntArray]) -> StackedBatch:
        """Join the graphs at each client's ``positions``, in that order."""
        device, count = self.device, len(positions)
        every = np.concatenate(
            [p + first for p, first in zip(positions, self._first, strict=True)]
        )
        num_graphs = np.array([len(p) for p in positions])
        owner = np.repeat(np.arange(count), num_graphs)
        nodes, node_ptr, node_sizes = gather(self._node_ptr, every, device)
        edges, _, edge_sizes = gather(self._edge_ptr, every, device)
        ends = node_ptr[np.cumsum(num_graphs)]
        num_nodes = np.diff(ends, prepend=0)
        width = int(num_nodes.max())
        # One graph more than there are, for nodes that are padding.
        height = int(num_graphs.max()) + 1
        # What is added to a node's number to leave room for padding.
        shift = np.arange(count) * width - (ends - num_nodes)
        graph_rows = padded(num_graphs, height)
        rows = repeated(shift, num_nodes, len(nodes), device)
        rows += torch.arange(len(nodes), device=device)
        first = node_ptr[:-1] + shift[owner]
        offsets = repeated(first, edge_sizes, len(edges), device)
        x = self.x.new_zeros(count * width, *self.x.shape[1:])
        x[rows] = self.x[nodes]
        degree = self.degree.new_zeros(count * width)
        degree[rows] = self.degree[nodes]
        padding = np.repeat(np.arange(count) * height + height - 1, width)
        graph_of_node = send(padding, device)
        graph_of_node[rows] = repeated(graph_rows, node_sizes, len(nodes), device)
        members = np.zeros(count * height, np.int64)
        members[graph_rows] = node_sizes
        of_graph = send(graph_rows, device)
        y = self.y.new_zeros(count * height)
        y[of_graph] = self.y[send(every, device)]
        weight = np.zeros(count * height)
        weight[graph_rows] = np.repeat(1 / num_graphs, num_graphs)
        return StackedBatch(
            x=x.view(count, width, *self.x.shape[1:]),
            adjacency=csr(
                row_pointer(degree), self.edge_index[1, edges] + offsets, count * width
            ),
            membership=csr(row_pointer(send(members, device)), rows, count * width),
            graph_of_node=graph_of_node,
            y=y,
            weight=torch.from_numpy(weight).to(device, torch.get_default_dtype()),
            num_nodes=num_nodes,
            num_graphs=num_graphs,
        )


def _joined(pointers: list[IntArray]) -> IntArray:
    """Join pointers into flat tensors that stand one behind the other."""
    ends = np.cumsum([p[-1] for p in pointers])
    parts = [p[1:] + (end - p[-1]) for p, end in zip(pointers, ends, strict=True)]
    return np.concatenate([[0], *parts])
