"""Scores of a classifier: accuracy, loss, and what shows a rare class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphPartition, IntArray
from fedgraph_flwr.embedding_scores import class_f1
from fedgraph_flwr.tasks import OF_COMMONEST, ONE_CLASS
from fedgraph_flwr.wire import Parcel, count_key, evaluation_key

from .multitask_scores import auc, roc_auc
from .ranking import against_rest, log_odds, ranking

Floats = NDArray[np.floating[Any]]


def class_scores(
    partition: GraphPartition,
    point: str,
    logits: Floats,
    losses: Floats,
    rarest: object = 1,
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
    rarest : int
        Of two classes the rarer, as the server says; anything else stands for 1.

    Returns
    -------
    Parcel
        ``metrics``: ``count/<split>``, and after ``eval/<split>/<point>/`` accuracy,
        loss, the mean of ``losses``, and average precision. For test rows also
        macro-f1 and roc-auc; the accuracy of always predicting the class that is the
        commonest among the client's training labels; and ``one-class``, the class that
        all rows are predicted to be, if it is one.
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
        beside = ranking(logits[rows], y, 0 if rarest == 0 else 1)
        if split == "test":
            beside |= f1_and_auc(logits[rows], y) | _floor(partition, logits[rows], y)
        found |= {own + name: value for name, value in beside.items()}
    return Parcel(metrics=found)


def _floor(partition: GraphPartition, logits: Floats, y: IntArray) -> dict[str, float]:
    """Accuracy of a constant prediction, and whether the model's is one."""
    found: dict[str, float] = {}
    known = partition.graphs.y[partition.train]
    if len(known := known[known >= 0]):
        found[f"accuracy{OF_COMMONEST}"] = float(
            (y == np.bincount(known).argmax()).mean()
        )
    predicted = logits.argmax(1)
    if (predicted == predicted[0]).all():
        found[ONE_CLASS] = float(predicted[0])
    return found


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
        area = roc_auc(log_odds(wide), against_rest(wide, y)).mean
    return found if math.isnan(area) else {**found, "roc-auc": area}
