"""Noisy views of graphs: edges are drawn with noise, and each pair of nodes has one.

Dense products beat edge lists on them. Matrices are built batch by batch from the
views' compact triangles, and nothing here ever sees the original edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import IntArray, pointer
from fedgraph_flwr.core.errors import DataError

from ..privacy.laplace import SIGNED_POSTS, Triangles, check_sizes, num_pairs
from .csr import send
from .node_rows import NodeBatch, NodeRows
from .ops import symmetric
from .structure import Structure

MAX_CELLS = 2**27  # of the matrices of a batch without padding: 512 MiB
GROWTH, SMALL = 1.35, 16
_TOGETHER = 128  # nodes; graphs up to this size are cut out together, by many indices


@final
class NoisyStructure(Structure):
    """Padded dense matrices: graphs of similar size share a bucket.

    Parameters
    ----------
    buckets : sequence of tensors, shapes (num_graphs, size, size)
        Symmetric weights; rows and columns of padding are 0. Together the buckets hold
        every node of the batch once.
    padded : int64 tensor, shape (num_slots,)
        Row of the batch in each row of each graph of each bucket, in that order; some
        row or other in padding, which reaches no node.
    slots : int64 tensor, shape (num_nodes,)
        Slot of each row of the batch.
    use_absolute_degree : bool
        See ``laplace.post_process``.
    """

    def __init__(
        self,
        buckets: Sequence[Tensor],
        padded: Tensor,
        slots: Tensor,
        *,
        use_absolute_degree: bool = False,
    ) -> None:
        self.buckets, self.padded, self.slots = buckets, padded, slots
        self._use_absolute_degree = use_absolute_degree

    @override
    @cached_property
    def degree(self) -> Tensor:  # type: ignore[override]
        signed = self._use_absolute_degree
        found = [(w.abs() if signed else w).sum(2).flatten() for w in self.buckets]
        return torch.cat(found)[self.slots] if found else torch.zeros(0)

    @override
    def sum(self, x: Tensor) -> Tensor:
        """One batched matrix product per bucket."""
        return symmetric(x, self._product) if self.buckets else x

    def _product(self, x: Tensor) -> Tensor:
        rows = x.index_select(0, self.padded)
        found = torch.empty_like(rows)
        begin = 0
        for w in self.buckets:
            shape, end = (*w.shape[:2], x.shape[1]), begin + w.shape[0] * w.shape[1]
            h, out = (part[begin:end].view(shape) for part in (rows, found))
            torch.bmm(w.to(x.dtype), h, out=out)
            begin = end
        return found.index_select(0, self.slots)


class NoisyView:
    """Noisy views of a client's graphs on the device, ready to be cut into batches.

    Its rows are the graphs of the first view, then those of the second, ...

    Parameters
    ----------
    *views : Triangles
        After post-processing; of the same graphs.
    post : str
        How they were post-processed; decides how degrees are counted.
    nodes : NodeRows, optional
        Features of the client's graphs, for :meth:`nodes`.

    Raises
    ------
    DataError
        A graph, or all of them, are too large for dense matrices.
    """

    def __init__(
        self,
        *views: Triangles,
        device: torch.device,
        post: str = "clamp01",
        nodes: NodeRows | None = None,
    ) -> None:
        positions, num_nodes = views[0].positions, views[0].num_nodes
        check_sizes(num_nodes, positions)
        self._device, self._nodes = device, nodes
        self._use_absolute_degree = post in SIGNED_POSTS
        values = np.concatenate([view.values for view in views])
        self._values = torch.from_numpy(values).to(device)
        self.positions = np.tile(positions, len(views))
        self.num_nodes = np.tile(num_nodes, len(views))
        self._ptr = pointer(num_pairs(self.num_nodes))
        self._row = {int(p): row for row, p in enumerate(positions)}

    def places(self, positions: IntArray, view: int = 0) -> IntArray:
        """Rows of the graphs at ``positions`` of the client, in a view.

        Raises
        ------
        DataError
            The view lacks a graph.
        """
        if lacking := sorted(set(positions.tolist()) - set(self._row)):
            raise DataError(
                f"the noisy view has no graph {lacking[0]}; it was drawn for"
                f" {len(self._row)} graphs: draw one for this too"
            )
        rows = [self._row[p] for p in positions.tolist()]
        return np.array(rows, np.int64) + view * len(self._row)

    def nodes(self, rows: IntArray) -> NodeBatch:
        """Nodes of the graphs in ``rows``, which fit :meth:`rows`."""
        assert self._nodes is not None
        return self._nodes.batch(self.positions[rows])

    def parts(self, rows: IntArray) -> list[IntArray]:
        """Cut rows, kept in order, into batches that are not too large.

        Only as far as needed: what fits into one stays one.
        """
        begins, cells = [0], 0
        for k, more in enumerate((self.num_nodes[rows] ** 2).tolist()):
            cells += more
            if cells > MAX_CELLS:
                begins.append(k)
                cells = more
        return np.split(rows, begins[1:])

    def rows(self, rows: IntArray) -> NoisyStructure:
        """Structure of the graphs in ``rows``, repeats allowed."""
        sizes = self.num_nodes[rows]
        groups = list(buckets(sizes))
        return NoisyStructure(
            [self._matrices(rows[g]) for g in groups],
            *(send(s, self._device) for s in _slots(sizes, groups)),
            use_absolute_degree=self._use_absolute_degree,
        )

    def _matrices(self, rows: IntArray) -> Tensor:
        """Cut out graphs, padded: (num_graphs, size, size)."""
        values, sizes, device = self._values, self.num_nodes[rows], self._device
        size = int(sizes.max())
        if size > _TOGETHER or not len(values):
            weight = torch.zeros(len(rows), size, size, device=device)
            for k, (row, n) in enumerate(zip(rows, sizes, strict=True)):
                u, v = torch.triu_indices(n, n, 1, device=device)
                weight[k, u, v] = values[self._ptr[row] : self._ptr[row + 1]]
                weight[k, v, u] = weight[k, u, v]
            return weight
        low, rest, high = _pair_terms(size, device)
        n = send(sizes, device)[:, None, None]
        begin = send(self._ptr[rows], device)[:, None, None]
        place = low * n + (rest + begin)  # (num_graphs, size, size)
        exists = high < n
        return torch.where(exists, values[place.mul_(exists)], 0.0)


def _slots(sizes: IntArray, groups: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Make ``padded`` and ``slots`` of a :class:`NoisyStructure`.

    ``groups`` are the places in ``sizes`` of the graphs of each bucket.
    """
    node_ptr = pointer(sizes)
    # Graph by graph in the order of the groups: rows of the batch, and padding.
    order = np.concatenate([*groups, np.zeros(0, np.int64)])
    widths = np.array([sizes[g].max() for g in groups], np.int64)
    width = np.repeat(widths, [len(g) for g in groups])
    start = np.cumsum(width) - width
    column = np.arange(int(width.sum())) - np.repeat(start, width)
    is_node = column < np.repeat(sizes[order], width)
    first = np.repeat(node_ptr[:-1][order], width)
    padded = np.where(is_node, first + column, first)
    slots = np.empty(int(node_ptr[-1]), np.int64)
    slots[padded[is_node]] = np.flatnonzero(is_node)
    return padded, slots


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
    sizes: IntArray, *, growth: float = GROWTH, small: int = SMALL
) -> Iterator[IntArray]:
    """Group graphs by size.

    Parameters
    ----------
    sizes : int64 array, shape (num_graphs,)
    growth : float
        No graph is larger than so many times the smallest of its group,
    small : int
        or than so many nodes.

    Yields
    ------
    int64 array
        Places in ``sizes``, smallest graphs first.
    """
    order = np.argsort(sizes, kind="stable")
    start = 0
    while start < len(order):
        most = max(small, growth * int(sizes[order[start]]))
        stop = int(np.searchsorted(sizes[order], most, side="right"))
        yield order[start:stop]
        start = stop
