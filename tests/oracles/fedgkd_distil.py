"""FedGKD's distillation as a whole, written from the specification in doubles.

Pan et al. 2023, Sec. 5.2 and Algorithm 2.
Nothing of the code under test is used. The adjacency is an input of the loss here, and
the way from an edge back to the features is the chain rule by hand: the derivative of
a sampled edge is that of p = sigmoid((a + noise) / tau_g).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from .adam import Adam


@dataclass(frozen=True)
class Result:
    """X, H, y and A at the end; losses before each step."""

    x: np.ndarray
    h: np.ndarray
    y: np.ndarray
    adjacency: np.ndarray
    losses: list


def edge(x, u, v, gamma):
    """a_uv (5)."""
    return float(x[u] @ x[v]) / math.sqrt(len(x[u])) - gamma


def sample(x, draw, gamma, tau_g):
    """Sampled adjacency (6), and its derivative by a_uv; pairs row by row."""
    n = len(x)
    adjacency, slope = np.zeros((n, n)), np.zeros((n, n))
    pair = 0
    for u in range(n):
        for v in range(u + 1, n):
            p = (edge(x, u, v, gamma) + draw[pair]) / tau_g
            p = 1 / (1 + math.exp(-p))
            adjacency[u, v] = adjacency[v, u] = 1.0 if p > 0.5 else 0.0
            slope[u, v] = p * (1 - p) / tau_g
            pair += 1
    return adjacency, slope


def noise_free(x, gamma):
    n = len(x)
    adjacency = np.zeros((n, n))
    for u in range(n):
        for v in range(n):
            if u != v and edge(x, u, v, gamma) > 0:
                adjacency[u, v] = 1.0
    return adjacency


def through_edges(x, slope, by_entry):
    """Gradient of the loss by X along the edges, from that by A's entries."""
    found = np.zeros_like(x)
    s = 1 / math.sqrt(x.shape[1])
    for u in range(len(x)):
        for v in range(u + 1, len(x)):
            by_score = (by_entry[u, v] + by_entry[v, u]) * slope[u, v]
            found[u] += by_score * s * x[v]
            found[v] += by_score * s * x[u]
    return found


def embed(x, adjacency, convs):
    """H: convolutions of the graph with loops, each followed by ReLU."""
    loops = adjacency + torch.eye(len(x), dtype=torch.float64)
    degree = loops.sum(1)
    share = loops / torch.sqrt(torch.outer(degree, degree))
    for weight, bias in convs:
        x = torch.clamp((share @ x) @ weight.T + bias, min=0)
    return x


def log_shares(x, adjacency, weights):
    """Log of the classes' shares; weights end with those of the linear readout."""
    convs, (weight, bias) = weights[:-1], weights[-1]
    out = embed(x, adjacency, convs) @ weight.T + bias
    return out - torch.log(torch.exp(out).sum(1, keepdim=True))


def shares_of(z):
    raised = np.exp(z)
    return raised / raised.sum(1, keepdims=True)


def _tensors(weights):
    return [[torch.as_tensor(t, dtype=torch.float64) for t in pair] for pair in weights]


def _settled(weights, units, y, losses, *, gamma, scale):
    adjacency = noise_free(units, gamma)
    x = scale * units
    h = embed(torch.tensor(x), torch.tensor(adjacency), weights[:-1]).numpy()
    return Result(x, h, y, adjacency, losses)


def distil(weights, x0, y0, draws, *, rate, gamma, tau_g, scale):
    """X, H of the model with ``weights`` [(W, b), ...]; a step for each of ``draws``.

    Features are learned in units of ``scale``.
    """
    weights = _tensors(weights)
    num_classes = len(weights[-1][1])
    units = np.array(x0, np.float64)
    # y starts with 0.9 on its class; the logarithm of shares is one of their logits.
    z = np.full((len(x0), num_classes), math.log(0.1 / (num_classes - 1)))
    for u, c in enumerate(y0):
        z[u, c] = math.log(0.9)
    for_units, for_z, losses = Adam(rate), Adam(rate), []
    for draw in draws:
        adjacency, slope = sample(units, draw, gamma, tau_g)
        x = torch.tensor(scale * units, requires_grad=True)
        edges = torch.tensor(adjacency, requires_grad=True)
        logs = log_shares(x, edges, weights)
        y = shares_of(z)
        loss = -(torch.tensor(y) * logs).sum() / len(units)
        by_x, by_entry = torch.autograd.grad(loss, [x, edges])
        by_units = scale * by_x.numpy() + through_edges(units, slope, by_entry.numpy())
        # Of -sum_c y_c l_c by z_k: -y_k (l_k - sum_c y_c l_c).
        found = logs.detach().numpy()
        by_z = -y * (found - (y * found).sum(1, keepdims=True)) / len(units)
        units = for_units.step(units, by_units)
        z = for_z.step(z, by_z)
        losses.append(loss.item())
    y = shares_of(z)
    return _settled(weights, units, y, losses, gamma=gamma, scale=scale)


def _gradients(weights, x, edges, y0):
    """Gradients of the mean cross-entropy by all weights, differentiable themselves."""
    leaves = [t.clone().requires_grad_(True) for pair in weights for t in pair]
    pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
    logs = log_shares(x, edges, pairs)
    loss = -sum(logs[u, c] for u, c in enumerate(y0)) / len(y0)
    return torch.autograd.grad(loss, leaves, create_graph=True)


def match(starts, final, x0, y0, draws, *, rate, gamma, tau_g, scale):
    """Static distillation: X whose gradients at ``starts`` point as the targets do.

    ``starts``: for each step weights as in :func:`distil`, and target gradients; a
    step lowers the sum over rows of 1 - cosine (Jin et al. 2022).
    """
    units, for_units, losses = np.array(x0, np.float64), Adam(rate), []
    for draw, (weights, targets) in zip(draws, starts, strict=True):
        adjacency, slope = sample(units, draw, gamma, tau_g)
        x = torch.tensor(scale * units, requires_grad=True)
        edges = torch.tensor(adjacency, requires_grad=True)
        loss = torch.zeros((), dtype=torch.float64)
        found = _gradients(_tensors(weights), x, edges, y0)
        for ours, theirs in zip(found, targets, strict=True):
            theirs = torch.as_tensor(theirs, dtype=torch.float64)
            width = ours.shape[-1]  # a bias is one row
            rows = ours.reshape(-1, width), theirs.reshape(-1, width)
            for a, b in zip(*rows, strict=True):
                if not a.any():  # a dead neuron: it stays dead under a small change
                    loss = loss + 1
                    continue
                lengths = torch.sqrt((a * a).sum()) * torch.sqrt((b * b).sum())
                loss = loss + 1 - (a * b).sum() / (lengths + 1e-6)
        by_x, by_entry = torch.autograd.grad(loss, [x, edges])
        units = for_units.step(
            units,
            scale * by_x.numpy() + through_edges(units, slope, by_entry.numpy()),
        )
        losses.append(loss.item())
    y = np.zeros((len(x0), len(_tensors(final)[-1][1])))
    for u, c in enumerate(y0):
        y[u, c] = 1.0
    return _settled(_tensors(final), units, y, losses, gamma=gamma, scale=scale)
