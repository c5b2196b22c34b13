"""Sparse matrices of graphs: sums over neighbours, and views weighted by diffusion."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.core.data import IntArray, WeightedEdges


def gather(
    ptr: IntArray, positions: IntArray, device: torch.device
) -> tuple[Tensor, IntArray, IntArray]:
    """Row numbers of the chosen graphs, the new pointer, and the sizes."""
    sizes = ptr[positions + 1] - ptr[positions]
    new_ptr = np.concatenate([[0], np.cumsum(sizes)])
    total = int(new_ptr[-1])
    offsets = repeated(ptr[positions] - new_ptr[:-1], sizes, total, device)
    return offsets + torch.arange(total, device=device), new_ptr, sizes


def repeated(
    values: IntArray, counts: IntArray, total: int, device: torch.device
) -> Tensor:
    """Repeat each integer ``counts`` times, which makes ``total``, on the device."""
    return torch.repeat_interleave(
        send(values, device), send(counts, device), output_size=total
    )


def send(values: IntArray, device: torch.device) -> Tensor:
    """Copy integers to the device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, np.int64))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def row_pointer(counts: Tensor) -> Tensor:
    """Pointer of a CSR matrix from the number of entries of each row."""
    ptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=ptr[1:])
    return ptr


def csr(
    row_ptr: Tensor, columns: Tensor, num_columns: int, values: Tensor | None = None
) -> Tensor:
    """Sparse CSR tensor; entries are 1 without ``values``."""
    _use_up_warning()
    return torch.sparse_csr_tensor(
        row_ptr,
        columns.to(row_ptr.dtype),  # a GPU reads both alike
        torch.ones(len(columns), device=columns.device) if values is None else values,
        (len(row_ptr) - 1, num_columns),
        check_invariants=False,
    )


@cache
def _use_up_warning() -> None:
    """Make a first CSR tensor, at which torch warns once per process.

    It calls them beta, or unchecked, though they are made with ``check_invariants``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        none = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(
            none, none[:0], torch.empty(0), (0, 0), check_invariants=False
        )


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


class CollatedDiffusion:
    """Weighted edges of all graphs of a client, ready to be cut into batches.

    Parameters
    ----------
    edges : WeightedEdges
        Of the same graphs, in the same order, as the ``CollatedGraphs`` beside it.
    node_ptr : int64 array, shape (num_graphs + 1,)
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
