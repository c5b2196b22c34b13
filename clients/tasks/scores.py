"""Scores of predicted classes and of many targets, summed exactly.

Labels of tasks are floats, (num_graphs, num_tasks), NaN where not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.core.data import GraphPartition, IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.tasks import (
    AT_RECALL,
    AVERAGE_PRECISION,
    CONFUSION,
    HITS,
    OF_COMMONEST,
    ONE_CLASS,
    THRESHOLD,
)
from fedgraph_flwr.core.wire import (
    BY_PRECISION,
    RAREST,
    Parcel,
    Scalar,
    count_key,
    evaluation_key,
)

from ..losses import check_shapes

Array = NDArray[np.floating]
Floats = NDArray[np.floating[Any]]


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
    return of_targets(auc)(scores, y)


def average_precision(scores: Array, y: Array) -> TaskScores:
    """Average precision of yes per task; skipped as in :func:`roc_auc`."""
    return of_targets(precision)(scores, y)


def of_targets(
    score: Callable[[Ranks], NDArray[np.float64]],
) -> Callable[[Array, Array], TaskScores]:
    """Score of yes per task by a function of ranks; skipped as in :func:`roc_auc`."""
    return lambda scores, y: _per_task(
        scores, y, lambda p, t: float(score(Ranks(p[None], t[None] == 1))[0])
    )


class Ranks:
    """Rows of scores, each sorted from the highest; equal scores are one threshold.

    Parameters
    ----------
    scores : float array, shape (num_rows, size)
    is_positive : bool array of that shape
        A row whose labels are all positive, or none, has no score.

    Attributes
    ----------
    hits : bool array of that shape
        Whether each item is positive.
    above, places : int arrays of that shape
        Number of items above each item's threshold, and at and above it.
    positive, pairs : float64 arrays, shape (num_rows,)
        Positives, and pairs of a positive and another one; NaN if there is no score.
    """

    def __init__(self, scores: Array, is_positive: NDArray[np.bool_]) -> None:
        order = np.argsort(-scores, axis=1, kind="stable")
        ordered = np.take_along_axis(scores, order, axis=1)
        self.hits = np.take_along_axis(is_positive, order, axis=1)
        rows, self.size = scores.shape
        is_first = np.ones((rows, self.size + 1), bool)  # of equal scores
        is_first[:, 1:-1] = ordered[:, 1:] != ordered[:, :-1]
        at = np.arange(self.size)
        self.above = np.maximum.accumulate(np.where(is_first[:, :-1], at, 0), axis=1)
        ends = np.where(is_first[:, 1:], at + 1, self.size)
        self.places = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        count = self.hits.sum(axis=1)
        pairs = count * (self.size - count)
        self.positive = np.where(pairs > 0, count, np.nan)
        self.pairs = np.where(pairs > 0, pairs, np.nan)


def auc(ranks: Ranks) -> NDArray[np.float64]:
    """Mann-Whitney by row: share of (positive, negative) pairs in the right order."""
    mean_ranks = ranks.size + 0.5 - (ranks.places + ranks.above) / 2  # from below
    total = (ranks.hits * mean_ranks).sum(axis=1)
    found: NDArray[np.float64] = total - ranks.positive * (ranks.positive + 1) / 2
    return found / ranks.pairs


def precision(ranks: Ranks) -> NDArray[np.float64]:
    """Average precision by row, as scikit-learn's: equal scores are one threshold."""
    seen = np.take_along_axis(ranks.hits.cumsum(axis=1), ranks.places - 1, axis=1)
    found: NDArray[np.float64] = (ranks.hits * (seen / ranks.places)).sum(axis=1)
    return found / ranks.positive


def precision_at(recall: float) -> Callable[[Ranks], NDArray[np.float64]]:
    """Largest precision by row of all thresholds whose recall is as large as this."""

    def score(ranks: Ranks) -> NDArray[np.float64]:
        seen = np.take_along_axis(ranks.hits.cumsum(axis=1), ranks.places - 1, axis=1)
        positive = ranks.positive[:, None]
        is_enough = seen / positive >= recall
        best: NDArray[np.float64] = np.where(is_enough, seen / ranks.places, 0).max(1)
        return np.where(np.isnan(ranks.positive), np.nan, best)

    return score


PRECISIONS = {name: precision_at(share) for name, share in AT_RECALL.items()}


