"""Rows of node features that are stored once, and molecules made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.core.data import GraphSet, IntArray

from .batching import Batch, ClientData, SingleBatch
from .csr import csr, gather, send


@dataclass(frozen=True)
class DistinctRows:
    """Features of nodes as numbers of rows in a table: ``table[ids]``.

    Many nodes have equal features, as atoms do.

    Parameters
    ----------
    table : tensor, shape (num_distinct, num_features)
    ids : int64 tensor, shape (num_nodes,)
    """

    table: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)


Rows: TypeAlias = Tensor | DistinctRows  # of features; or column numbers (num_nodes,)


@dataclass(frozen=True)
class NodeBatch:
    """Nodes of the graphs at ``positions``, in that order, without edges.

    ``membership`` and ``graph_of_node`` are as in ``Batch``.
    """

    x: Rows
    membership: Tensor
    graph_of_node: Tensor
    positions: IntArray


Nodes: TypeAlias = Batch | NodeBatch


class NodeRows:
    """Node features of a client's graphs on the device; edges are not even copied."""

    def __init__(self, graphs: GraphSet, device: torch.device) -> None:
        self.device = device
        self._node_ptr = graphs.node_ptr
        x, self.table = np.ascontiguousarray(graphs.x), None
        if x.ndim == 2:
            table, x = distinct_rows(x)
            self.table = torch.from_numpy(table).float().to(device)
        self._ids = torch.from_numpy(x).long().to(device)

    def batch(self, positions: IntArray) -> NodeBatch:
        """Join the nodes of the graphs at ``positions``, repeats allowed."""
        rows, ptr, sizes = gather(self._node_ptr, positions, self.device)
        graphs = torch.arange(len(positions), device=self.device)
        columns = torch.arange(len(rows), device=self.device)
        ids = self._ids[rows]
        x: Rows = ids
        if self.table is not None:  # whichever is the shorter product
            few = len(self.table) < len(rows)
            x = DistinctRows(self.table, ids) if few else self.table[ids]
        return NodeBatch(
            x=x,
            membership=csr(send(ptr, self.device), columns, len(rows)),
            graph_of_node=torch.repeat_interleave(
                graphs, send(sizes, self.device), output_size=len(rows)
            ),
            positions=positions,
        )


def distinct_rows(x: np.ndarray) -> tuple[np.ndarray, IntArray]:
    """Return the different rows of (n, d) and which of them each row is, (n,).

    Rows are numbered by a random projection, then compared. If two different rows
    share a projection, every row counts as different, which costs time only.
    """
    direction = np.random.default_rng(0).random(x.shape[1])
    _, first, ids = np.unique(x @ direction, return_index=True, return_inverse=True)
    if np.array_equal(x[first][ids], x):
        return x[first], ids
    return x, np.arange(len(x))


@dataclass(frozen=True, kw_only=True)
class MoleculeData(ClientData):
    """Collated graphs, and their nodes alone, for encoders that take edges apart."""

    @cached_property
    def nodes(self) -> NodeRows:
        """Nodes without edges; equal rows of features are stored once."""
        return NodeRows(self.partition.graphs, self.graphs.device)

    @cached_property
    def evaluation_nodes(self) -> tuple[NodeBatch, ...]:
        """Nodes of the evaluation batches."""
        return tuple(self.nodes.batch(b.positions) for b in self.evaluation)

    def nodes_of(self, batch: Batch) -> Nodes:
        """Nodes of a batch, in the form that is fastest: itself if of one graph."""
        if isinstance(batch, SingleBatch):
            return batch
        return self.nodes.batch(batch.positions)
