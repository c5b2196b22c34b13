"""Static distillation: a small graph whose gradients are those of the client's own.

FedGKD's ablation (Pan et al. 2023, App. C) distils once, before training, with the
method of Jin et al. 2022, *Condensing Graphs via One-Step Gradient Matching*
(DosCond), arXiv:2206.07746.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Adam

from .fedgkd_distillation import (
    Distilled,
    Recipe,
    edge_scores,
    settle,
    straight_through,
    to_adjacency,
)
from .graphs.dense_graph import DenseGraph
from .graphs.whole_graph import NodeStructure
from .models.node_gnn import NodeGNN

_EPS = 1e-6


def gradient_distance(ours: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Sum over tensors and rows of 1 - cosine; a bias counts as one row.

    Source
    ------
    Jin et al. 2022, there by column: their weights are transposed.
    """
    parts = []
    for a, b in zip(ours, target, strict=True):
        rows_a, rows_b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
        cosine = (rows_a * rows_b).sum(1) / (
            rows_a.norm(dim=1) * rows_b.norm(dim=1) + _EPS
        )
        parts.append((1 - cosine).sum())
    return torch.stack(parts).sum()


def graph_gradients(
    model: NodeGNN, x: Tensor, graph: NodeStructure, y: Tensor
) -> list[Tensor]:
    """Gradients of cross-entropy on a graph by parameter, differentiable themselves."""
    loss = nn.functional.cross_entropy(model.logits(x, graph), y)
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=True))


def match_gradients(
    starts: Iterable[tuple[NodeGNN, Sequence[Tensor]]],
    final: NodeGNN,
    x0: Tensor,
    y0: Tensor,
    noise: Tensor,
    recipe: Recipe,
) -> Distilled:
    """Fit a small graph by one step per random start of the model.

    Parameters
    ----------
    starts : iterable of (NodeGNN, gradients)
        For each step an untrained model and its gradients on the client's training
        nodes, one per parameter.
    final : NodeGNN
        Model that embeds the distilled nodes.
    x0, y0, noise, recipe
        As for ``distillation.distil``; labels stay as they are.
    """
    units = x0.detach().clone().requires_grad_(True)
    optimizer = Adam([units], lr=recipe.learning_rate, fused=True)
    losses = []
    for draw, (model, target) in zip(noise[: recipe.steps], starts, strict=False):
        optimizer.zero_grad(set_to_none=True)
        scores = edge_scores(units, recipe.gamma, divide_by_root=recipe.divide_by_root)
        edges = straight_through(scores, draw, recipe.temperature)
        adjacency = to_adjacency(edges, len(units))
        found = graph_gradients(model, recipe.scale * units, DenseGraph(adjacency), y0)
        loss = gradient_distance(found, target)
        (units.grad,) = torch.autograd.grad(loss, [units])
        optimizer.step()
        losses.append(loss.detach())
    shares = nn.functional.one_hot(y0, final.readout.out_features).to(x0.dtype)
    return settle(final, units.detach(), shares, recipe, losses)
