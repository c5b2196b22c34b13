"""Noisy views that are used many times, with products made beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.data import IntArray, pointer

from ..privacy.laplace import SIGNED_POSTS, Triangles
from .csr import gather, send
from .molecule_data import MoleculeData
from .node_rows import DistinctRows, NodeBatch, NodeRows, Spreading, SpreadRows
from .noisy_structure import NoisyStructure, smoothing
from .noisy_view import NoisyView, buckets, is_too_large, padded_cells, slots_of

MAX_KEPT = 2**24  # cells: 64 MiB; as many features spread, for TAG three times
GROWTH, SMALL = 1.2, 16  # finer than there: groups are of all graphs, not of some


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
    than once (docs/privacy.md has times).

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
            for group in buckets(views[0].num_nodes, growth=GROWTH, small=SMALL)
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
        groups = list(buckets(num_nodes, growth=GROWTH, small=SMALL))
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
