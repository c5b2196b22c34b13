"""Parts of a large graph to train on: items, and neighbours drawn around them.

Hamilton et al. 2017 (GraphSAGE), arXiv:1706.02216, Sec. 3.1. Differs: neighbours are
drawn without repeats, and sums of ``NodeGNN`` are scaled by degree / neighbours drawn,
so that what a layer computes of its input has the mean of the whole graph's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .csr import DiffusionView, csr, gather, repeated, row_pointer, send
from .ops import SparseRows, weighted_sum
from .whole_graph import ItemEdges, NodeStructure, WholeGraph


@final
@dataclass(frozen=True, kw_only=True)
class SampledGraph(NodeStructure):
    """Nodes of a graph, and edges drawn among them; fields are those of ``WholeGraph``.

    ``features``, ``edge_index``, ``edge_attr`` and ``edge_weight`` are of what was
    drawn.

    Parameters
    ----------
    nodes : int64 tensor, shape (num_nodes,)
        Their numbers in the whole graph; first those around which others were drawn.
    arriving : int64 tensors (source, target), each of shape (num_messages,)
        Along which messages pass, by target.
    scale : tensor, shape (num_messages,)
        Neighbours of a target, for each that was drawn.
    degree : int64 tensor, shape (num_nodes,)
        In the whole graph.
    hops : tuple of (int, int)
        Nodes within so many steps of the first, and messages to nodes nearer than
        that; () if edges are in another order.
    """

    nodes: Tensor
    arriving: tuple[Tensor, Tensor]
    scale: Tensor
    degree: Tensor
    hops: tuple[tuple[int, int], ...]
    features: Tensor | SparseRows
    edge_index: Tensor
    edge_attr: Tensor | None
    edge_weight: Tensor | None
    is_undirected: bool
    num_graphs: int = 0  # items of the batch
    y: Any = None
    train: Any = None
    pairs: Any = None
    items: ItemEdges | None = None

    @override
    def rows(self, x: Tensor) -> Tensor:
        return x[: len(self.nodes)]

    @override
    def inner(self) -> SampledGraph:
        if not self.hops:
            return self
        hops = self.hops[:-1]
        nodes, messages = hops[-1]
        return replace(
            self,
            hops=hops,
            nodes=self.nodes[:nodes],
            arriving=(self.arriving[0][:messages], self.arriving[1][:messages]),
            scale=self.scale[:messages],
            degree=self.degree[:nodes],
            edge_index=self.edge_index[:, :messages],
            **ItemEdges(self.edge_attr, self.edge_weight)
            .rows(slice(messages))
            ._asdict(),
        )

    @override
    def propagate(self, x: Tensor) -> Tensor:
        source, target = self.arriving
        root = (self.degree + 1).double().rsqrt()
        weight = root[source] * root[target] * self.scale
        loops = torch.arange(len(self.nodes), device=x.device)
        entries = torch.cat([source, loops]), torch.cat([target, loops])
        return weighted_sum(x, _view(*entries, torch.cat([weight, root**2]), len(x)))

    @override
    def mean(self, x: Tensor) -> Tensor:
        return weighted_sum(x, self._average)

    @cached_property
    def _average(self) -> DiffusionView:
        _, target = self.arriving
        share = self.scale / self.degree.clamp(min=1)[target]
        return _view(*self.arriving, share, len(self.nodes))


def _view(source: Tensor, target: Tensor, weight: Tensor, size: int) -> DiffusionView:
    """Sparse matrix of messages, and its transpose."""
    weight = weight.to(torch.get_default_dtype())
    halves = []
    for rows, columns in ((target, source), (source, target)):
        order = torch.argsort(rows, stable=True)
        ptr = row_pointer(torch.bincount(rows, minlength=size))
        halves.append(csr(ptr, columns[order], size, weight[order]))
    return DiffusionView(*halves)


class Neighbours:
    """Edges of a graph by the node at which messages arrive, on the CPU.

    Parameters
    ----------
    graph : WholeGraph
    direction : str
        As the setting of that name.
    """

    def __init__(self, graph: WholeGraph, direction: str) -> None:
        self._graph = graph
        source, target = graph.edge_index.cpu()
        self._num_edges = len(source)
        self._is_separate = direction == "separate"
        is_both = direction == "both" and not graph.is_undirected
        if is_both or self._is_separate:  # a loop sends one message
            back = torch.nonzero(source != target)[:, 0]
            self._edge = torch.cat([torch.arange(len(source)), back])
            source, target = (
                torch.cat([source, target[back]]),
                torch.cat([target, source[back]]),
            )
        else:
            self._edge = torch.arange(len(source))
        order = torch.argsort(target, stable=True)
        self._edge, self._source = self._edge[order], source[order]
        self._is_back = order >= self._num_edges
        self.degree = torch.bincount(target, minlength=graph.num_nodes)
        self._ptr = row_pointer(self.degree)
        self._local = torch.full((graph.num_nodes,), -1)  # numbers in a sample

    def around(
        self, seeds: Tensor, fanouts: Sequence[int], generator: torch.Generator
    ) -> SampledGraph:
        """Draw neighbours of nodes, then neighbours of these, and so on.

        Parameters
        ----------
        seeds : int64 tensor
            Each once; they are the first nodes of the sample.
        fanouts : sequence of int
            Most neighbours of a node at each step.
        generator : torch.Generator
            On the CPU.
        """
        local, nodes, found = self._local, [seeds], []
        hops, messages = [(len(seeds), 0)], 0
        local[seeds] = torch.arange(len(seeds))
        count, frontier = len(seeds), seeds
        for fanout in fanouts:
            rows, at = self._draw(frontier, fanout, generator)
            found.append((rows, at))
            new = torch.unique(self._source[at])
            frontier = new[local[new] < 0]
            local[frontier] = torch.arange(count, count + len(frontier))
            count, messages = count + len(frontier), messages + len(at)
            nodes.append(frontier)
            hops.append((count, messages))
        target, at = (torch.cat(parts) for parts in zip(*found, strict=True))
        drawn = torch.bincount(local[target], minlength=count)
        sample = self._sample(torch.cat(nodes), local[target], at, drawn)
        local[torch.cat(nodes)] = -1
        return sample if self._is_separate else replace(sample, hops=tuple(hops))

    def _draw(
        self, rows: Tensor, fanout: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Node, and place of each message to it that is drawn; by node."""
        begin, degree = self._ptr[rows], self.degree[rows]
        count = degree.clamp(max=fanout)
        ends = count.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        each = torch.repeat_interleave(torch.arange(len(rows)), count)
        offset = torch.arange(total) - (ends - count)[each]
        large = torch.nonzero(degree > fanout)[:, 0]
        if len(large):
            drawn = _distinct(degree[large], fanout, generator)
            offset[degree[each] > fanout] = drawn.flatten()
        return rows[each], begin[each] + offset

    def _sample(
        self, nodes: Tensor, target: Tensor, at: Tensor, drawn: Tensor
    ) -> SampledGraph:
        graph, device = self._graph, self._graph.y.device
        source, edge = self._local[self._source[at]], self._edge[at]
        ends = torch.stack([source, target])
        if self._is_separate:  # its model turns edges round itself
            back = self._is_back[at]
            ends = torch.where(back, ends.flip(0), ends)
            edge, first = _first_of(edge)
            ends = ends[:, first]
        here = nodes.to(device)
        beside = ItemEdges(graph.edge_attr, graph.edge_weight).rows(edge.to(device))
        degree = self.degree[nodes]
        return SampledGraph(
            nodes=here,
            arriving=(source.to(device), target.to(device)),
            scale=(degree / drawn.clamp(min=1))[target].to(device),
            degree=degree.to(device),
            features=_take(graph.features, here),
            edge_index=ends.to(device),
            edge_attr=beside.edge_attr,
            edge_weight=beside.edge_weight,
            hops=(),
            is_undirected=graph.is_undirected,
        )


