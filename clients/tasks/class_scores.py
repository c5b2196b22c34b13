"""Scores of a classifier: accuracy, loss, and what shows a rare class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphPartition, IntArray
from fedgraph_flwr.embedding_scores import class_f1
from fedgraph_flwr.tasks import AVERAGE_PRECISION, OF_COMMONEST, ONE_CLASS
from fedgraph_flwr.wire import Parcel, count_key, evaluation_key

from .multitask_scores import average_precision, of_classes, roc_auc

Floats = NDArray[np.floating[Any]]


def class_scores(
    partition: GraphPartition,
    point: str,
    logits: Floats,
    losses: Floats,
    rarest: object = None,
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
        Class whose average precision counts, of two; anything else stands for both.

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
        mine = logits[rows]
        beside = {
            "accuracy": float((mine.argmax(1) == y).mean()),
            "loss": float(losses[rows].astype(np.float64).mean()),
            AVERAGE_PRECISION: of_classes(average_precision, mine, y, rarest),
        }
        if split == "test":
            beside |= {**f1_and_auc(mine, y), **_floor(partition, mine, y)}
        for name, value in beside.items():
            if name == "loss" or not math.isnan(value):
                found[evaluation_key(split, point, name)] = value
    return Parcel(metrics=found)


def _floor(partition: GraphPartition, logits: Floats, y: IntArray) -> dict[str, float]:
    """Accuracy of a constant prediction, and whether the model's is one."""
    found: dict[str, float] = {}
    known = partition.graphs.y[partition.train]
    if len(known := known[known >= 0]):
        commonest = np.bincount(known).argmax()
        found[f"accuracy{OF_COMMONEST}"] = float((y == commonest).mean())
    if len(predicted := np.unique(logits.argmax(1))) == 1:
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
        the rest, as ``sklearn.metrics.roc_auc_score(multi_class="ovr")``, which refuses
        a test set without rows of some class; see :func:`of_classes`.
    """
    f1 = np.nanmean(class_f1(y, logits.argmax(1), logits.shape[1]))
    return {"macro-f1": float(f1), "roc-auc": of_classes(roc_auc, logits, y, 1)}
