"""Scores of a classifier: accuracy, loss, macro-F1 and ROC-AUC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphPartition, IntArray
from fedgraph_flwr.embedding_scores import class_f1
from fedgraph_flwr.wire import Parcel, count_key, evaluation_key

from .multitask_scores import auc, roc_auc

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


def class_scores(
    partition: GraphPartition, point: str, logits: Floats, losses: Floats
) -> Parcel:
    """Score predictions for the validation, then the test rows, as metrics of a reply.

    Parameters
    ----------
    partition : GraphPartition
    point : str
        Of the round.
    logits : float array, shape (num_val + num_test, num_classes)
    losses : float array, shape (num_val + num_test,)
        Of each row.

    Returns
    -------
    Parcel
        ``metrics``: ``count/<split>``, and after ``eval/<split>/<point>/`` accuracy and
        loss, the mean of ``losses``; for test rows also macro-f1 and roc-auc.
    """
    found: dict[str, int | float] = {}
    first = 0
    for split in ("val", "test"):
        y = partition.graphs.y[partition.positions(split)]
        rows, first = slice(first, first + len(y)), first + len(y)
        found[count_key(split)] = len(y)
        if not len(y):
            continue
        own = evaluation_key(split, point, "")
        found[own + "accuracy"] = float((logits[rows].argmax(1) == y).mean())
        found[own + "loss"] = float(losses[rows].astype(np.float64).mean())
        beside = f1_and_auc(logits[rows], y) if split == "test" else {}
        found |= {own + name: value for name, value in beside.items()}
    return Parcel(metrics=found)


def f1_and_auc(logits: Floats, y: IntArray) -> dict[str, float]:
    """Macro-F1 and ROC-AUC of at least one row.

    Returns
    -------
    dict
        ``macro-f1``: mean F1 over the classes that occur among the labels or the
        predictions, as ``sklearn.metrics.f1_score(average="macro")``; a class that is
        predicted and has no row counts 0. ``roc-auc``: mean over classes of one against
        the rest, as ``sklearn.metrics.roc_auc_score(multi_class="ovr")``. That function
        refuses a test set without rows of some class; here the mean is over classes
        that some rows have and some have not. With two classes it is the usual
        ROC-AUC. Without any such class, or with logits that are not finite, it is left
        out.
    """
    num_classes = logits.shape[1]
    f1 = class_f1(y, logits.argmax(1), num_classes)
    known = ~np.isnan(f1)
    found = {"macro-f1": float(np.where(known, f1, 0).sum() / known.sum())}
    wide = logits.astype(np.float64)
    if num_classes == 1 or not np.isfinite(wide).all():
        return found
    if num_classes == 2:  # the areas of both are the same
        odds = wide[:, 1] - wide[:, 0]
        area = auc(odds, y == 1) if np.isfinite(odds).all() else math.nan
    else:
        is_class = (y[:, None] == np.arange(num_classes)).astype(np.float64)
        area = roc_auc(_log_odds(wide), is_class).mean
    return found if math.isnan(area) else {**found, "roc-auc": area}


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
