"""How well a classifier ranks a rare class; needs neither Flower nor PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.tasks import AVERAGE_PRECISION

from .multitask_scores import average_precision, precision

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


def ranking(logits: Floats, y: IntArray, rarest: int) -> dict[str, float]:
    """Average precision of at least one row: how well a rare class is ranked.

    Of two classes it is that of ``rarest``; of several, the mean over classes of one
    against the rest. Classes that no row has, or all rows have, are left out; without
    any other, or with logits that are not finite, there is none.
    """
    wide = logits.astype(np.float64)
    if wide.shape[1] == 1 or not np.isfinite(wide).all():
        return {}
    if wide.shape[1] == 2:
        odds = wide[:, rarest] - wide[:, 1 - rarest]
        found = precision(odds, y == rarest) if np.isfinite(odds).all() else math.nan
    else:
        found = average_precision(log_odds(wide), against_rest(wide, y)).mean
    return {} if math.isnan(found) else {AVERAGE_PRECISION: found}


def against_rest(logits: Array, y: IntArray) -> Array:
    """Whether each row is of each class, (num_rows, num_classes)."""
    found: Array = (y[:, None] == np.arange(logits.shape[1])).astype(np.float64)
    return found


def log_odds(logits: Array) -> Array:
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
