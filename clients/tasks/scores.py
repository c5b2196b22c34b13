"""Scores of predicted classes and of many targets, summed exactly.

Labels of tasks are floats, (num_graphs, num_tasks), NaN where not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    return _per_task(scores, y, auc)


def average_precision(scores: Array, y: Array) -> TaskScores:
    """Average precision of yes per task; skipped as in :func:`roc_auc`."""
    return _per_task(scores, y, precision)


def of_classes(
    score: Callable[[Array, NDArray[Any]], float],
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
    found = TaskScores(_by_class(score, odds, y == np.arange(num_classes)[:, None]))
    if num_classes == 2 and sought in (0, 1):
        return float(found.per_task[sought])
    return found.mean


def _by_class(
    score: Callable[[Array, NDArray[Any]], float],
    odds: NDArray[np.float64],
    is_class: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Score every class, (num_classes, num_rows), with the bits that ``score`` gives.

    All classes are scored in a few calls of NumPy; one with equal odds by itself.
    """
    size = odds.shape[1]
    order = np.argsort(-odds, axis=1, kind="stable")
    hits = np.take_along_axis(is_class, order, axis=1)
    seen, places = np.cumsum(hits, axis=1), np.arange(1, size + 1)
    positive = seen[:, -1]
    found: NDArray[np.float64]
    with np.errstate(divide="ignore", invalid="ignore"):
        if score is auc:
            ranks = (hits * (size + 1.0 - places)).sum(axis=1)
            below = ranks - positive * (positive + 1) / 2
            found = below / (positive * (size - positive))
        else:
            found = (hits * (seen / places)).sum(axis=1) / positive
    ordered = np.take_along_axis(odds, order, axis=1)
    for k in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        found[k] = score(odds[k], is_class[k])
    found[(positive == 0) | (positive == size)] = math.nan
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


def auc(scores: Array, y: NDArray[Any]) -> float:
    """Mann-Whitney: share of (positive, negative) pairs in the right order.

    NaN without pairs. Scores of float64, and labels of 0 and 1, of shape (num_graphs,).
    """
    is_positive = y == 1
    positive = int(np.count_nonzero(is_positive))
    negative = len(y) - positive
    if not positive or not negative:
        return math.nan
    ranks = _mean_ranks(scores)[is_positive].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def precision(scores: Array, y: NDArray[Any]) -> float:
    """Average precision: sum over thresholds of precision times the rise of recall.

    Equal scores are one threshold, as in scikit-learn. NaN if all labels, of shape
    (num_graphs,), are 0 or all are 1.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # of each threshold
    found = np.cumsum(y[order] == 1)[last]
    if not len(y) or not 0 < found[-1] < len(y):
        return math.nan
    share = found / (np.flatnonzero(last) + 1)
    return float((np.diff(found, prepend=0) * share).sum() / found[-1])


def _log_odds(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against the rest; probabilities near 1 would tie."""
    nothing = np.full((len(logits), 1), -np.inf)
    below = np.logaddexp.accumulate(logits[:, :-1], axis=1)
    above = np.logaddexp.accumulate(logits[:, :0:-1], axis=1)[:, ::-1]
    others = np.logaddexp(np.hstack([nothing, below]), np.hstack([above, nothing]))
    odds: NDArray[np.float64] = logits - others
    return odds


def _mean_ranks(values: Array) -> NDArray[np.float64]:
    """Ranks from 1, where equal values share the mean of their ranks.

    ``scipy.stats.rankdata`` gives the same, and takes half a second to import.
    """
    ordered = np.sort(values)
    below = ordered.searchsorted(values, "left")
    ranks: NDArray[np.float64] = (below + ordered.searchsorted(values, "right") + 1) / 2
    return ranks


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
