"""A weighted second view of a batch's graphs, and the sum over its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.data import IntArray, WeightedEdges

from .csr import csr, gather, repeated, row_pointer, send


@dataclass(frozen=True)
class DiffusionView:
    """Weighted edges among the nodes of a batch; S_uv weighs the message u -> v.

    Parameters
    ----------
    forward : sparse CSR tensor, shape (num_nodes, num_nodes)
        Entry (v, u) is S_uv, so that ``forward @ x`` sums over incoming messages.
    backward : sparse CSR tensor, shape (num_nodes, num_nodes)
        The transpose, for gradients: S need not be symmetric.
    """

    forward: Tensor
    backward: Tensor


class _WeightedSum(torch.autograd.Function):
    """``view.forward @ x``; the weights are constants."""

    @override
    @staticmethod
    def forward(ctx: Any, x: Tensor, view: DiffusionView) -> Tensor:
        ctx.view = view
        return view.forward @ x

    @override
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.view.backward @ grads[0].contiguous(), None


def weighted_sum(x: Tensor, view: DiffusionView) -> Tensor:
    """Sum weighted messages at each node: (num_nodes, d) -> the same."""
    return _WeightedSum.apply(x, view)  # type: ignore[no-any-return,no-untyped-call]


class CollatedDiffusion:
    """Weighted edges of all graphs of a client, ready to be cut into batches.

    Parameters
    ----------
    edges : WeightedEdges
        Of the same graphs, in the same order, as the ``CollatedGraphs`` beside it.
    node_ptr : int64 array, shape (num_graphs + 1,)
    device : torch.device
    """

    def __init__(
        self, edges: WeightedEdges, node_ptr: IntArray, device: torch.device
    ) -> None:
        self._node_ptr, self._edge_ptr = node_ptr, np.asarray(edges.edge_ptr)
        self._device = device
        source, target = np.asarray(edges.edge_index, np.int64)
        graph = np.repeat(np.arange(len(edges.edge_ptr) - 1), np.diff(edges.edge_ptr))
        shift = node_ptr[graph]
        by_target = np.lexsort((source, target, graph))
        self._outgoing = self._half(source + shift, target, edges.weight)
        self._incoming = self._half(
            (target + shift)[by_target],
            source[by_target],
            np.asarray(edges.weight)[by_target],
        )

    def _half(
        self, rows: IntArray, columns: IntArray, weight: NDArray[np.float32]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Entries per node, column within the graph, and weight; on the device."""
        counts = np.bincount(rows, minlength=int(self._node_ptr[-1]))
        return (
            send(counts, self._device),
            send(columns, self._device),
            torch.from_numpy(np.array(weight, np.float32)).to(self._device),
        )

    def batch(self, positions: IntArray) -> DiffusionView:
        """Cut out the view of the graphs at ``positions``, in that order."""
        nodes, node_ptr, _ = gather(self._node_ptr, positions, self._device)
        edges, _, edge_sizes = gather(self._edge_ptr, positions, self._device)
        shift = repeated(node_ptr[:-1], edge_sizes, len(edges), self._device)
        matrices = (
            csr(
                row_pointer(counts[nodes]),
                columns[edges] + shift,
                len(nodes),
                weight[edges],
            )
            for counts, columns, weight in (self._incoming, self._outgoing)
        )
        return DiffusionView(*matrices)
