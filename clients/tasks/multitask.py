"""Clients that predict several labels per graph, some of them missing."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property, partial
from logging import WARNING
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.data import IntArray, training_counts
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.tasks import (
    AVERAGE_PRECISION,
    BY_TASK,
    NO_SCORE,
    OF_MEAN,
    THRESHOLD,
)
from fedgraph_flwr.core.wire import Parcel, count_key, evaluation_key

from ..base import GraphClient, Metrics
from ..graphs.batching import Batch, ClientData
from ..graphs.node_rows import MoleculeData, Nodes
from ..job import P
from ..losses import Loss, masked_bce, masked_l1
from .scores import (
    PRECISIONS,
    Array,
    TaskScores,
    average_precision,
    best_threshold,
    confusion,
    mean_absolute_error,
    of_targets,
    probabilities,
    roc_auc,
    root_mean_squared_error,
)


class MultiTaskClient(GraphClient[P]):
    """Masked loss, and ROC-AUC or errors of the received model.

    The trained model is not measured unless ``MEASURES_TRAINED``: validation and test
    graphs are all clients' own, and every evaluation costs as much as a tenth of an
    epoch or more.
    """

    MEASURES_TRAINED: ClassVar[bool] = False
    DATA: ClassVar[type[ClientData]] = MoleculeData
    data: MoleculeData

    @abstractmethod
    def logits(self, batch: Batch, nodes: Nodes) -> Tensor:
        """Predictions to be measured, shape (num_graphs, num_tasks).

        ``nodes`` are those of ``batch``; equal rows of features may be stored once.
        """

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers, and not yes or no."""
        return not self.job.learning.larger_is_better

    def loss_function(self) -> Loss:
        """Mean over observed labels: cross-entropy, or absolute errors of numbers.

        Cross-entropy is weighted by classes if the run says so.
        """
        if self.is_regression:
            return masked_l1
        return partial(masked_bce, weights=self.class_weights)

    @override
    def trained_on(self) -> IntArray:
        """Training graphs without a label of the client's tasks are skipped."""
        return self._labelled

    @cached_property
    def _labelled(self) -> IntArray:
        """Positions of the training graphs with a label; warns if there are none."""
        partition = self.data.partition
        has_label = ~np.isnan(partition.graphs.y[partition.train]).all(axis=1)
        if not has_label.any():
            names = [partition.tasks[t] for t in partition.owned_tasks]
            log(
                WARNING,
                "client %d trains nothing: none of its %d training graphs has a label"
                " of its tasks (%s); other task-masks or another split-seed may help",
                self.job.client_id,
                len(has_label),
                ", ".join(names),
            )
        labelled: IntArray = partition.train[has_label]
        return labelled

    @override
    def scores(self, point: str) -> Parcel:
        """Mean score over all tasks and mean loss, on validation and test graphs.

        Also scores of each task on test graphs (``-task-<number>``); and means over the
        client's own tasks and over the others, if it lacks labels of some. A task
        without a score (for ROC-AUC: all labels of one class) is named by
        ``no-score-task-<number>`` and counted in ``tasks-skipped``; without any task
        that has one, there is no score, and without any label no loss. If labels are
        numbers, errors are in the units of the files, and beside them are those of
        predicting the mean of the test labels (``mae-of-mean``, ``rmse-of-mean``, and
        ``mae-of-mean-task-<number>``). After the last round, yes-or-no tasks also have
        a threshold and counts of test graphs (:meth:`_counted`).
        """
        if point != "post_aggregation" and not self.MEASURES_TRAINED:
            return Parcel()
        pairs = zip(self.data.evaluation, self.data.evaluation_nodes, strict=True)
        with torch.no_grad():
            found = [(self.logits(batch, nodes), batch.y) for batch, nodes in pairs]
        logits, learned = (torch.cat(part).cpu() for part in zip(*found, strict=True))
        partition, num_val = self.data.partition, self.data.num_val
        predicted = partition.in_units(logits.numpy())
        labels = partition.graphs.y[partition.held_out]
        loss = masked_l1 if self.is_regression else masked_bce
        metrics: Metrics = {}
        for split, rows in (("val", slice(num_val)), ("test", slice(num_val, None))):
            at = evaluation_key(split, point, "")
            measured = self._scored(predicted[rows], labels[rows])
            for name, by_task in measured.items():
                means = self._means(name, by_task)
                metrics |= {f"{at}{k}": v for k, v in means.items()}
            headline = measured[name := self.job.learning.metric]
            if split == "test":
                metrics |= self._of_mean(at, labels[rows])
                metrics |= _by_task(f"{at}{name}", headline)
            metrics |= {
                f"{at}{NO_SCORE}{task}": 1.0
                for task in np.flatnonzero(np.isnan(headline.per_task))
            }
            if not np.isnan(labels[rows]).all():
                metrics[f"{at}loss"] = float(loss(logits[rows], learned[rows]))
            metrics[f"{at}tasks-skipped"] = headline.num_skipped
            metrics[count_key(split)] = len(labels[rows])
        if self.is_last and not self.is_regression:
            metrics |= self._counted(point, predicted, labels)
        return Parcel(metrics=metrics)

    def _counted(self, point: str, logits: Array, y: Array) -> Metrics:
        """Count test graphs of each task by a threshold, which is under "val".

        It has the best F1 of yes or no, whichever fewer training labels are; without
        one it is 0.5.
        """
        found: Metrics = {}
        num_val, (no, yes) = self.data.num_val, training_counts(self.scored)
        p = probabilities(logits, is_binary=True)
        for k in range(y.shape[1]):
            known = ~np.isnan(y[:, k])
            val, test = known.copy(), known
            val[num_val:], test[:num_val] = False, False
            if not test.any():
                continue
            of_yes, is_yes = bool(yes[k] <= no[k]), y[:, k] == 1
            limit = best_threshold(p[val, k], is_yes[val], of_yes=of_yes)
            if not np.isnan(limit):
                found[evaluation_key("val", point, f"{THRESHOLD}{BY_TASK}{k}")] = limit
            called = p[test, k] >= (0.5 if np.isnan(limit) else limit)
            for name, count in confusion(called, is_yes[test]).items():
                found[evaluation_key("test", point, f"{name}{BY_TASK}{k}")] = count
        return found

    def _of_mean(self, at: str, y: Array) -> Metrics:
        """Errors of predicting each task's mean label; none unless labels are numbers.

        Without them nobody can tell a large error from a small one.
        """
        if not self.is_regression:
            return {}
        mean = torch.nanmean(torch.from_numpy(y), dim=0).nan_to_num().numpy()
        scored = self._scored(np.broadcast_to(mean, y.shape), y)
        found = {f"{at}{n}{OF_MEAN}": t.mean for n, t in scored.items()}
        name = self.job.learning.metric
        return {k: v for k, v in found.items() if not np.isnan(v)} | _by_task(
            f"{at}{name}{OF_MEAN}", scored[name]
        )

    def _scored(self, predicted: Array, y: Array) -> dict[str, TaskScores]:
        errors = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
        ranks = {
            "roc-auc": roc_auc,
            AVERAGE_PRECISION: average_precision,
            **{name: of_targets(score) for name, score in PRECISIONS.items()},
        }
        chosen = errors if self.is_regression else ranks
        return {name: score(predicted, y) for name, score in chosen.items()}

    def _means(self, name: str, by_task: TaskScores) -> dict[str, float]:
        """Means over all tasks, over the client's own, and over the others, if any."""
        partition = self.data.partition
        means = {name: by_task.mean}
        if partition.task_ids is not None:
            own = np.isin(np.arange(len(partition.tasks)), partition.task_ids)
            means[f"{name}-own"] = TaskScores(by_task.per_task[own]).mean
            means[f"{name}-unseen"] = TaskScores(by_task.per_task[~own]).mean
        return {k: v for k, v in means.items() if not np.isnan(v)}


def _by_task(name: str, found: TaskScores) -> Metrics:
    """Score of each task that has one."""
    return {
        f"{name}-task-{task}": float(value)
        for task, value in enumerate(found.per_task)
        if not np.isnan(value)
    }
