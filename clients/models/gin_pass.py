"""All layers of a GIN in one step of autograd, forward and backward by hand.

A client's graphs are so few that what autograd does around each operator takes as long
as the operator. Operators are those that autograd calls for the layers one by one, in
the same order, or give the same bits; buffers are reused where nobody needs what they
hold. Rows beyond those of nodes pad what is multiplied, and reach no node's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.ops import (
    DropoutMasks,
    relu_layer,
    sum_bags,
    sum_neighbours,
    sum_pool,
    sum_rows,
)
from ..graphs.products import linear_relu, padded, times

_OF_LAYER = 4  # weight and bias of either linear map
_Weights = Sequence[Tensor]


class _Rows(NamedTuple):
    """A batch's nodes as rows, some more than there are nodes if that is of use."""

    num_nodes: int
    batch: Batch
    offsets: Tensor | None  # of the columns of the padded adjacency; None: not padded
    graph_of_node: Tensor

    @classmethod
    def of(cls, x: Tensor, batch: Batch, weights: _Weights) -> _Rows:
        """Pad the batch whose node features are ``x``, if that is of use."""
        num_nodes, graph_of_node = x.shape[0], batch.graph_of_node
        more = padded(x, weights[:-2:2]) - num_nodes
        if not more:
            return cls(num_nodes, batch, None, graph_of_node)
        offsets = batch.adjacency.crow_indices()
        parts = [torch.cat([t, t[-1:].expand(more)]) for t in (offsets, graph_of_node)]
        return cls(num_nodes, batch, *parts)

    def sum_neighbours(self, x: Tensor) -> Tensor:
        """Sum over neighbours: 0 in rows that are no nodes."""
        if self.offsets is None:
            return sum_rows(self.batch.adjacency, x)
        return sum_bags(self.batch.adjacency.col_indices(), self.offsets, x)


def represent(
    x: Tensor, batch: Batch, weights: _Weights, masks: DropoutMasks | None
) -> Tensor:
    """GIN layers, sum pooling and one linear layer with ReLU.

    Parameters
    ----------
    x : tensor, shape (num_nodes, hidden)
    batch : Batch
    weights : sequence of tensors
        Weight and bias of both linear maps of each layer, and of the last one.
    masks : DropoutMasks, optional
        Of each layer, and of the last map. Without them there is no dropout.

    Returns
    -------
    tensor, shape (num_graphs, hidden)
    """
    if torch.is_grad_enabled():
        return _Represent.apply(x, batch, masks, *weights)  # type: ignore[no-any-return,no-untyped-call]
    return _forward(x, _Rows.of(x, batch, weights), weights, masks, [])


def _forward(
    x: Tensor,
    rows: _Rows,
    weights: _Weights,
    masks: DropoutMasks | None,
    kept: list[Tensor],
) -> Tensor:
    """Compute the output; append to ``kept`` what gradients need."""
    num_layers = len(weights) // _OF_LAYER
    for k in range(num_layers):
        first, bias, second, other = weights[_OF_LAYER * k : _OF_LAYER * (k + 1)]
        z = rows.sum_neighbours(x)
        z[: x.shape[0]].add_(x)
        h = linear_relu(z, first, bias)
        x = linear_relu(h, second, other)
        if masks is not None:
            x[: rows.num_nodes].mul_(masks.layers[k])
        kept += z, h, x
    pooled = sum_rows(rows.batch.membership, x[: rows.num_nodes])
    kept.append(pooled)
    post, bias = weights[-2:]
    g = torch.addmm(bias, pooled, post.t()).relu_()
    return g if masks is None else g.mul_(masks.layers[num_layers])


class _Represent(torch.autograd.Function):
    @override
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, batch: Batch, masks: DropoutMasks | None, *weights: Tensor
    ) -> Tensor:
        kept: list[Tensor] = []
        rows = _Rows.of(x, batch, weights)
        g = _forward(x, rows, weights, masks, kept)
        ctx.save_for_backward(g, x, *weights, *kept)
        ctx.rows, ctx.masks, ctx.num_weights = rows, masks, len(weights)
        return g

    @override
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, start, *saved = ctx.saved_tensors
        weights, kept = saved[: ctx.num_weights], saved[ctx.num_weights :]
        rows, masks = ctx.rows, ctx.masks
        if torch.is_grad_enabled():  # gradients of gradients are asked for
            inputs = [start, *weights]
            of_all = _gradients(inputs, rows.batch, masks, grads[0])
            return of_all[0], None, None, *of_all[1:]
        scale = None if masks is None else masks.scale
        found: list[Tensor] = []  # of weights, the last layer's first
        d = _through_relu(grads[0], g, scale)
        pooled = kept.pop()
        found += d.sum(0), d.t().mm(pooled)
        d = d.mm(weights[-2]).index_select(0, rows.graph_of_node)
        n = rows.num_nodes
        for k in reversed(range(len(weights) // _OF_LAYER)):
            first, _, second, _ = weights[_OF_LAYER * k : _OF_LAYER * (k + 1)]
            x, h, z = kept.pop(), kept.pop(), kept.pop()
            d = _through_relu(d, x, scale, out=d)
            found += d[:n].sum(0), d[:n].t().mm(h[:n])
            d = times(d, second)
            d = _through_relu(d, h, None, out=d)
            found += d[:n].sum(0), d[:n].t().mm(z[:n])
            d = times(d, first)
            d = rows.sum_neighbours(d).add_(d)  # the adjacency is symmetric
        d = d[:n]
        return d, None, None, *reversed(found)


def _gradients(
    inputs: Sequence[Tensor], batch: Batch, masks: DropoutMasks | None, grad: Tensor
) -> list[Tensor | None]:
    """Gradients of the node features and weights, layer by layer, to be derived too."""
    x, *weights = inputs
    num_layers = len(weights) // _OF_LAYER
    for k in range(num_layers):
        first, bias, second, other = weights[_OF_LAYER * k : _OF_LAYER * (k + 1)]
        z = x + sum_neighbours(x, batch.adjacency)
        h = torch.relu(torch.addmm(bias, z, first.t()))
        x = relu_layer(torch.addmm(other, h, second.t()), masks, k)
    pooled = sum_pool(x, batch.membership, batch.graph_of_node)
    post, bias = weights[-2:]
    g = relu_layer(torch.addmm(bias, pooled, post.t()), masks, num_layers)
    asked = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(g, asked, grad, create_graph=True))
    return [next(found) if t.requires_grad else None for t in inputs]


def _through_relu(
    grad: Tensor, y: Tensor, scale: float | None, *, out: Tensor | None = None
) -> Tensor:
    """Gradient before ReLU, and a mask of 0 and ``scale``, whose result was ``y``."""
    backward = torch.ops.aten.threshold_backward
    if out is None:
        out = backward(grad, y, 0.0)
    else:
        backward.grad_input(grad, y, 0.0, grad_input=out)
    return out if scale is None else out.mul_(scale)
