"""Dense noisy graphs as matrices, graphs of similar size side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

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
