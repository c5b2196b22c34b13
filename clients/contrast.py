"""Contrastive and distillation losses over graph embeddings, as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def nt_xent(u: Tensor, v: Tensor, temperature: float, *, normalize: bool) -> Tensor:
    """NT-Xent between two views of the same graphs.

    Parameters
    ----------
    u, v : tensors, shape (B, d)
        Embeddings of a graph and of its second view, row by row.
    temperature : float
    normalize : bool
        Bring rows to unit length first (SimCLR). The paper writes plain dot products;
        see :mod:`fedgraph_flwr.methods.fclg`.

    Returns
    -------
    tensor, scalar
        Mean over all 2B embeddings of -log of the softmax weight of the other view
        among the 2B - 1 others. 0 for B = 1.

    Source
    ------
    FCLG, Eq. (5) and (6).
    """
    z = torch.cat([u, v])
    if normalize:
        z = nn.functional.normalize(z, dim=1)
    similarity = z @ z.t() / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    partner = torch.arange(len(z), device=z.device).roll(len(u))
    return nn.functional.cross_entropy(
        similarity.masked_fill(itself, float("-inf")), partner
    )


def distill_kl(ours: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean over rows of KL(softmax(teacher) || softmax(ours)) at ``temperature``.

    Source
    ------
    FCLG, Eq. (2): the expectation is under the global model.
    """
    return nn.functional.kl_div(
        torch.log_softmax(ours / temperature, 1),
        torch.log_softmax(teacher / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )


def distill_mse(ours: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of the squared distance (FCLG, Eq. 3)."""
    return (ours - teacher).square().sum(1).mean()
