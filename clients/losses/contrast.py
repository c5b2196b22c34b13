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


def info_nce(
    first: Tensor,
    second: Tensor,
    stored: Tensor,
    chosen: Tensor,
    temperature: float,
) -> Tensor:
    """InfoNCE between two views of the same graphs, with negatives from a store.

    Parameters
    ----------
    first, second : tensors, shape (n, d)
        Embeddings of views 0 and 1 of each graph, row by row.
    stored : tensor, shape (N, d)
        Embeddings of the noisy graphs in the store, encoded once for all rows.
    chosen : int64 tensor, shape (n, k)
        Rows of ``stored`` that are the negatives of each graph; a row of -1 where
        there are none: that graph's loss is 0.
    temperature : float
        tau > 0.

    Returns
    -------
    tensor, scalar
        Mean over the n graphs. With the cosine s, in
        ``[log(1 + k exp(-2 / tau)), log(1 + k exp(2 / tau))]`` if all have negatives.

    Source
    ------
    FGCL (Yang et al. 2022, arXiv:2207.11836), Eq. (6): negatives are compared with
    view 1 only.
    """
    if not chosen.numel():
        return 0.0 * first.sum()
    h0, h1 = nn.functional.normalize(first), nn.functional.normalize(second)
    positive = (h0 * h1).sum(1, keepdim=True)  # (n, 1)
    if len(stored):
        everything = h1 @ nn.functional.normalize(stored).t()  # (n, N)
        negative = everything.gather(1, chosen.clamp(min=0))  # (n, k)
    else:
        negative = positive.new_zeros(chosen.shape)
    scores = torch.cat([positive, negative], 1) / temperature
    per_graph = torch.logsumexp(scores, 1) - scores[:, 0]
    return torch.where(chosen[:, 0] >= 0, per_graph, 0.0).mean()