def probabilities(outputs: Floats, *, is_binary: bool) -> NDArray[np.float64]:
    """Probability of each class, or of yes for each target, from logits."""
    wide = outputs.astype(np.float64)
    if is_binary:  # math's last digit is that of SciPy, and NumPy's is not
        odds = [math.exp(min(-logit, 709.0)) for logit in wide.ravel()]
        return 1 / (1 + np.array(odds).reshape(wide.shape))
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)


def calibration_error(
    p: NDArray[np.float64], y: NDArray[Any], num_bins: int = 15
) -> float:
    """Mean gap between what is claimed and what is right, over bins of equal width.

    Of classes the largest probability is the claim; of targets that of yes, and errors
    are averaged over those with labels.

    Parameters
    ----------
    p : float64 array, shape (num_items, num_outputs)
    y : array
        Classes, (num_items,), or 0, 1 and NaN of targets, of the shape of ``p``.

    Source
    ------
    Guo et al. 2017, arXiv:1706.04599, Eq. 3.
    """
    if y.ndim == 1:
        return _gap(p.max(1), p.argmax(1) == y, num_bins)
    pairs = [(c[~np.isnan(t)], t[~np.isnan(t)]) for c, t in zip(p.T, y.T, strict=True)]
    found = [_gap(c, t, num_bins) for c, t in pairs if len(t)]
    return float(np.mean(found)) if found else math.nan


def _gap(claimed: NDArray[np.float64], is_right: NDArray[Any], num_bins: int) -> float:
    at = np.minimum((claimed * num_bins).astype(int), num_bins - 1)
    return float(np.abs(np.bincount(at, is_right - claimed)).sum() / len(claimed))


def best_threshold(
    p: NDArray[np.float64], is_yes: NDArray[np.bool_], *, of_yes: bool = True
) -> float:
    """Choose the probability from which an item is called yes.

    Of the probabilities of all items it is the one with the best F1, of equals the
    highest. NaN if labels are all the same, or a probability is not finite.

    Parameters
    ----------
    p : float64 array, shape (num_items,)
    is_yes : bool array of that shape
    of_yes : bool
        Whether F1 is that of yes, and not of no.
    """
    if not is_yes.any() or is_yes.all() or not np.isfinite(p).all():
        return math.nan
    ranks = Ranks(p[None], is_yes[None])
    called, size, yes = ranks.places[0], len(p), int(is_yes.sum())
    right = ranks.hits[0].cumsum()[called - 1]
    f1 = right / (called + yes)
    if not of_yes:
        f1 = (size - yes - called + right) / (2 * size - called - yes)
    return float(-np.sort(-p)[f1.argmax()])


def confusion(called: NDArray[np.bool_], is_yes: NDArray[np.bool_]) -> dict[str, int]:
    """Count items that were called yes or no, rightly or not: ``CONFUSION``."""
    pairs = (called & is_yes, called & ~is_yes, ~called & is_yes, ~called & ~is_yes)
    return {name: int(of.sum()) for name, of in zip(CONFUSION, pairs, strict=True)}


def rank_classes(logits: Array, y: IntArray) -> Ranks | None:
    """Rank rows for each class, one against the rest; None if that means nothing.

    It means nothing without rows, of one class, or if logits are not finite.
    """
    wide = logits.astype(np.float64)
    num_classes = wide.shape[1]
    if not len(y) or num_classes == 1 or not np.isfinite(wide).all():
        return None
    odds = np.ascontiguousarray(_log_odds(wide).T)
    return Ranks(odds, y == np.arange(num_classes)[:, None])


def of_classes(
    score: Callable[[Ranks], NDArray[np.float64]],
    ranks: Ranks | None,
    sought: object = None,
) -> float:
    """Mean over classes of :func:`auc` or :func:`precision`.

    Of two classes it is that of ``sought``, if this is one of them. Classes that no
    row has, or all rows have, are left out. NaN without any other, or without ranks.
    """
    if ranks is None:
        return math.nan
    found = TaskScores(score(ranks))
    if len(found.per_task) == 2 and sought in (0, 1):
        return float(found.per_task[sought])
    return found.mean


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


def link_scores(scores: Array, per_link: int) -> dict[str, float]:
    """Ranks of hidden links: mean reciprocal rank, and shares among the first few.

    They are ``mrr``, and ``hits-<k>`` for each of ``HITS``; empty without a link.

    Parameters
    ----------
    scores : float array, shape (num_items, 1)
        Each link stands before ``per_link`` other pairs. Its rank among these counts a
        tie by one half.
    """
    if not len(scores):
        return {}
    by_link = scores.astype(np.float64).reshape(-1, per_link + 1)
    ours, others = by_link[:, :1], by_link[:, 1:]
    rank = 1 + (others > ours).sum(axis=1) + (others == ours).sum(axis=1) / 2
    hits = {f"hits-{k}": float((rank <= k).mean()) for k in HITS}
    return {"mrr": float((1 / rank).mean()), **hits}


