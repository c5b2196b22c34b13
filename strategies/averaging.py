"""Weighted means of named arrays, accumulated in float64 in the order given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedgraph_flwr.errors import WireError
from fedgraph_flwr.wire import MOST_ENTRY, NamedArrays

CURE_CLIENT = "lower the learning rate or look at that client's data"


def weighted_mean(
    models: Sequence[NamedArrays], weights: Sequence[float]
) -> NamedArrays:
    """Average tensors of the same names and shapes.

    Parameters
    ----------
    models : sequence of dict of str to array
        At least one; the caller passes them in ascending client order, which fixes
        the rounding.
    weights : sequence of float
        One per model, >= 0, not all zero; normalised here.

    Returns
    -------
    dict of str to array
        Floating arrays: sum_i w_i x_i / sum_i w_i in the input's dtype. Integer
        arrays (counters): those of the first model.

    Raises
    ------
    WireError
        Names or shapes differ, or an array is bad: see :func:`find_bad_array`.
    ValueError
        No model, or weights that do not fit.

    Source
    ------
    McMahan et al. 2017, arXiv:1602.05629, Algorithm 1.
    """
    if not models or len(models) != len(weights):
        raise ValueError(f"got {len(models)} models and {len(weights)} weights")
    total = float(sum(weights))
    if not total > 0 or min(weights) < 0:
        raise ValueError(f"weights must be >= 0 and not all zero, got {list(weights)}")
    check_same_layout(models)
    mean: NamedArrays = {}
    for name, first in models[0].items():
        if not np.issubdtype(first.dtype, np.floating):
            mean[name] = first.copy()
            continue
        accumulated = np.zeros(first.shape, np.float64)
        for model, weight in zip(models, weights, strict=True):
            accumulated += (weight / total) * model[name].astype(np.float64)
        mean[name] = accumulated.astype(first.dtype)
    return mean


def check_same_layout(models: Sequence[NamedArrays]) -> None:
    """Raise WireError unless all models have the same finite, equally shaped arrays."""
    expected = _layout(models[0])
    for position, model in enumerate(models):
        if _layout(model) != expected:
            raise WireError(
                f"model {position} has arrays {_layout(model)}, the first has"
                f" {expected}; all clients must share the same tensors"
            )
        if bad := find_bad_array(model):
            raise WireError(f"model {position}: {bad}")


def find_bad_array(
    model: NamedArrays, *, most: float = MOST_ENTRY, cure: str = CURE_CLIENT
) -> str:
    """Say which array holds no number, or one out of all proportion; "" if none does.

    The first by name: the order of arrays in a message is no part of it. One client's
    number beyond ``most``, in an average, would make all others fail a round later.
    """
    for name, array in sorted(model.items()):
        if array.dtype.kind != "f" or not array.size:
            continue
        low, high = float(array.min()), float(array.max())
        if -most <= low and high <= most:  # neither holds for NaN
            continue
        is_finite = math.isfinite(low) and math.isfinite(high)
        what = f"numbers beyond +-{most:g}" if is_finite else "NaN or infinity"
        return f"array {name!r} holds {what}; {cure}"
    return ""


def _layout(model: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(model[name].shape) for name in sorted(model)}
