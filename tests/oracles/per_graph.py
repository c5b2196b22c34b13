"""DP-SGD's clipped sum (Abadi et al. 2016, Algorithm 1), by one backward pass a graph.

Transcribed from the equations: no linear map is known here.
"""

from __future__ import annotations

import torch


def gradients(client, positions):
    """Gradient of each graph's loss as one vector, (num_graphs, num_numbers)."""
    found = []
    for position in positions:
        batch = client.data.graphs.batch(positions[positions == position])
        client.model.zero_grad()
        (client.loss(batch, None) * client.weight(batch)).backward()
        flat = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in client.model.parameters()
        ]
        found.append(torch.cat([g.flatten() for g in flat]).double())
    return torch.stack(found)


def clipped(gradients, clip):
    """Scale each row to at most this norm."""
    norms = gradients.norm(dim=1, keepdim=True)
    return gradients * (clip / norms).clamp(max=1)
