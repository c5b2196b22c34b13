"""Noisy views of a client's graphs as padded dense matrices, bucketed by size.

A noisy graph has every edge, so dense products beat edge lists (our spec, Sec. 7.1;
``python -m simulations.speed_dense`` measures). Matrices are built batch by batch from
the views' compact triangles, and nothing here ever sees the original edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import GraphSet, IntArray
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.privacy import NON_NEGATIVE_POSTS

from .batching import csr, gather, send
from .privacy.laplace import SIGNED_POSTS, Triangles, num_pairs
from .propagation import DenseStructure

MAX_NODES = 4000  # of one graph: a matrix of 64 MB; a GCN pass took 440 MB
MAX_PAIRS = 2**28  # of one view of all graphs of a client: 1 GiB
MAX_CELLS = 2**27  # of all matrices of a batch: 512 MiB
_GROWTH, _SMALL = 1.35, 16
_TOGETHER = 128  # nodes; graphs up to this size are cut out together, by many indices


@dataclass(frozen=True)
class DistinctRows:
    """Features of nodes many of which are alike, as atoms are: ``table[ids]``.

    Parameters
    ----------
    table : tensor, shape (num_distinct, num_features)
    ids : int64 tensor, shape (num_nodes,)
    """

    table: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)


class Nodes(Protocol):
    """Nodes of the graphs of a batch, without any edges; a ``Batch`` is one."""

    @property
    def x(self) -> Tensor | DistinctRows:
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

    x: Tensor | DistinctRows
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
        x, self._table = np.ascontiguousarray(graphs.x), None
        if x.ndim == 2:
            table, x = distinct_rows(x)
            self._table = torch.from_numpy(table).float().to(device)
        self._ids = torch.from_numpy(x).long().to(device)

    def batch(self, positions: IntArray) -> NodeBatch:
        """Join the nodes of the graphs at ``positions``, repeats allowed."""
        rows, ptr, sizes = gather(self._node_ptr, positions, self.device)
        graphs = torch.arange(len(positions), device=self.device)
        columns = torch.arange(len(rows), device=self.device)
        ids = self._ids[rows]
        x: Tensor | DistinctRows = ids
        if self._table is not None:  # whichever is the shorter product
            few = len(self._table) < len(rows)
            x = DistinctRows(self._table, ids) if few else self._table[ids]
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

    Rows are told apart by a random projection, and compared: should two share one,
    every row counts as different, which costs time only.
    """
    direction = np.random.default_rng(0).random(x.shape[1])
    _, first, ids = np.unique(x @ direction, return_index=True, return_inverse=True)
    if np.array_equal(x[first][ids], x):
        return x[first], ids
    return x, np.arange(len(x))


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

    def parts(self, positions: IntArray) -> list[IntArray]:
        """Cut graphs, kept in order, into batches that are not too large.

        Only as far as needed: what fits into one stays one.
        """
        sizes = self._num_nodes[self._row[positions]]
        begins, cells = [0], 0
        for k, more in enumerate((sizes**2).tolist()):
            cells += more
            if cells > MAX_CELLS:
                begins.append(k)
                cells = more
        return np.split(positions, begins[1:])

    def rows(self, rows: IntArray) -> DenseStructure:
        """Structure of the view's own graphs number ``rows``, repeats allowed."""
        sizes = self._num_nodes[rows]
        node_ptr = np.concatenate([[0], np.cumsum(sizes)])
        groups = list(buckets(sizes))
        if _padded_cells(groups, sizes) > MAX_CELLS:  # no padding, but more matrices
            groups = list(buckets(sizes, growth=1.0, small=0))
        if (cells := _padded_cells(groups, sizes)) > MAX_CELLS:
            raise DataError(
                f"a batch of {len(rows)} graphs of up to {sizes.max()} nodes needs"
                f" dense matrices of {4 * cells / 2**20:.0f} MiB, allowed are"
                f" {4 * MAX_CELLS / 2**20:.0f}; lower batch-size"
            )
        # Graph by graph in the order of the groups: rows of the batch, and padding.
        order = np.concatenate([*groups, np.zeros(0, np.int64)])
        widths = np.concatenate(
            [np.full(len(g), sizes[g].max()) for g in groups] or [order]
        )
        start = np.cumsum(widths) - widths
        column = np.arange(int(widths.sum())) - np.repeat(start, widths)
        is_node = column < np.repeat(sizes[order], widths)
        first = np.repeat(node_ptr[:-1][order], widths)
        padded = np.where(is_node, first + column, first)
        slots = np.empty(int(node_ptr[-1]), np.int64)
        slots[padded[is_node]] = np.flatnonzero(is_node)
        return DenseStructure(
            [self._matrices(rows[g], sizes[g]) for g in groups],
            send(padded, self._device),
            send(slots, self._device),
            use_absolute_degree=self._post in SIGNED_POSTS,
            is_non_negative=self._post in NON_NEGATIVE_POSTS,
        )

    def _matrices(self, rows: IntArray, sizes: IntArray) -> Tensor:
        """Cut out graphs of ``sizes`` nodes, padded: (num_graphs, size, size)."""
        size = int(sizes.max())
        if size > _TOGETHER or not len(self._values):
            weight = torch.zeros(len(rows), size, size, device=self._device)
            for k, (row, n) in enumerate(zip(rows, sizes, strict=True)):
                u, v = torch.triu_indices(n, n, 1, device=self._device)
                weight[k, u, v] = self._values[self._ptr[row] : self._ptr[row + 1]]
                weight[k, v, u] = weight[k, u, v]
            return weight
        low, rest, high = _pair_terms(size, self._device)
        n = send(sizes, self._device)[:, None, None]
        begin = send(self._ptr[rows], self._device)[:, None, None]
        place = low * n + (rest + begin)  # (num_graphs, size, size)
        exists = high < n
        return torch.where(exists, self._values[place.mul_(exists)], 0.0)


