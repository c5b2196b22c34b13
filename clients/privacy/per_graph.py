"""Gradients of single graphs: clipped one by one, summed, with noise; their account.

What is protected is one training graph with its label, added or removed. A step takes
each graph with probability q, clips its gradient by all parameters together to C, adds
N(0, (sigma C)^2) to the sum and divides by the expected number of graphs.

Graphs of a batch do not meet in a model without batch norm. Let X be the input rows of
a linear map, and D the gradients of its output rows. Those of graph i, X_i and D_i,
give its gradient X_i' D_i; so one backward pass gives all norms and the clipped sum.
Other models take their graphs one after the other.

Source
------
Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; Bu et al. 2023, arXiv:2210.00038
(book-keeping). Differs: rows are nodes, added up by graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph_flwr.core.errors import ConfigError

from .stream import Noise


class Rows(NamedTuple):
    """Input of a layer, its output, and the graph of each row."""

    x: Tensor
    out: Tensor
    graph: Tensor


def check_model(model: nn.Module) -> None:
    """Refuse a model in which graphs of a batch meet.

    Raises
    ------
    ConfigError
    """
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            raise ConfigError(
                f"privacy.graph-clip needs a model in which graphs do not meet, got"
                f" {type(part).__name__} ({name}), which mixes those of a batch; set it"
                " to 0 in the run config, or take another method"
            )


@contextmanager
def recorded(
    model: nn.Module, graph_of_node: Tensor
) -> Iterator[dict[nn.Module, Rows]]:
    """Keep input and output of every module with tensors of its own, in this block.

    These are linear maps, and biases that are added to what the module returns.
    """
    found: dict[nn.Module, Rows] = {}
    of_graphs = torch.arange(int(graph_of_node[-1]) + 1, device=graph_of_node.device)

    def keep(part: nn.Module, given: Any, out: Tensor) -> Tensor:
        graph = graph_of_node if len(out) == len(graph_of_node) else of_graphs
        found[part] = Rows(given[0].detach(), out, graph)
        return out.clone()  # what comes next may write there

    parts = [m for m in model.modules() if any(True for _ in m.parameters(False))]
    hooks = [part.register_forward_hook(keep) for part in parts]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def by_book_keeping(
    loss: Tensor, found: Mapping[nn.Module, Rows], num_graphs: int, clip: float
) -> dict[Tensor, Tensor]:
    """Sum of the graphs' gradients, each clipped, by parameter.

    Parameters
    ----------
    loss : tensor, scalar
        Sum of the losses of the graphs.
    found : mapping
        As of :func:`recorded`, for the forward pass of ``loss``.
    """
    grads = torch.autograd.grad(loss, [rows.out for rows in found.values()])
    layers = list(zip(found.items(), grads, strict=True))
    squares = torch.zeros(num_graphs, dtype=torch.float64, device=loss.device)
    for (part, (x, _, graph)), d in layers:
        by_graph = d.new_zeros(num_graphs, d.shape[1]).index_add_(0, graph, d)
        if part.bias is not None:
            squares += by_graph.double().square().sum(1)
        if hasattr(part, "weight"):
            squares += _squares(x, d, graph, num_graphs)
    scale = clip_scale(squares, clip).to(loss.dtype)
    total: dict[Tensor, Tensor] = {}
    for (part, (x, _, graph)), d in layers:
        rows = scale[graph][:, None]
        # Not a product: what is infinite stays so times 0.
        d = torch.where(rows > 0, d * rows, 0.0)
        if part.bias is not None:
            total[part.bias] = d.sum(0)  # type: ignore[index]
        if hasattr(part, "weight"):
            total[part.weight] = d.t() @ torch.where(rows > 0, x, 0.0)  # type: ignore[index]
    return total


def _squares(x: Tensor, d: Tensor, graph: Tensor, num_graphs: int) -> Tensor:
    """Squared norm of X_i' D_i for every graph i."""
    if len(x) == num_graphs:
        return x.double().square().sum(1) * d.double().square().sum(1)
    sizes = torch.bincount(graph, minlength=num_graphs).tolist()
    # One by one: padded to the largest graph, all would be as large as that.
    pairs = zip(torch.split(x, sizes), torch.split(d, sizes), strict=True)
    return torch.stack([(a.t() @ b).square().sum() for a, b in pairs]).double()


def clip_scale(squares: Tensor, clip: float) -> Tensor:
    """min(1, C / norm), given squared norms; 0 if a norm is not finite."""
    scale = (clip / squares.sqrt()).clamp(max=1.0)  # norm 0: infinite, then 1
    return torch.where(squares.isfinite(), scale, 0.0)


def one_by_one(
    losses: Iterator[Tensor], parameters: Sequence[Tensor], clip: float
) -> dict[Tensor, Tensor]:
    """As :func:`by_book_keeping`, for any model, from the loss of each graph."""
    total = {p: torch.zeros_like(p) for p in parameters}
    for loss in losses:
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
        squares = torch.stack([g.double().square().sum() for g in grads]).sum()
        if scale := float(clip_scale(squares, clip)):
            for parameter, g in zip(parameters, grads, strict=True):
                total[parameter] += g * scale
    return total


def add_noise(
    total: Mapping[Tensor, Tensor], *, scale: float, expected: float, rng: Noise
) -> None:
    """Set gradients: (sum + noise of this standard deviation) / expected graphs."""
    for parameter, summed in total.items():
        noise = torch.from_numpy(np.asarray(rng.normal(0.0, scale, summed.shape)))
        noisy = (summed.cpu().double() + noise) / expected  # rounded last
        parameter.grad = noisy.to(parameter.dtype).to(parameter.device)
