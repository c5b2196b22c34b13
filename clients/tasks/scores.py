"""Scores of predicted classes and of many targets, summed exactly.

Labels of tasks are floats, (num_graphs, num_tasks), NaN where not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphPartition, IntArray
from fedgraph_flwr.core.embedding_scores import class_f1
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.tasks import AVERAGE_PRECISION, OF_COMMONEST, ONE_CLASS
from fedgraph_flwr.core.wire import Parcel, count_key, evaluation_key

from ..losses import check_shapes

Array = NDArray[np.floating]
Ranked = Callable[[IntArray, IntArray], float]  # see `auc`


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
    return _per_task(scores, y, partial(_of_task, auc))


def average_precision(scores: Array, y: Array) -> TaskScores:
    """Average precision of yes per task; skipped as in :func:`roc_auc`."""
    return _per_task(scores, y, partial(_of_task, precision))


def _of_task(score: Ranked, scores: NDArray[np.float64], y: Array) -> float:
    return float(by_row(score, scores[None], y[None] == 1)[0])


def of_classes(
    score: Ranked,
    logits: Array,
    y: IntArray,
    sought: object = None,
) -> float:
    """Mean over classes of :func:`auc` or :func:`precision`, one against the rest.

    Of two classes it is that of ``sought``, if this is one of them. Classes that no
    row has, or all rows have, are left out. NaN without any other, or if logits are not
    finite.
    """
    wide = logits.astype(np.float64)
    num_classes = wide.shape[1]
    if not len(y) or num_classes == 1 or not np.isfinite(wide).all():
        return math.nan
    odds = np.ascontiguousarray(_log_odds(wide).T)
    found = TaskScores(by_row(score, odds, y == np.arange(num_classes)[:, None]))
    if num_classes == 2 and sought in (0, 1):
        return float(found.per_task[sought])
    return found.mean


def by_row(
    score: Ranked, scores: NDArray[np.float64], is_positive: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Score each row of two arrays of one shape, by :func:`auc` or :func:`precision`.

    NaN where all labels of a row are positive, or none is.
    """
    found = np.full(len(scores), math.nan)
    order = np.argsort(-scores, axis=1, kind="stable")
    seen = np.cumsum(np.take_along_axis(is_positive, order, axis=1), axis=1)
    ordered = np.take_along_axis(scores, order, axis=1)
    is_last = np.ones(scores.shape, bool)  # of equal scores
    is_last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    for row in range(len(scores)):
        if 0 < seen[row, -1] < scores.shape[1]:
            places = np.flatnonzero(is_last[row])
            found[row] = score(seen[row, places], places + 1)
    return found


def mean_absolute_error(predicted: Array, y: Array) -> TaskScores:
    """MAE per task on observed labels; a task without any is skipped."""
    return _per_task(predicted, y, lambda p, t: float(np.abs(p - t).mean()))


def root_mean_squared_error(predicted: Array, y: Array) -> TaskScores:
    """RMSE per task on observed labels; a task without any is skipped."""
    return _per_task(predicted, y, lambda p, t: math.sqrt(np.square(p - t).mean()))


def _per_task(
    predicted: Array, y: Array, score: Callable[[Array, Array], float]
) -> TaskScores:
    check_shapes(predicted.shape, y.shape)
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


def auc(seen: IntArray, places: IntArray) -> float:
    """Mann-Whitney: share of (positive, negative) pairs in the right order.

    Parameters
    ----------
    seen : int array, shape (num_thresholds,)
        Positives at and above each threshold, from the highest; equal scores are one.
    places : int array, shape (num_thresholds,)
        All at and above each threshold.
    """
    positive, size = int(seen[-1]), int(places[-1])
    ranks = size + 0.5 - (places + _before(places)) / 2  # equal scores share their mean
    total = ((seen - _before(seen)) * ranks).sum()
    pairs = positive * (size - positive)
    return float((total - positive * (positive + 1) / 2) / pairs)


def precision(seen: IntArray, places: IntArray) -> float:
    """Average precision: sum over thresholds of precision times the rise of recall.

    Parameters as of :func:`auc`; equal scores are one threshold, as in scikit-learn.
    """
    return float(((seen - _before(seen)) * (seen / places)).sum() / seen[-1])


def _before(counts: IntArray) -> IntArray:
    """Return the counts at the thresholds before."""
    before = np.zeros_like(counts)
    before[1:] = counts[:-1]
    return before


def _log_odds(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against the rest; probabilities near 1 would tie."""
    nothing = np.full((len(logits), 1), -np.inf)
    below = np.logaddexp.accumulate(logits[:, :-1], axis=1)
    above = np.logaddexp.accumulate(logits[:, :0:-1], axis=1)[:, ::-1]
    others = np.logaddexp(np.hstack([nothing, below]), np.hstack([above, nothing]))
    odds: NDArray[np.float64] = logits - others
    return odds


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
            AVERAGE_PRECISION: of_classes(precision, mine, y, rarest),
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
    return {"macro-f1": float(f1), "roc-auc": of_classes(auc, logits, y, 1)}
