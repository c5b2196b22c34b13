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


def distil(weights, x0, y0, draws, *, rate, gamma, tau_g):
    """X, H of the model with ``weights`` [(W, b), ...]; a step for each draw."""
    weights = _tensors(weights)
    num_classes = len(weights[-1][1])
    x_now = np.array(x0, np.float64)
    # y starts with 0.9 on its class; the logarithm of shares is one of their logits.
    z = np.full((len(x0), num_classes), math.log(0.1 / (num_classes - 1)))
    for u, c in enumerate(y0):
        z[u, c] = math.log(0.9)
    for_x, for_z, losses = Adam(rate), Adam(rate), []
    for draw in draws:
        adjacency, slope = sample(x_now, draw, gamma, tau_g)
        x = torch.tensor(x_now, requires_grad=True)
        edges = torch.tensor(adjacency, requires_grad=True)
        logs = log_shares(x, edges, weights)
        y = shares_of(z)
        loss = -(torch.tensor(y) * logs).sum() / len(x_now)
        by_x, by_entry = torch.autograd.grad(loss, [x, edges])
        by_x = by_x.numpy() + through_edges(x_now, slope, by_entry.numpy())
        # Of -sum_c y_c l_c by z_k: -y_k (l_k - sum_c y_c l_c).
        found = logs.detach().numpy()
        by_z = -y * (found - (y * found).sum(1, keepdims=True)) / len(x_now)
        x_now = for_x.step(x_now, by_x)
        z = for_z.step(z, by_z)
        losses.append(loss.item())
    adjacency = noise_free(x_now, gamma)
    h = embed(torch.tensor(x_now), torch.tensor(adjacency), weights[:-1]).numpy()
    return Result(x_now, h, shares_of(z), adjacency, losses)
