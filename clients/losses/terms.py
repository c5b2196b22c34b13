"""Loss terms that any client can add: a pull to the received model, and a contrast."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def pull(
    named: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float
) -> Tensor:
    """``weight`` ||w - w_received||^2 over trainable shared tensors; 0 if weight is 0.

    Parameters
    ----------
    named : mapping of str to tensor
        w, as trained so far; may hold further tensors.
    received : mapping of str to tensor
        w_received, of the same shapes.
    weight : float
        mu / 2 of FedProx; lambda of FedGKD.

    Source
    ------
    Li et al. 2020 (FedProx), Eq. (2).
    """
    if not weight:
        return torch.zeros(())
    moved = [named[n] - w for n, w in received.items() if named[n].requires_grad]
    return weight * torch.stack([m.square().sum() for m in moved]).sum()


def model_contrast(
    ours: Tensor, towards: Tensor, away: Tensor, temperature: float
) -> Tensor:
    """Pull rows of ``ours`` to those of ``towards``, push them from ``away``.

    Parameters
    ----------
    ours, towards, away : tensors, shape (n, d)
        Embeddings of the same graphs (or nodes) by the model in training and by two
        frozen ones.
    temperature : float

    Returns
    -------
    tensor, shape (n,)
        softplus((cos(ours, away) - cos(ours, towards)) / temperature): the cross
        entropy of choosing ``towards`` of the two. log 2 where both are the same.

    Source
    ------
    Li, He, Song 2021 (MOON), Eq. (3); FCLG, Eq. (7).
    """
    similar = nn.functional.cosine_similarity(ours, towards, dim=1)
    contrary = nn.functional.cosine_similarity(ours, away, dim=1)
    return nn.functional.softplus((contrary - similar) / temperature)
