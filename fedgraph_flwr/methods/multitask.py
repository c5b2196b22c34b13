"""Several labels per molecule from part of the labels: parameters and baselines.

FedAvg and self-train with the model of He et al. 2021 (SpreadGNN), arXiv:2106.02743,
which compares with them. Who has labels of which task: ``task-masks``.

Message fields
--------------
down, up  ``shared/<name>``: all tensors (self-train: down in round 1 only, the start).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Settings, choice

# Evaluation record of methods that learn how tasks relate: Omega and its tasks
RECORD, RECORD_IDS = "task-covariance", "task-ids"


@dataclass(frozen=True, kw_only=True)
class GNNParams(Settings):
    """What is trained: ``encoder``, and for numbers ``regression_loss``.

    Width, layers and dropout are shared settings.
    """

    encoder: str = choice("sage", "sage", "gat")
    regression_loss: str = choice("l1", "l1", "mse")


@dataclass(frozen=True, kw_only=True)
class MultiTaskParams(GNNParams):
    """Parameters of FedAvg and self-train on several tasks."""

    TABLE = "multitask"
