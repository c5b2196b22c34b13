"""Picks rows of chosen graphs from flat tensors; makes sparse matrices in CSR form."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray


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
    _hear_warning()
    return torch.sparse_csr_tensor(
        row_ptr,
        columns.to(row_ptr.dtype),  # a GPU reads both alike
        torch.ones(len(columns), device=columns.device) if values is None else values,
        (len(row_ptr) - 1, num_columns),
        check_invariants=False,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """A sparse matrix in CSR form, whose parts can be joined with those of others.

    Parameters
    ----------
    row_ptr : int64 tensor, shape (num_rows + 1,)
    columns : int64 tensor, shape (num_entries,)
    values : float tensor, shape (num_entries,)
    num_columns : int
    """

    row_ptr: Tensor
    columns: Tensor
    values: Tensor
    num_columns: int

    @cached_property
    def matrix(self) -> Tensor:
        """The sparse CSR tensor; it shares memory with its parts."""
        return csr(self.row_ptr, self.columns, self.num_columns, self.values)

    @classmethod
    def of(cls, dense: Tensor) -> Self:
        """Store the entries of a dense matrix that are not 0."""
        found = dense.to_sparse_csr()
        return cls(
            row_ptr=found.crow_indices(),
            columns=found.col_indices(),
            values=found.values(),
            num_columns=dense.shape[1],
        )


@cache
def _hear_warning() -> None:
    """Make a first CSR tensor, at which torch warns once per process.

    It calls them beta, or unchecked, though they are made with ``check_invariants``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        none = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(
            none, none[:0], torch.empty(0), (0, 0), check_invariants=False
        )
