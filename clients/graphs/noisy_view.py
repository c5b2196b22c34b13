"""Noisy views of graphs: where edges may stand, drawn with noise, kept or anew.

A noisy graph has every edge, so dense products beat edge lists. Matrices are built
batch by batch from the views' compact triangles, and nothing here ever sees the
original edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import IntArray, pointer
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.privacy_settings import NON_NEGATIVE_POSTS

from ..privacy.laplace import SIGNED_POSTS, Triangles, check_sizes, num_pairs
from .csr import gather, send
from .node_rows import (
    DistinctRows,
    MoleculeData,
    NodeBatch,
    NodeRows,
    Spreading,
    SpreadRows,
)
from .ops import symmetric
from .structure import NEGATIVE_SLOPE, Mask, Structure, power

Matrices = Sequence[Tensor]  # of each bucket, (num_graphs, size, size)


def smoothing(weight: Tensor, *, use_absolute_degree: bool) -> Tensor:
    """D^-1/2 (W + I) D^-1/2 of each graph, as :meth:`Structure.smooth` has it.

    Parameters
    ----------
    weight : tensor, shape (num_graphs, size, size)
        A bucket of a :class:`NoisyStructure`.
    use_absolute_degree : bool
        See ``laplace.post_process``.

    Returns
    -------
    tensor of the same shape
        Padding has loops, which reach no node.
    """
    root = power(1.0 + _degrees(weight, use_absolute_degree), -0.5)
    loops = torch.eye(weight.shape[1], device=weight.device)
    return (weight + loops) * root[:, :, None] * root[:, None, :]


def _degrees(weight: Tensor, use_absolute_degree: bool) -> Tensor:
    return (weight.abs() if use_absolute_degree else weight).sum(2)


@final
class NoisyStructure(Structure):
    """Padded dense matrices: graphs of similar size share a bucket.

    Parameters
    ----------
    cut : callable
        Gives the buckets, tensors of shape (num_graphs, size, size), when first used.
        Symmetric weights; rows and columns of padding are 0. Together the buckets hold
        every node of the batch once.
    padded : int64 tensor, shape (num_slots,)
        Row of the batch in each row of each graph of each bucket, in that order; some
        row or other in padding, which reaches no node.
    slots : int64 tensor, shape (num_nodes,)
        Slot of each row of the batch.
    smoothed : callable, optional
        Gives :func:`smoothing` of the buckets, if that has been made.
    use_absolute_degree, is_non_negative : bool
        See ``laplace.post_process``.
    """

    def __init__(
        self,
        cut: Callable[[], Matrices],
        padded: Tensor,
        slots: Tensor,
        *,
        smoothed: Callable[[], Matrices] | None = None,
        use_absolute_degree: bool = False,
        is_non_negative: bool = True,
    ) -> None:
        self._cut, self._smoothed = cut, smoothed
        self.padded, self.slots = padded, slots
        self.is_non_negative = is_non_negative
        self._use_absolute_degree = use_absolute_degree

    @cached_property
    def buckets(self) -> Matrices:
        """Matrices of the batch, one tensor for graphs of similar size."""
        return self._cut()

    @override
    @cached_property
    def degree(self) -> Tensor:  # type: ignore[override]
        found = [_degrees(w, self._use_absolute_degree).flatten() for w in self.buckets]
        return torch.cat(found)[self.slots] if found else torch.zeros(0)

    def pad(self, x: Tensor) -> list[Tensor]:
        """(num_nodes, d) of the batch -> (num_graphs, size, d) of each bucket."""
        rows = x.index_select(0, self.padded)
        sizes = [w.shape[0] * w.shape[1] for w in self.buckets]
        parts = torch.split(rows, sizes)
        return [
            part.view(*w.shape[:2], -1)
            for part, w in zip(parts, self.buckets, strict=True)
        ]

    def unpad(self, parts: Sequence[Tensor]) -> Tensor:
        """(num_graphs, size, d) of each bucket -> (num_nodes, d) of the batch."""
        return torch.cat([p.flatten(0, 1) for p in parts]).index_select(0, self.slots)

    @override
    def sum(self, x: Tensor) -> Tensor:
        """One batched matrix product per bucket."""
        return self._times(self.buckets, x)

    @override
    def smooth(self, x: Tensor) -> Tensor:
        """D^-1/2 (W + I) D^-1/2 x; one product, if matrices for it have been made."""
        if self._smoothed is None:
            return super().smooth(x)
        return self._times(self._smoothed(), x)

    def _times(self, matrices: Matrices, x: Tensor) -> Tensor:
        if not matrices:
            return x
        return symmetric(x, partial(self._product, matrices))

    def _product(self, matrices: Matrices, x: Tensor) -> Tensor:
        rows = x.index_select(0, self.padded)
        found = torch.empty_like(rows)
        begin = 0
        for w in matrices:
            shape, end = (*w.shape[:2], x.shape[1]), begin + w.shape[0] * w.shape[1]
            h, out = (part[begin:end].view(shape) for part in (rows, found))
            torch.bmm(w.to(x.dtype), h, out=out)
            begin = end
        return found.index_select(0, self.slots)

    @override
    def attend(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """All pairs of a graph; memory is that of several dense matrices."""
        ends = self.pad(torch.stack([source, target], 1))
        found = []
        for weight, h, end in zip(self.buckets, self.pad(x), ends, strict=True):
            loops = torch.eye(weight.shape[1], dtype=x.dtype, device=x.device)
            w = weight.to(x.dtype) + loops  # (num_graphs, size, size)
            scores = torch.nn.functional.leaky_relu(
                end[:, None, :, 0] + end[:, :, None, 1], NEGATIVE_SLOPE
            )  # (num_graphs, target, source)
            # Only ratios matter: subtract the largest score that has a weight.
            largest = scores.detach().masked_fill(w == 0, -torch.inf).amax(2, True)
            a = w * torch.exp((scores - largest).masked_fill(w == 0, -torch.inf))
            total = a.sum(2, keepdim=True)
            found.append(a @ h / total if mask is None else mask(a / total) @ h)
        return self.unpad(found)


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


MAX_KEPT = 2**24  # cells: 64 MiB; as many features spread, for TAG three times
# finer than there: groups are of all graphs, not of some
KEPT_GROWTH, KEPT_SMALL = 1.2, 16


@dataclass(frozen=True, kw_only=True)
class ViewedData(MoleculeData):
    """Molecules together with their noisy views."""

    @cached_property
    def kept(self) -> dict[str, NoisyView]:
        """Noisy views by name, kept for the next message of this process."""
        return {}


def keep_view(
    kept: dict[str, NoisyView],
    name: str,
    views: Sequence[Triangles],
    *,
    device: torch.device,
    post: str,
    nodes: NodeRows,
) -> NoisyView:
    """Return views ready to be cut: those of ``kept`` if nothing has changed.

    Parameters
    ----------
    kept : dict
        Of one client's data on one device (``ViewedData.kept``). What is made anew
        takes the place of ``name`` if it is small enough to be kept.
    name : str
    views : sequence of Triangles
        Compared value by value.
    device, post, nodes
        See :class:`KeptNoisyView`.
    """
    old = kept.get(name)
    if old is not None and old.post == post and _are_equal(old.views, views):
        return old
    if not KeptNoisyView.is_possible(np.tile(views[0].num_nodes, len(views))):
        return NoisyView(*views, device=device, post=post, nodes=nodes)
    kept[name] = KeptNoisyView(*views, device=device, post=post, nodes=nodes)
    return kept[name]


def _are_equal(some: Sequence[Triangles], others: Sequence[Triangles]) -> bool:
    return len(some) == len(others) and all(
        a is b
        or (
            np.array_equal(a.positions, b.positions)
            and np.array_equal(a.num_nodes, b.num_nodes)
            and np.array_equal(a.values, b.values)
        )
        for a, b in zip(some, others, strict=True)
    )


class KeptNoisyView(NoisyView):
    """Views whose matrices are made once; batches are cut out of them.

    So are products of matrices and features, which training never changes: see
    :class:`~clients.graphs.node_rows.SpreadRows`. This pays when views are used more
    than once.

    Parameters
    ----------
    *views, device, post
        As of :class:`NoisyView`; :meth:`is_possible` must hold.
    nodes : NodeRows
        Features of the client's graphs.
    """

    def __init__(
        self,
        *views: Triangles,
        device: torch.device,
        post: str = "clamp01",
        nodes: NodeRows,
    ) -> None:
        super().__init__(*views, device=device, post=post, nodes=nodes)
        self._all_nodes = nodes
        self._node_ptr = pointer(self.num_nodes)
        num_graphs = len(views[0])
        firsts = np.arange(len(views))[:, None] * num_graphs
        self._groups = [  # the same graphs of all views side by side
            group + firsts
            for group in buckets(
                views[0].num_nodes, growth=KEPT_GROWTH, small=KEPT_SMALL
            )
        ]
        self._group_of, self._place = np.zeros((2, len(self.num_nodes)), np.int64)
        for k, group in enumerate(self._groups):
            self._group_of[group] = k
            self._place[group] = np.arange(group.size).reshape(group.shape)
        self._widths = [int(self.num_nodes[group].max()) for group in self._groups]
        self._kept: dict[bool, list[Tensor]] = {}
        self._spread: dict[Spreading, Tensor] = {}

    @staticmethod
    def is_possible(num_nodes: IntArray) -> bool:
        """Whether matrices of graphs of these sizes are few enough to be kept."""
        groups = list(buckets(num_nodes, growth=KEPT_GROWTH, small=KEPT_SMALL))
        return padded_cells(groups, num_nodes) <= MAX_KEPT

    @override
    def rows(self, rows: IntArray) -> NoisyStructure:
        group_of, sizes = self._group_of[rows], self.num_nodes[rows]
        order = np.argsort(group_of, kind="stable")
        found, begins = np.unique(group_of[order], return_index=True)
        groups = np.split(order, begins[1:]) if len(order) else []
        widths = [self._widths[k] for k in found]
        cells = sum(len(g) * w**2 for g, w in zip(groups, widths, strict=True))
        if is_too_large(cells):
            return super().rows(rows)

        def cut(*, smooth: bool) -> list[Tensor]:
            matrices = self._matrices_of(smooth=smooth)
            return [
                matrices[k].index_select(0, send(self._place[rows[g]], self.device))
                for k, g in zip(found, groups, strict=True)
            ]

        return self.structure(
            lambda: cut(smooth=False),
            slots_of(sizes, groups, widths),
            smoothed=lambda: cut(smooth=True),
        )

    @override
    def nodes(self, rows: IntArray) -> NodeBatch:
        """Nodes of the graphs in ``rows``; with products, if few features differ."""
        table = self._all_nodes.table
        if table is None or len(table) > table.shape[1]:
            return super().nodes(rows)
        if int(self._node_ptr[-1]) * len(table) > MAX_KEPT:
            return super().nodes(rows)
        batch = self._all_nodes.batch(self.positions[rows], by_table=True)
        assert isinstance(batch.x, DistinctRows)

        def spread(how: Spreading) -> Tensor:
            nodes, _, _ = gather(self._node_ptr, rows, self.device)
            return self._spread_of(how, len(table)).index_select(0, nodes)

        return replace(batch, x=SpreadRows(table, batch.x.ids, spread))

    def _matrices_of(self, *, smooth: bool) -> list[Tensor]:
        if smooth not in self._kept:
            weights = (
                torch.cat([self.matrices(rows) for rows in group])
                for group in self._groups
            )
            absolute = self.post in SIGNED_POSTS
            self._kept[smooth] = [
                smoothing(w, use_absolute_degree=absolute) if smooth else w
                for w in weights
            ]
        return self._kept[smooth]

    @torch.no_grad()
    def _spread_of(self, how: Spreading, num_distinct: int) -> Tensor:
        """Apply ``how`` to the one-hot features of all rows, once."""
        if how not in self._spread:
            parts = []
            for part in self.parts(np.arange(len(self.num_nodes))):
                ids = self._all_nodes.ids(self.positions[part])
                one_hot = torch.nn.functional.one_hot(ids, num_distinct).float()
                parts.append(how(one_hot, self.rows(part)))
            self._spread[how] = torch.cat(parts)
        return self._spread[how]
