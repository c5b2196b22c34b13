"""What the server evaluates itself, by the run's task."""

from __future__ import annotations

from strategies.evaluator import Evaluator

from ..resolve import Resolved
from .pooled import PooledEvaluation
from .task_relations import TaskRelations


def make_evaluator(resolved: Resolved) -> Evaluator:
    """Make the evaluator that takes what clients of a run hand over."""
    return PooledEvaluation(resolved) if resolved.task.pools else TaskRelations()
