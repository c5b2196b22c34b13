"""FedGKD's distillation of a client's graph into a small one, and its losses.

Pan et al. 2023, Sec. 5.2 and Algorithm 2. Symbols: X^s features, y^s labels, A
adjacency of the distilled graph, W the client's model, gamma sparsity, tau_g Gumbel
temperature, E_d steps. Pairs of nodes u < v are numbered row by row.

FedGKD's ablation (Pan et al. 2023, App. C) distils once, before training, with the
method of Jin et al. 2022, *Condensing Graphs via One-Step Gradient Matching*
(DosCond), arXiv:2206.07746.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from .graphs.whole_graph import DenseGraph, NodeStructure
from .models.node_gnn import NodeGNN

ONE_HOT_SHARE = 0.9  # what a learned label gives its class before the first step


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """A distilled graph as the model sees it.

    ``x`` (num_nodes, D), ``h`` (num_nodes, d) embeddings, ``y`` (num_nodes, C) label
    shares, ``adjacency`` (num_nodes, num_nodes) of 0 and 1; ``losses`` before each
    step.
    """

    x: Tensor
    h: Tensor
    y: Tensor
    adjacency: Tensor
    losses: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to distil.

    ``scale`` is the standard deviation of the features at the start: they are learned
    in this unit, and inner products are those of features in this unit.
    ``learning_rate`` is Adam's step in it; the paper names none. ``temperature`` is
    tau_g.
    """

    steps: int
    scale: float = 1.0
    learning_rate: float = 0.01
    gamma: float = 0.75
    temperature: float = 1.0


# The graph ---------------------------------------------------------------------------


def edge_scores(x: Tensor, gamma: float) -> Tensor:
    """a_uv = <x_u, x_v> / sqrt(D) - gamma of all pairs u < v, shape (num_pairs,).

    Source
    ------
    Pan et al. 2023, Eq. (5). Differs by the root: products of standard normal features
    have a standard deviation of sqrt(D), beside which the paper's gamma up to 5 is
    nothing.
    """
    rows, columns = torch.triu_indices(len(x), len(x), 1, device=x.device)
    products = (x @ x.t())[rows, columns]
    scores: Tensor = products / x.shape[1] ** 0.5 - gamma
    return scores


def straight_through(scores: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Sample edges: values 0 or 1, gradients those of the sigmoid.

    Parameters
    ----------
    scores, noise : tensors, shape (num_pairs,)
        a_uv, and omega - omega' of standard Gumbel numbers.
    temperature : float
        tau_g.

    Source
    ------
    Pan et al. 2023, Eq. (6), with the straight-through trick it names.
    """
    share = torch.sigmoid((scores + noise) / temperature)
    hard = (scores + noise > 0).to(share.dtype)  # share > 1/2
    return hard + (share - share.detach())


def to_adjacency(edges: Tensor, num_nodes: int) -> Tensor:
    """Symmetric matrix with an empty diagonal from values of pairs u < v."""
    rows, columns = torch.triu_indices(num_nodes, num_nodes, 1, device=edges.device)
    upper = edges.new_zeros(num_nodes, num_nodes).index_put((rows, columns), edges)
    return upper + upper.t()


def gumbel_noise(seed: int, steps: int, num_nodes: int) -> Tensor:
    """Omega - omega' for every step and pair, shape (steps, num_pairs).

    The same for all clients that were sent the same ``seed``: what differs between
    their distilled graphs is then their models. The paper draws independently.
    """
    rng = np.random.default_rng(seed)
    num_pairs = num_nodes * (num_nodes - 1) // 2
    first, second = rng.gumbel(size=(2, steps, num_pairs))
    return torch.from_numpy((first - second).astype(np.float32))


# The model on it ---------------------------------------------------------------------


def soft_cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    """Mean over nodes of -sum_c share_c log softmax(logits)_c."""
    return -(shares * torch.log_softmax(logits, 1)).sum(1).mean()


def label_logits(y: Tensor, num_classes: int) -> Tensor:
    """Z with softmax(Z) = 0.9 on the class of ``y``, the rest spread evenly.

    One-hot labels themselves cannot be learned: cross-entropy is linear in them and
    has no minimum.
    """
    share = ONE_HOT_SHARE if num_classes > 1 else 1.0
    gap = np.log(share * max(num_classes - 1, 1) / (1 - share)) if share < 1 else 0.0
    return nn.functional.one_hot(y, num_classes).float() * float(gap)


def distil(
    model: NodeGNN, x0: Tensor, y0: Tensor, noise: Tensor, recipe: Recipe
) -> Distilled:
    """Fit a small graph to a model, which is left alone.

    Parameters
    ----------
    model : NodeGNN
    x0 : tensor, shape (num_nodes, D)
        Common start, of unit scale.
    y0 : int64 tensor, shape (num_nodes,)
    noise : tensor, shape (steps, num_pairs)
    recipe : Recipe

    Source
    ------
    Pan et al. 2023, Algorithm 2. Differs: labels are a softmax of what is learned; the
    graph that is returned has an edge where a_uv > 0, without noise.
    """
    frozen = copy.deepcopy(model).requires_grad_(False)
    num_classes = frozen.readout.out_features
    units = x0.detach().clone().requires_grad_(True)  # features, in units of the scale
    logits = label_logits(y0, num_classes).to(x0.device).requires_grad_(True)
    optimizer = Adam([units, logits], lr=recipe.learning_rate, fused=True)
    losses = []
    for draw in noise[: recipe.steps]:
        optimizer.zero_grad(set_to_none=True)
        scores = edge_scores(units, recipe.gamma)
        edges = straight_through(scores, draw, recipe.temperature)
        adjacency = to_adjacency(edges, len(units))
        shares = torch.softmax(logits, 1)
        out = frozen.logits(recipe.scale * units, DenseGraph(adjacency))
        loss = soft_cross_entropy(out, shares)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    shares = torch.softmax(logits.detach(), 1)
    return settle(frozen, units.detach(), shares, recipe, losses)


@torch.no_grad()
def settle(
    model: NodeGNN,
    units: Tensor,
    shares: Tensor,
    recipe: Recipe,
    losses: Sequence[Tensor] = (),
) -> Distilled:
    """Return the graph without noise, and the model's embeddings of its nodes."""
    scores = edge_scores(units, recipe.gamma)
    adjacency = to_adjacency((scores > 0).to(units.dtype), len(units))
    x = recipe.scale * units
    return Distilled(
        x=x,
        h=model.represent(x, DenseGraph(adjacency)),
        y=shares,
        adjacency=adjacency,
        losses=tuple(float(loss) for loss in losses),
    )


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
        scores = edge_scores(units, recipe.gamma)
        edges = straight_through(scores, draw, recipe.temperature)
        adjacency = to_adjacency(edges, len(units))
        found = graph_gradients(model, recipe.scale * units, DenseGraph(adjacency), y0)
        loss = gradient_distance(found, target)
        (units.grad,) = torch.autograd.grad(loss, [units])
        optimizer.step()
        losses.append(loss.detach())
    shares = nn.functional.one_hot(y0, final.readout.out_features).to(x0.dtype)
    return settle(final, units.detach(), shares, recipe, losses)