def _distinct(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` numbers below each size, none twice; ascending.

    Returns an int64 tensor, (num_sizes, count).

    Source
    ------
    Floyd's algorithm: Bentley and Floyd 1987, Communications of the ACM 30(9).
    """
    found = torch.full((len(sizes), count), -1)
    draws = torch.rand(len(sizes), count, generator=generator, dtype=torch.float64)
    for k in range(count):
        last = sizes - count + k
        number = (draws[:, k] * (last + 1)).long()
        is_taken = (found[:, :k] == number[:, None]).any(1)
        found[:, k] = torch.where(is_taken, last, number)
    return found.sort(1).values


def _first_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values, ascending, and where each stands first."""
    order = torch.argsort(values, stable=True)
    ranked = values[order]
    is_first = torch.ones_like(ranked, dtype=torch.bool)
    is_first[1:] = ranked[1:] != ranked[:-1]
    return ranked[is_first], order[is_first]


def _take(features: Tensor | SparseRows, nodes: Tensor) -> Tensor | SparseRows:
    """Rows of features."""
    if not isinstance(features, SparseRows):
        return features[nodes]
    rows = features.rows
    width, chosen = rows.shape[1], nodes.cpu().numpy()
    at, ptr, sizes = gather(rows.crow_indices().cpu().numpy(), chosen, nodes.device)
    each = repeated(np.arange(len(nodes)), sizes, len(at), nodes.device)
    column, value = rows.col_indices()[at], rows.values()[at]
    order = torch.argsort(column, stable=True)
    across = row_pointer(torch.bincount(column, minlength=width))
    return SparseRows(
        csr(send(ptr, nodes.device), column, width, value),
        csr(across, each[order], len(nodes), value[order]),
    )
