"""Noisy views of a client's graphs as padded dense matrices, bucketed by size.

A noisy graph has every edge, so dense products beat edge lists (our spec, Sec. 7.1;
``python -m simulations.speed_dense`` measures). Matrices are built batch by batch from
the views' compact triangles, and nothing here ever sees the original edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import GraphSet, IntArray
from fedgraph_flwr.errors import DataError

from .batching import csr, gather, send
from .privacy.laplace import SIGNED_POSTS, Triangles, num_pairs
from .propagation import Bucket, DenseStructure

MAX_NODES = 4000  # of one graph: a matrix of 64 MB; a GCN pass took 440 MB
MAX_PAIRS = 2**28  # of one view of all graphs of a client: 1 GiB
MAX_CELLS = 2**27  # of all matrices of a batch: 512 MiB
_GROWTH, _SMALL = 1.5, 16
_TOGETHER = 128  # nodes; graphs up to this size are cut out together


class Nodes(Protocol):
    """Nodes of the graphs of a batch, without any edges; a ``Batch`` is one."""

    @property
    def x(self) -> Tensor:
        """Features, (num_nodes, num_features) or one-hot columns (num_nodes,)."""
        ...

    @property
    def membership(self) -> Tensor:
        """Sparse CSR, (num_graphs, num_nodes); see ``Batch``."""
        ...

    @property
    def graph_of_node(self) -> Tensor:
        """Int64, (num_nodes,)."""
        ...


@dataclass(frozen=True)
class NodeBatch:
    """Nodes of the graphs at ``positions``, in that order; see :class:`Nodes`."""

    x: Tensor
    membership: Tensor
    graph_of_node: Tensor
    positions: IntArray


class NodeRows:
    """Node features of a client's graphs on the device; edges are not even copied.

    Parameters
    ----------
    graphs : GraphSet
    device : torch.device
    """

    def __init__(self, graphs: GraphSet, device: torch.device) -> None:
        self.device = device
        self._node_ptr = graphs.node_ptr
        x = torch.from_numpy(np.ascontiguousarray(graphs.x))
        self._x = (x.long() if x.dim() == 1 else x.float()).to(device)

    def batch(self, positions: IntArray) -> NodeBatch:
        """Join the nodes of the graphs at ``positions``, repeats allowed."""
        rows, ptr, sizes = gather(self._node_ptr, positions, self.device)
        ids = torch.arange(len(positions), device=self.device)
        columns = torch.arange(len(rows), device=self.device)
        return NodeBatch(
            x=self._x[rows],
            membership=csr(send(ptr, self.device), columns, len(rows)),
            graph_of_node=torch.repeat_interleave(
                ids, send(sizes, self.device), output_size=len(rows)
            ),
            positions=positions,
        )


class DenseView:
    """One view of a client's graphs on the device, ready to be cut into batches.

    Parameters
    ----------
    triangles : Triangles
        After post-processing.
    device : torch.device
    post : str
        How they were post-processed; decides how degrees are counted.

    Raises
    ------
    DataError
        A graph, or all of them, are too large for dense matrices.
    """

    def __init__(
        self, triangles: Triangles, device: torch.device, *, post: str = "clamp01"
    ) -> None:
        check_sizes(triangles.num_nodes, triangles.positions)
        self._device, self._post = device, post
        self._values = torch.from_numpy(np.ascontiguousarray(triangles.values)).to(
            device
        )
        self._ptr, self._num_nodes = triangles.ptr, triangles.num_nodes
        positions = triangles.positions
        self._row = np.full(int(positions.max(initial=-1)) + 1, -1, np.int64)
        self._row[positions] = np.arange(len(positions))

    def batch(self, positions: IntArray) -> DenseStructure:
        """Structure of the graphs at ``positions`` of the client, in that order.

        Raises
        ------
        DataError
            The view lacks a graph, or the batch is too large.
        """
        inside = (positions >= 0) & (positions < len(self._row))
        rows = np.where(inside, self._row[np.where(inside, positions, 0)], -1)
        if (rows < 0).any():
            raise DataError(
                f"the noisy view has no graph {positions[rows < 0][0]}; it was drawn"
                f" for {int((self._row >= 0).sum())} graphs: draw one for this too"
            )
        return self.rows(rows)

    def rows(self, rows: IntArray) -> DenseStructure:
        """Structure of the view's own graphs number ``rows``, repeats allowed."""
        sizes = self._num_nodes[rows]
        node_ptr = np.concatenate([[0], np.cumsum(sizes)])
        groups = list(buckets(sizes))
        cells = sum(len(g) * int(sizes[g].max()) ** 2 for g in groups)
        if cells > MAX_CELLS:
            raise DataError(
                f"a batch of {len(rows)} graphs of up to {sizes.max()} nodes needs"
                f" dense matrices of {4 * cells / 2**20:.0f} MiB, allowed are"
                f" {4 * MAX_CELLS / 2**20:.0f}; lower batch-size"
            )
        return DenseStructure(
            [self._bucket(g, rows, sizes, node_ptr) for g in groups],
            int(node_ptr[-1]),
            use_absolute_degree=self._post in SIGNED_POSTS,
            is_non_negative=self._post in ("clamp01", "round", "relu"),
        )

    def _bucket(
        self, group: IntArray, rows: IntArray, sizes: IntArray, node_ptr: IntArray
    ) -> Bucket:
        device, size, b = self._device, int(sizes[group].max()), len(group)
        nodes, _, counts = gather(node_ptr, group, device)
        start = np.concatenate([[0], np.cumsum(counts)[:-1]])
        shift = np.repeat(np.arange(b) * size - start, counts)
        slots = send(shift, device) + torch.arange(len(nodes), device=device)
        weight = torch.zeros(b, size, size, device=device)
        if size <= _TOGETHER:
            self._fill(weight, rows[group], sizes[group])
        else:  # one by one: places take several times the memory of the weights
            for k in range(b):
                self._fill(
                    weight[k : k + 1], rows[group[k : k + 1]], sizes[group[k : k + 1]]
                )
        return Bucket(nodes=nodes, slots=slots, weight=weight)

    def _fill(self, weight: Tensor, rows: IntArray, sizes: IntArray) -> None:
        """Write the triangles of graphs of ``sizes`` nodes into padded matrices."""
        if not len(self._values):
            return
        size = weight.shape[1]
        u, v = torch.triu_indices(size, size, 1, device=self._device)
        n = send(sizes, self._device)[:, None]
        # As laplace.pair_index, plus where each triangle starts; (num_graphs, pairs).
        place = u * n - u * (u + 1) // 2 + v - u - 1
        place += send(self._ptr[rows], self._device)[:, None]
        exists = v < n
        found = torch.where(exists, self._values[place.masked_fill_(~exists, 0)], 0.0)
        weight[:, u, v] = found
        weight[:, v, u] = found


