"""Losses and scores of several tasks per graph; some labels are missing.

Labels are a matrix (num_graphs, num_tasks) of floats, NaN where not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from fedgraph_flwr.errors import DataError

Array = NDArray[np.floating]
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
    _check_shapes(tuple(predicted.shape), tuple(y.shape))
    observed = ~torch.isnan(y)
    # NaN times 0 is NaN: targets are replaced, not only masked.
    each = loss(predicted, torch.where(observed, y, 0.0), reduction="none")
    return torch.where(observed, each, 0.0).sum() / observed.sum().clamp(min=1)


@dataclass(frozen=True)
class TaskScores:
    """A score per task, and their mean.

    Parameters
    ----------
    per_task : float64 array, shape (num_tasks,)
        NaN where the task is skipped.
    """

    per_task: NDArray[np.float64]

    @property
    def num_skipped(self) -> int:
        """Number of tasks without a score."""
        return int(np.isnan(self.per_task).sum())

    @property
    def mean(self) -> float:
        """Mean over the tasks that have a score; NaN if none has."""
        found = self.per_task[~np.isnan(self.per_task)]
        return float(found.mean()) if len(found) else math.nan


def roc_auc(scores: Array, y: Array) -> TaskScores:
    """ROC-AUC per task on observed labels; ties count one half.

    A task whose observed labels are all of one class, or none, is skipped.

    Parameters
    ----------
    scores, y : float arrays, shape (num_graphs, num_tasks)
        Larger scores speak for class 1; ``y`` is 0, 1 or NaN.
    """
    return _per_task(scores, y, _auc)


def mean_absolute_error(predicted: Array, y: Array) -> TaskScores:
    """MAE per task on observed labels; a task without any is skipped."""
    return _per_task(predicted, y, lambda p, t: float(np.abs(p - t).mean()))


def root_mean_squared_error(predicted: Array, y: Array) -> TaskScores:
    """RMSE per task on observed labels; a task without any is skipped."""
    return _per_task(predicted, y, lambda p, t: math.sqrt(np.square(p - t).mean()))


def _per_task(
    predicted: Array, y: Array, score: Callable[[Array, Array], float]
) -> TaskScores:
    _check_shapes(predicted.shape, y.shape)
    if not np.isfinite(predicted).all():
        raise DataError(
            "predictions must be finite to be scored, got NaN or infinity; lower the"
            " learning rate"
        )
    found = np.full(y.shape[1], math.nan)
    for task in range(y.shape[1]):
        observed = ~np.isnan(y[:, task])
        if observed.any():
            p, t = predicted[observed, task], y[observed, task]
            found[task] = score(p.astype(np.float64), t.astype(np.float64))
    return TaskScores(found)


def _auc(scores: Array, y: Array) -> float:
    """Mann-Whitney: share of (positive, negative) pairs in the right order."""
    positive = int((y == 1).sum())
    negative = len(y) - positive
    if not positive or not negative:
        return math.nan
    ranks = rankdata(scores)[y == 1].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def _check_shapes(predicted: tuple[int, ...], y: tuple[int, ...]) -> None:
    if len(y) != 2 or predicted != y:
        raise DataError(
            "predictions and labels must both be of shape (num_graphs, num_tasks), got"
            f" {predicted} and {y}; write one task as one column"
        )
