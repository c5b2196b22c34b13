"""All layers of a GIN in one step of autograd, forward and backward by hand.

A client's graphs are so few that what autograd does around each operator takes as long
as the operator: without this a round of PROTEINS takes 7 to 9 % more
(docs/running.md). Operators are those that autograd calls for the layers one by
one, in the same order, so that numbers are the same to the bit. Hooks on layers are not
called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.ops import dropout_mask, sum_rows

_OF_LAYER = 4  # weight and bias of either linear map
_Masks = Sequence[tuple[Tensor, float]]


def represent(
    x: Tensor,
    batch: Batch,
    weights: Sequence[Tensor],
    p: float,
    generator: torch.Generator | None,
) -> Tensor:
    """GIN layers, sum pooling and one linear layer, each with ReLU and dropout.

    The result has shape (num_graphs, hidden).

    Parameters
    ----------
    x : tensor, shape (num_nodes, hidden)
    weights : sequence of tensors
        Weight and bias of both linear maps of each layer, and of the last one.
    p : float
        Probability of dropout; see ``ops.relu_dropout``.
    generator : torch.Generator, optional
        Without one there is no dropout.
    """
    masks: list[tuple[Tensor, float]] = []
    if generator is not None and p > 0:
        rows = [len(x)] * (len(weights) // _OF_LAYER) + [batch.num_graphs]
        widths = [len(bias) for bias in [*weights[3::_OF_LAYER], weights[-1]]]
        like = (x.new_empty(shape) for shape in zip(rows, widths, strict=True))
        masks = [dropout_mask(each, p, generator) for each in like]
    if torch.is_grad_enabled():
        return _Represent.apply(x, batch, masks, *weights)  # type: ignore[no-any-return,no-untyped-call]
    return _forward(x, batch, masks, weights)[-1]


def _forward(
    x: Tensor, batch: Batch, masks: _Masks, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Compute what gradients need, and the output last."""
    kept: list[Tensor] = []
    num_layers = len(weights) // _OF_LAYER
    for k in range(num_layers):
        first, bias, second, other = weights[_OF_LAYER * k : _OF_LAYER * (k + 1)]
        z = sum_rows(batch.adjacency, x).add_(x)
        h = torch.addmm(bias, z, first.t()).relu_()
        x = torch.addmm(other, h, second.t()).relu_()
        if masks:
            x.mul_(masks[k][0])
        kept += z, h, x
    pooled = sum_rows(batch.membership, x)
    post, bias = weights[-2:]
    g = torch.addmm(bias, pooled, post.t()).relu_()
    if masks:
        g.mul_(masks[num_layers][0])
    return [*kept, pooled, g]


class _Represent(torch.autograd.Function):
    @override
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, batch: Batch, masks: _Masks, *weights: Tensor
    ) -> Tensor:
        *kept, g = _forward(x, batch, masks, weights)
        ctx.save_for_backward(g, *weights, *kept)
        ctx.batch, ctx.num_weights = batch, len(weights)
        ctx.scale = masks[0][1] if masks else None
        return g

    @override
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        g, *saved = ctx.saved_tensors
        weights, kept = saved[: ctx.num_weights], saved[ctx.num_weights :]
        found: list[Tensor] = []  # of weights, the last layer's first
        d, pooled = _through_relu(grad, g, ctx.scale), kept.pop()
        found += d.sum(0), d.t().mm(pooled)
        d = d.mm(weights[-2]).index_select(0, ctx.batch.graph_of_node)
        for k in reversed(range(len(weights) // _OF_LAYER)):
            first, _, second, _ = weights[_OF_LAYER * k : _OF_LAYER * (k + 1)]
            x, h, z = kept.pop(), kept.pop(), kept.pop()
            d = _through_relu(d, x, ctx.scale)
            found += d.sum(0), d.t().mm(h)
            d = _through_relu(d.mm(second), h, None)
            found += d.sum(0), d.t().mm(z)
            d = d.mm(first)
            d = sum_rows(ctx.batch.adjacency, d).add_(d)  # which is symmetric
        return d, None, None, *reversed(found)


def _through_relu(grad: Tensor, y: Tensor, scale: float | None) -> Tensor:
    """Gradient before ReLU, and a mask of 0 and ``scale``, whose result was ``y``."""
    passed: Tensor = torch.ops.aten.threshold_backward(grad, y, 0.0)
    return passed if scale is None else passed.mul_(scale)