def buckets(sizes: IntArray) -> Iterator[IntArray]:
    """Group graphs by size: at most 1.5 times the smallest of a group, or 16 nodes.

    Yields places in ``sizes``, smallest graphs first.
    """
    order = np.argsort(sizes, kind="stable")
    start = 0
    while start < len(order):
        most = max(_SMALL, _GROWTH * int(sizes[order[start]]))
        stop = int(np.searchsorted(sizes[order], most, side="right"))
        yield order[start:stop]
        start = stop


def check_sizes(num_nodes: IntArray, positions: IntArray) -> None:
    """Raise DataError if views of these graphs would not fit; call before a draw.

    Parameters
    ----------
    num_nodes, positions : int64 arrays, shape (num_graphs,)
        Size and place among the client's of each graph.
    """
    if not len(num_nodes):
        return
    worst = int(np.argmax(num_nodes))
    if num_nodes[worst] > MAX_NODES:
        raise DataError(
            f"graph {positions[worst]} has {num_nodes[worst]} nodes, noisy views hold"
            f" at most {MAX_NODES}: a noisy graph has all {num_pairs(num_nodes)[worst]}"
            " edges. Leave such graphs out, or train without edge noise"
        )
    pairs = int(num_pairs(num_nodes).sum())
    if pairs > MAX_PAIRS:
        raise DataError(
            f"noisy views of {len(num_nodes)} graphs have {pairs} pairs of nodes each,"
            f" allowed are {MAX_PAIRS} ({4 * MAX_PAIRS / 2**30:g} GiB); use more"
            " clients or fewer or smaller graphs"
        )