def _log_odds(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against the rest; probabilities near 1 would tie."""
    nothing = np.full((len(logits), 1), -np.inf)
    below = np.logaddexp.accumulate(logits[:, :-1], axis=1)
    above = np.logaddexp.accumulate(logits[:, :0:-1], axis=1)[:, ::-1]
    others = np.logaddexp(np.hstack([nothing, below]), np.hstack([above, nothing]))
    odds: NDArray[np.float64] = logits - others
    return odds


def class_scores(
    partition: GraphPartition,
    point: str,
    outputs: Tensor,
    losses: Tensor,
    facts: Mapping[str, Scalar],
) -> Parcel:
    """Score predictions for the validation, then the test rows, as metrics of a reply.

    Parameters
    ----------
    point : str
        Of the round.
    outputs : tensor, shape (num_val + num_test, num_classes)
        Logits.
    losses : tensor, shape (num_val + num_test,)
        Of each row.
    facts : mapping
        That came: ``RAREST``, the class whose average precision counts, of two, and
        ``BY_PRECISION``, whether it chooses.

    Returns
    -------
    Parcel
        ``metrics``: ``count/<split>``, and after ``eval/<split>/<point>/`` accuracy,
        loss, the mean of ``losses``, and average precision if it chooses. For test rows
        also average precision, macro-f1, roc-auc and precisions at fixed recalls; the
        counts of :func:`confusion`, with the threshold under "val"; the accuracy of
        always predicting the class that is the commonest among the client's training
        labels; and ``one-class``, the class that all rows are predicted to be, if it is
        one.
    """
    logits, of_rows = outputs.cpu().numpy(), losses.cpu().numpy()
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
            "loss": float(of_rows[rows].astype(np.float64).mean()),
        }
        if split == "test" or facts.get(BY_PRECISION):
            ranks = rank_classes(mine, y)
            rarest = facts.get(RAREST)
            beside[AVERAGE_PRECISION] = of_classes(precision, ranks, rarest)
        if split == "test":
            beside["macro-f1"] = macro_f1(mine, y)
            beside["roc-auc"] = of_classes(auc, ranks, 1)
            for name, score in PRECISIONS.items():
                beside[name] = of_classes(score, ranks, rarest)
            beside |= _floor(partition, mine, y)
        for name, value in beside.items():
            if name == "loss" or not math.isnan(value):
                found[evaluation_key(split, point, name)] = value
    return Parcel(metrics=found | _counted(partition, point, logits, facts.get(RAREST)))


def _counted(
    partition: GraphPartition, point: str, logits: Floats, rarest: object
) -> dict[str, int | float]:
    """Count test rows of the rarest class; of two classes by a threshold, if any."""
    y, num_val = partition.graphs.y[partition.held_out], len(partition.val)
    is_pair = logits.shape[1] == 2
    sought = int(rarest) if isinstance(rarest, int) else 1
    if not len(partition.test) or not (is_pair or isinstance(rarest, int)):
        return {}
    found: dict[str, int | float] = {}
    is_yes, called = y == sought, logits.argmax(1) == sought
    if is_pair:
        p = probabilities(logits, is_binary=False)[:, sought]
        limit = best_threshold(p[:num_val], is_yes[:num_val])
        if not math.isnan(limit):
            found[evaluation_key("val", point, THRESHOLD)] = limit
            called = p >= limit
    counts = confusion(called[num_val:], is_yes[num_val:])
    return found | {evaluation_key("test", point, k): n for k, n in counts.items()}


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


def macro_f1(logits: Floats, y: IntArray) -> float:
    """Mean F1 over the classes that occur among labels or predictions.

    As ``sklearn.metrics.f1_score(average="macro")``: a class that is predicted and has
    no row counts 0.
    """
    return float(np.nanmean(class_f1(y, logits.argmax(1), logits.shape[1])))


def class_f1(y: IntArray, predicted: IntArray, num_classes: int) -> NDArray[np.float64]:
    """F1 of each class, NaN where neither labels nor predictions have it."""
    right, *both = (
        np.bincount(classes, minlength=num_classes)
        for classes in (y[y == predicted], y, predicted)
    )
    total = sum(both)
    return np.where(total > 0, 2 * right / np.maximum(total, 1), np.nan)
