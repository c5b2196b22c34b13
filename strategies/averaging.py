"""Weighted means of named arrays, in float64, on all cores of the server."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median_high, median_low
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import NamedArrays

FloatArray: TypeAlias = NDArray[np.float64]
_SERVER = -1  # no client
STATISTIC = "running_"  # in names of what layers know of batches, and do not train
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
        Names or shapes differ, or a floating array is not finite.
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


def outweighing(weights: Mapping[int, float], sites: Mapping[int, str]) -> str:
    """Say who weighs more in averages than all others together; "" if nobody does.

    Of two it is who weighs more than nine times the other. Clients of one site count
    together if it has a name.
    """
    shares: dict[str, float] = {}
    total = sum(weights.values()) or 1.0
    for client, weight in sorted(weights.items()):
        who = f"site {sites[client]}" if sites.get(client) else f"client {client}"
        shares[who] = shares.get(who, 0.0) + weight / total
    who = max(shares, key=lambda s: shares[s], default="")
    if len(shares) < 2 or shares[who] <= (0.9 if len(shares) == 2 else 0.5):
        return ""
    return (
        f"{who} has {shares[who]:.1%} of the weight in averages, by what it told of its"
        " data: its model replaces those of the others. Ask whether that is true; where"
        ' numbers of training examples are the weights, weighting="uniform" levels them'
    )


def unflatten(vector: FloatArray, like: NamedArrays) -> NamedArrays:
    """Cut a vector that :func:`flatten` made back into tensors shaped as ``like``."""
    cuts = np.cumsum([like[n].size for n in sorted(like)])[:-1]
    parts = dict(zip(sorted(like), np.split(vector, cuts), strict=True))
    return {n: parts[n].reshape(a.shape).astype(a.dtype) for n, a in like.items()}


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


def find_bad_array(model: NamedArrays, *, cure: str = CURE_CLIENT) -> str:
    """Say which array holds NaN or infinity, and the cure; "" if none does.

    The first by name: the order of arrays in a message is no part of it.
    """
    for name, array in sorted(model.items()):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"array {name!r} holds NaN or infinity; {cure}"
    return ""


def out_of_proportion(
    models: Mapping[int, NamedArrays], sent: NamedArrays, guard: float
) -> dict[int, str]:
    """Name clients one of whose arrays holds far larger numbers than is usual.

    In an average, such numbers make all other clients fail a round later. What is usual
    is the lower median over the clients and what was sent to them, and at least 1. Of
    statistics of batches it is the upper one: they may be large, and what is sent first
    has seen no batch. Numbers that grow from round to round are not noticed.

    Parameters
    ----------
    models : mapping of int to dict of str to array
        By client; with names of the same arrays.
    sent : dict of str to array
        What they were trained from, if anything was sent.
    guard : float
        Times what is usual: ``robust.guard``.
    """
    sizes: dict[str, dict[int, float]] = {}
    for client, model in [(_SERVER, sent), *sorted(models.items())]:
        for name, array in model.items():
            sizes.setdefault(name, {})[client] = _largest(array)
    found: dict[int, str] = {}
    for name, of in sorted(sizes.items()):
        median = median_high if STATISTIC in name else median_low
        usual = median(of.values())
        most = guard * max(1.0, usual)
        for client, size in of.items():
            if size > most and client != _SERVER:
                words = (
                    f"array {name!r} holds numbers as large as {size:.3g}, where"
                    f" {usual:.3g} is usual in this round, and {most:.3g} allowed;"
                    f" {CURE_CLIENT}, or raise robust.guard"
                )
                found.setdefault(client, words)
    return found


def miscounted(
    told: Mapping[int, np.ndarray], most: Mapping[int, int]
) -> dict[int, str]:
    """Name clients whose numbers by class cannot be, of so many training items."""
    return {
        client: f"its numbers by class sum to {n.sum():g}, the least is"
        f" {n.min():g}, and it has {most[client]} training items; look at that client"
        for client, n in told.items()
        if n.min() < 0 or n.sum() > most[client] * (1 + 1e-5)
    }


def _largest(array: np.ndarray) -> float:
    """Largest magnitude of the entries; 0 of what is not floating."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    return max(-float(array.min()), float(array.max()))


def _layout(model: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(model[name].shape) for name in sorted(model)}


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def on_all_cores(
    work: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[Answer]:
    """Call ``work`` for each item; yield the answers in order, or raise as it did.

    Threads help where NumPy computes: it lets others run meanwhile. A caller that
    limits BLAS to one thread gets the same bytes on any number of cores.
    """
    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, "core") as cores:
        ahead: deque[Future[Answer]] = deque()
        for item in items:
            ahead.append(cores.submit(work, item))
            if len(ahead) > count:  # answers that nobody has read yet take memory
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
