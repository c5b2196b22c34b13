"""FedGKD's distillation of a client's graph into a small one, and its losses.

Pan et al. 2023, Sec. 5.2 and Algorithm 2. Symbols: X^s features, y^s labels, A
adjacency of the distilled graph, W the client's model, gamma sparsity, tau_g Gumbel
temperature, E_d steps. Pairs of nodes u < v are numbered row by row.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from .graphs.whole_graph import DenseGraph
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

    ``learning_rate`` is Adam's step; the paper names none. ``temperature`` is tau_g.
    """

    steps: int
    learning_rate: float = 0.01
    gamma: float = 0.75
    temperature: float = 1.0


# The graph ---------------------------------------------------------------------------


def edge_scores(x: Tensor, gamma: float) -> Tensor:
    """a_uv = <x_u, x_v> / sqrt(D) - gamma of all pairs u < v, shape (num_pairs,).

    Source
    ------
    Pan et al. 2023, Eq. (5). Differs by the root, without which gamma is nothing.
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

    The same for the same ``seed``: what differs between clients' distilled graphs is
    then their models. The paper draws independently.
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
    x0 : tensor, shape (num_nodes, D)
        Common start, of unit scale.
    y0 : int64 tensor, shape (num_nodes,)
    noise : tensor, shape (steps, num_pairs)

    Source
    ------
    Pan et al. 2023, Algorithm 2. Differs: labels are a softmax of what is learned; the
    graph that is returned has an edge where a_uv > 0, without noise.
    """
    frozen = copy.deepcopy(model).requires_grad_(False)
    num_classes = frozen.out_features
    x = x0.detach().clone().requires_grad_(True)
    logits = label_logits(y0, num_classes).to(x0.device).requires_grad_(True)
    optimizer = Adam([x, logits], lr=recipe.learning_rate, fused=True)
    losses = []
    for draw in noise[: recipe.steps]:
        optimizer.zero_grad(set_to_none=True)
        scores = edge_scores(x, recipe.gamma)
        edges = straight_through(scores, draw, recipe.temperature)
        shares = torch.softmax(logits, 1)
        out = frozen.logits(x, DenseGraph(to_adjacency(edges, len(x))))
        loss = soft_cross_entropy(out, shares)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    x = x.detach()
    is_edge = edge_scores(x, recipe.gamma) > 0
    adjacency = to_adjacency(is_edge.to(x.dtype), len(x))
    return Distilled(
        x=x,
        h=frozen.represent(x, DenseGraph(adjacency)),
        y=torch.softmax(logits.detach(), 1),
        adjacency=adjacency,
        losses=tuple(float(loss) for loss in losses),
    )
