"""Noisy views of a client's graphs as padded dense matrices, bucketed by size.

A noisy graph has every edge, so dense products beat edge lists (docs/privacy.md, size
and speed). Matrices are built batch by batch from the views' compact triangles, and
nothing here ever sees the original edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray, pointer
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.privacy import NON_NEGATIVE_POSTS

from ..privacy.laplace import SIGNED_POSTS, Triangles, check_sizes, num_pairs
from .csr import send
from .node_rows import NodeBatch, NodeRows
from .noisy_structure import Matrices, NoisyStructure

MAX_CELLS = 2**27  # of all matrices of a batch: 512 MiB
GROWTH, SMALL = 1.35, 16
_TOGETHER = 128  # nodes; graphs up to this size are cut out together, by many indices


class NoisyView:
    """Noisy views of a client's graphs on the device, ready to be cut into batches.

    Its rows are the graphs of the first view, then those of the second, ...

    Parameters
    ----------
    *views : Triangles
        After post-processing; of the same graphs.
    device : torch.device
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
        self.views, self.device, self.post = views, device, post
        self._nodes = nodes
        self._values = [
            torch.from_numpy(np.ascontiguousarray(v.values)).to(device) for v in views
        ]
        self.positions = np.tile(positions, len(views))
        self.num_nodes = np.tile(num_nodes, len(views))
        self._ptr = pointer(num_pairs(num_nodes))
        self._row = np.full(int(positions.max(initial=-1)) + 1, -1, np.int64)
        self._row[positions] = np.arange(len(positions))

    def places(self, positions: IntArray, view: int = 0) -> IntArray:
        """Rows of the graphs at ``positions`` of the client, in a view.

        Raises
        ------
        DataError
            The view lacks a graph.
        """
        inside = (positions >= 0) & (positions < len(self._row))
        rows = np.full(len(positions), -1, np.int64)
        rows[inside] = self._row[positions[inside]]
        if (rows < 0).any():
            raise DataError(
                f"the noisy view has no graph {positions[rows < 0][0]}; it was drawn"
                f" for {int((self._row >= 0).sum())} graphs: draw one for this too"
            )
        return rows + view * len(self.views[0])

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
            if is_too_large(cells):
                begins.append(k)
                cells = more
        return np.split(rows, begins[1:])

    def rows(self, rows: IntArray) -> NoisyStructure:
        """Structure of the graphs in ``rows``, repeats allowed.

        Raises
        ------
        DataError
            The batch is too large.
        """
        sizes, view = self.num_nodes[rows], rows // len(self.views[0])
        groups = list(buckets(sizes, view))
        if is_too_large(padded_cells(groups, sizes)):  # no padding, but more matrices
            groups = list(buckets(sizes, view, growth=1.0, small=0))
        if is_too_large(cells := padded_cells(groups, sizes)):
            raise DataError(
                f"a batch of {len(rows)} graphs of up to {sizes.max()} nodes needs"
                f" dense matrices of {4 * cells / 2**20:.0f} MiB, allowed are"
                f" {4 * MAX_CELLS / 2**20:.0f}; lower batch-size"
            )
        widths = [int(sizes[g].max()) for g in groups]
        return self.structure(
            lambda: [self.matrices(rows[g]) for g in groups],
            slots_of(sizes, groups, widths),
        )

    def structure(
        self,
        cut: Callable[[], Matrices],
        slots: tuple[IntArray, IntArray],
        smoothed: Callable[[], Matrices] | None = None,
    ) -> NoisyStructure:
        """Make the structure of these matrices and ``slots_of`` them."""
        return NoisyStructure(
            cut,
            *(send(s, self.device) for s in slots),
            smoothed=smoothed,
            use_absolute_degree=self.post in SIGNED_POSTS,
            is_non_negative=self.post in NON_NEGATIVE_POSTS,
        )

    def matrices(self, rows: IntArray) -> Tensor:
        """Cut out graphs of one view, padded: (num_graphs, size, size)."""
        view, rows = int(rows[0]) // len(self.views[0]), rows % len(self.views[0])
        values, sizes = self._values[view], self.num_nodes[rows]
        size = int(sizes.max())
        if size > _TOGETHER or not len(values):
            weight = torch.zeros(len(rows), size, size, device=self.device)
            for k, (row, n) in enumerate(zip(rows, sizes, strict=True)):
                u, v = torch.triu_indices(n, n, 1, device=self.device)
                weight[k, u, v] = values[self._ptr[row] : self._ptr[row + 1]]
                weight[k, v, u] = weight[k, u, v]
            return weight
        low, rest, high = _pair_terms(size, self.device)
        n = send(sizes, self.device)[:, None, None]
        begin = send(self._ptr[rows], self.device)[:, None, None]
        place = low * n + (rest + begin)  # (num_graphs, size, size)
        exists = high < n
        return torch.where(exists, values[place.mul_(exists)], 0.0)


def slots_of(
    sizes: IntArray, groups: list[IntArray], widths: list[int]
) -> tuple[IntArray, IntArray]:
    """Make ``padded`` and ``slots`` of a :class:`NoisyStructure`.

    Parameters
    ----------
    sizes : int64 array, shape (num_graphs,)
    groups : list of int64 arrays
        Places in ``sizes`` of the graphs of each bucket.
    widths : list of int
        Size of each bucket's matrices.
    """
    node_ptr = pointer(sizes)
    # Graph by graph in the order of the groups: rows of the batch, and padding.
    order = np.concatenate([*groups, np.zeros(0, np.int64)])
    width = np.repeat(np.array(widths, np.int64), [len(g) for g in groups])
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
    sizes: IntArray,
    view: IntArray | None = None,
    *,
    growth: float = GROWTH,
    small: int = SMALL,
) -> Iterator[IntArray]:
    """Group graphs by size, and by view if that is given.

    Parameters
    ----------
    sizes, view : int64 arrays, shape (num_graphs,)
    growth : float
        No graph is larger than so many times the smallest of its group,
    small : int
        or than so many nodes.

    Yields
    ------
    int64 array
        Places in ``sizes``, smallest graphs first.
    """
    view = np.zeros_like(sizes) if view is None else view
    for one in np.unique(view):
        order = np.flatnonzero(view == one)
        order = order[np.argsort(sizes[order], kind="stable")]
        start = 0
        while start < len(order):
            most = max(small, growth * int(sizes[order[start]]))
            stop = int(np.searchsorted(sizes[order], most, side="right"))
            yield order[start:stop]
            start = stop


def is_too_large(cells: int) -> bool:
    """Whether matrices with so many entries are too large for a batch."""
    return cells > MAX_CELLS


def padded_cells(groups: list[IntArray], sizes: IntArray) -> int:
    """Entries of all matrices of groups, each padded to its largest graph."""
    return sum(len(g) * int(sizes[g].max()) ** 2 for g in groups)


def check_together(num_nodes: IntArray, count: int, *, key: str) -> None:
    """Raise DataError if any ``count`` of these graphs make too large a batch.

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