@lru_cache(maxsize=64)
def _pair_terms(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of ``laplace.pair_index`` for all ordered pairs: (size, size) each.

    The pair of u and v lies at ``low * num_nodes + rest``, unless ``high``, the larger
    of both, is beyond the graph; on the diagonal ``high`` is beyond every graph.
    """
    u = torch.arange(size, device=device)
    low, high = torch.minimum(u[:, None], u), torch.maximum(u[:, None], u)
    rest = high - low - 1 - low * (low + 1) // 2
    return low, rest, high + torch.eye(size, dtype=torch.int64, device=device) * 2**40


def buckets(
    sizes: IntArray, *, growth: float = _GROWTH, small: int = _SMALL
) -> Iterator[IntArray]:
    """Group graphs by size: at most 1.35 times the smallest of a group, or 16 nodes.

    Yields places in ``sizes``, smallest graphs first.
    """
    order = np.argsort(sizes, kind="stable")
    start = 0
    while start < len(order):
        most = max(small, growth * int(sizes[order[start]]))
        stop = int(np.searchsorted(sizes[order], most, side="right"))
        yield order[start:stop]
        start = stop


def _padded_cells(groups: list[IntArray], sizes: IntArray) -> int:
    return sum(len(g) * int(sizes[g].max()) ** 2 for g in groups)


def check_together(num_nodes: IntArray, count: int, *, key: str) -> None:
    """Raise DataError if some ``count`` of these graphs would be too large a batch.

    To be called before a draw.

    Parameters
    ----------
    num_nodes : int64 array, shape (num_graphs,)
    count : int
    key : str
        Run-config key that says how many come together.
    """
    largest = np.sort(num_nodes)[::-1][:count]
    cells = np.cumsum(largest**2)
    if not len(cells) or cells[-1] <= MAX_CELLS:
        return
    raise DataError(
        f"{len(largest)} noisy graphs may come together, of up to {largest[0]} nodes:"
        f" they need dense matrices of {4 * int(cells[-1]) / 2**20:.0f} MiB, allowed"
        f" are {4 * MAX_CELLS / 2**20:.0f}. Nothing was drawn. Set {key} to"
        f" {np.searchsorted(cells, MAX_CELLS, side='right')} or less in the run config"
    )


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
