"""Scores of a classifier beside its accuracy: macro-F1 and ROC-AUC."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.embedding_scores import class_f1

from .multitask_scores import roc_auc

Array = NDArray[np.float64]


def class_scores(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Score predictions of one class per row.

    Parameters
    ----------
    logits : float tensor, shape (N, C)
    y : int64 tensor, shape (N,)
        In [0, C).

    Returns
    -------
    dict
        ``macro-f1``: mean F1 over the classes that occur among the labels or the
        predictions, as ``sklearn.metrics.f1_score(average="macro")``; a class that is
        predicted and has no row counts 0. ``roc-auc``: mean over classes of one against
        the rest, as ``sklearn.metrics.roc_auc_score(multi_class="ovr")``. That function
        refuses a test set without rows of some class; here the mean is over classes
        that some rows have and some have not. With two classes it is the usual
        ROC-AUC. Without N, without any such class, or with logits that are not finite,
        a score is left out.
    """
    if not len(y):
        return {}
    num_classes, labels = logits.shape[1], y.cpu().numpy()
    f1 = class_f1(labels, logits.argmax(1).cpu().numpy(), num_classes)
    found = {"macro-f1": float(np.nanmean(f1))}
    if num_classes > 1 and torch.isfinite(logits).all():
        is_class = (labels[:, None] == np.arange(num_classes)).astype(np.float64)
        area = roc_auc(_log_odds(logits.double().cpu().numpy()), is_class).mean
        found |= {} if np.isnan(area) else {"roc-auc": area}
    return found


def _log_odds(logits: Array) -> Array:
    """Log-odds of each class against the rest; probabilities near 1 would tie."""
    nothing = np.full((len(logits), 1), -np.inf)
    below = np.logaddexp.accumulate(logits[:, :-1], axis=1)
    above = np.logaddexp.accumulate(logits[:, :0:-1], axis=1)[:, ::-1]
    others = np.logaddexp(
        np.concatenate([nothing, below], axis=1),
        np.concatenate([above, nothing], axis=1),
    )
    odds: Array = logits - others
    return odds
