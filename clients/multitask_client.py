"""Clients that predict several yes/no labels per graph, some of them missing."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from .base import GraphClient, Metrics
from .batching import Batch
from .multitask import masked_bce, roc_auc


class MultiTaskClient(GraphClient):
    """Masked cross-entropy, and ROC-AUC of the received model.

    The trained model is not measured: validation and test graphs are all clients' own,
    and every evaluation costs as much as a tenth of an epoch or more.
    """

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Predictions to be measured, shape (num_graphs, num_tasks)."""

    def scores(self, server_round: int, point: str) -> Metrics:  # noqa: ARG002
        """Mean ROC-AUC over tasks and mean loss, on validation and test graphs.

        A task whose labels are all of one class has no ROC-AUC and is counted in
        ``tasks-skipped``; without any task that has one, there is no score.
        """
        if point != "post_aggregation":
            return {}
        with torch.no_grad():
            found = [(self.logits(b), b.y) for b in self.job.data.evaluation]
        logits, y = (torch.cat(part).cpu() for part in zip(*found, strict=True))
        num_val = self.job.data.num_val
        metrics: Metrics = {}
        for split, rows in (
            ("val", slice(0, num_val)),
            ("test", slice(num_val, len(y))),
        ):
            by_task = roc_auc(logits[rows].numpy(), y[rows].numpy())
            at = f"eval/{split}/{point}"
            if not np.isnan(by_task.mean):
                metrics[f"{at}/roc-auc"] = by_task.mean
            metrics[f"{at}/loss"] = float(masked_bce(logits[rows], y[rows]))
            metrics[f"{at}/tasks-skipped"] = by_task.num_skipped
            metrics[f"count/{split}"] = len(y[rows])
        return metrics
