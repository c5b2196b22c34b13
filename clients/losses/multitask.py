"""Losses of several tasks per graph; some labels are missing.

Labels are a matrix (num_graphs, num_tasks) of floats, NaN where not observed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgraph_flwr.errors import DataError

Loss = Callable[[Tensor, Tensor], Tensor]


def masked_bce(logits: Tensor, y: Tensor) -> Tensor:
    """Mean binary cross-entropy over the observed labels of a batch; 0 if none is.

    Parameters
    ----------
    logits, y : tensors, shape (num_graphs, num_tasks)
        ``y`` is 0, 1 or NaN. A row of NaN changes nothing.

    Source
    ------
    FGCL, Eq. (9); the mask is FedGraphNN's. Every observed label weighs the same, so a
    graph weighs by its number of labels; with batches of one graph this is Eq. (9)
    to the letter.
    """
    return _masked(logits, y, nn.functional.binary_cross_entropy_with_logits)


def masked_l1(predicted: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error over the observed labels of a batch; 0 if none is."""
    return _masked(predicted, y, nn.functional.l1_loss)


def masked_mse(predicted: Tensor, y: Tensor) -> Tensor:
    """Mean squared error over the observed labels of a batch; 0 if none is."""
    return _masked(predicted, y, nn.functional.mse_loss)


def _masked(predicted: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> Tensor:
    check_shapes(tuple(predicted.shape), tuple(y.shape))
    observed = ~torch.isnan(y)
    # NaN times 0 is NaN: targets are replaced, not only masked.
    each = loss(predicted, torch.where(observed, y, 0.0), reduction="none")
    return torch.where(observed, each, 0.0).sum() / observed.sum().clamp(min=1)


def check_shapes(predicted: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Raise DataError unless both shapes are the same and of two axes."""
    if len(y) != 2 or predicted != y:
        raise DataError(
            "predictions and labels must both be of shape (num_graphs, num_tasks), got"
            f" {predicted} and {y}; write one task as one column"
        )
