"""Sums over edges and products with weights, as fast as the machine allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from .csr import DiffusionView

Product: TypeAlias = Callable[[Tensor], Tensor]


def sum_rows(ones: Tensor, x: Tensor) -> Tensor:
    """``ones @ x`` for a sparse CSR matrix all of whose entries are 1.

    On CPUs by a sum over bags of rows: as fast again as the sparse product, or more,
    and equal to it to the bit on those that were tried.
    """
    is_usual = x.dtype == torch.float32 and x.is_cpu and x.dim() == 2
    is_differentiated = x.requires_grad and torch.is_grad_enabled()
    fits = is_usual and x.shape[0] == ones.shape[1] and x.shape[1]
    if fits and not is_differentiated:
        bags = ones.col_indices(), ones.crow_indices()
        return torch.embedding_bag(x, *bags, False, 0, False, None, True)[0]
    return ones @ x


class _Linear(torch.autograd.Function):
    """A constant linear map; its transpose makes the gradient."""

    @override
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, transposed: Product) -> Tensor:
        ctx.transposed = transposed
        return product(x)

    @override
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grads[0].contiguous()), None, None


def _mapped(x: Tensor, product: Product, transposed: Product) -> Tensor:
    return _Linear.apply(x, product, transposed)  # type: ignore[no-any-return,no-untyped-call]


class _ReluDropout(torch.autograd.Function):
    """ReLU and dropout in one pass; keeps only its output for the gradient."""

    @override
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        y = torch.relu(x).mul_(mask)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @override
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(grads[0], y, 0.0)
        return passed.mul_(ctx.scale), None, None


def symmetric(x: Tensor, product: Product) -> Tensor:
    """Multiply by a constant, symmetric matrix: (num_nodes, d) -> the same."""
    return _mapped(x, product, product)


def sum_neighbours(x: Tensor, adjacency: Tensor) -> Tensor:
    """Sum the features of each node's neighbours: (num_nodes, d) -> the same.

    Entries of the adjacency matrix, symmetric and sparse CSR, are 1; or it is masked.
    """
    if not isinstance(adjacency, Tensor):
        return adjacency @ x
    return symmetric(x, partial(sum_rows, adjacency))


def spread(x: Tensor, matrix: Tensor) -> Tensor:
    """Sum neighbours' features times the entries of a symmetric, sparse CSR matrix."""
    return symmetric(x, partial(torch.matmul, matrix))


def weighted_sum(x: Tensor, view: DiffusionView) -> Tensor:
    """Sum weighted messages at each node: (num_nodes, d) -> the same."""
    return _mapped(x, view.forward.matmul, view.backward.matmul)


def sum_pool(x: Tensor, membership: Tensor, graph_of_node: Tensor) -> Tensor:
    """Sum node features per graph: (num_nodes, d) -> (num_graphs, d)."""
    product = partial(sum_rows, membership)  # a graph's gradient goes to its nodes
    return _mapped(x, product, lambda grad: grad.index_select(0, graph_of_node))


def relu_dropout(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """ReLU, then dropout with probability ``p``; no dropout without a generator.

    Differs from ``torch.nn.functional.dropout``: masks come from ``generator``, not
    from the global one, and ``p`` is rounded to a multiple of 2**-16 (0.5 is exact),
    which lets one 64-bit draw serve four entries.
    """
    if generator is None or p == 0:
        return torch.relu(x)
    return _ReluDropout.apply(x, *dropout_mask(x, p, generator))  # type: ignore[no-any-return,no-untyped-call]


def dropout_mask(
    like: Tensor, p: float, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Draw a mask of 0 and 1 / (1 - p), laid out as ``like``; also return the scale."""
    words = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device)
    words.random_(-(2**63), None, generator=generator)  # one serves four entries
    level = round(p * 2**16)
    scale = 2**16 / (2**16 - level)
    draws = words.view(torch.int16).flatten()[: like.numel()].view(like.shape)
    mask = torch.empty_like(like)
    torch.ge(draws, level - 2**15, out=mask)
    return mask.mul_(scale), scale


class BareLinear(nn.Linear):
    """A linear layer of given tensors; ``nn.Linear`` makes its own, and takes longer.

    Clients build their models anew for each message.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)


class SparseRows(NamedTuple):
    """Constant features, most of them 0, of shape (num_nodes, num_features)."""

    rows: Tensor  # sparse CSR
    columns: Tensor  # of the transpose

    @classmethod
    def of(cls, x: Tensor) -> SparseRows:
        """Store a dense matrix."""
        return cls(x.to_sparse_csr(), x.t().contiguous().to_sparse_csr())


def dense_rows(x: Tensor | SparseRows) -> Tensor:
    """Features as a dense matrix, (num_nodes, num_features)."""
    return x.rows.to_dense() if isinstance(x, SparseRows) else x


def project_rows(x: Tensor | SparseRows, weight: Tensor) -> Tensor:
    """``x @ weight.T``: (num_nodes, num_in), (num_out, num_in) -> (num_nodes, num_out).

    The cost of sparse rows follows their entries, not their width.
    """
    if isinstance(x, SparseRows):
        rows, columns = x  # constants: they get no gradient
        return _mapped(
            weight, lambda w: rows @ w.t(), lambda g: (columns @ g).t().contiguous()
        )
    return x @ weight.t()


def linear(num_in: int, num_out: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer initialised as torch does, but from ``generator``.

    Weights and biases are uniform in +-1/sqrt(num_in).
    """
    bound = num_in**-0.5
    weight, bias = torch.empty(num_out, num_in), torch.empty(num_out)
    weight.uniform_(-bound, bound, generator=generator)
    bias.uniform_(-bound, bound, generator=generator)
    return BareLinear(weight, bias)


def project(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply ``layer`` to features that may be given as one-hot column numbers."""
    if x.dim() == 1:
        # In one piece, as rows of a view are picked slowly.
        return nn.functional.embedding(x, layer.weight.t().contiguous()) + layer.bias
    return layer(x)  # type: ignore[no-any-return]


def uniform(num_in: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Parameter uniform in +-1/sqrt(num_in), as :func:`linear` (PyG's is Glorot)."""
    bound = num_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))
