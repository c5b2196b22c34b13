"""Which of a client's graphs train, validate and test."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition, GraphSet, IntArray
from fedgraph_flwr.errors import DataError

log = logging.getLogger("flwr.fedgraph")

MIN_GRAPHS = 3  # one each to train, validate and test


def need_graphs(count: int, client_id: int, what: str, place: Path) -> None:
    """Refuse a client whose own files hold too few graphs, or molecules, to split."""
    if count < MIN_GRAPHS:
        raise DataError(
            f"client {client_id} has {count} usable {what}(s) in {place}, but training,"
            f" validating and testing needs at least {MIN_GRAPHS}; add some, or leave"
            " this client out"
        )


def trained_elsewhere(
    y: IntArray,
    shares: Sequence[IntArray],
    *,
    seed: int,
    held_out: float,
) -> list[tuple[int, int]]:
    """Count each client's test graphs on which others train, and all of them.

    A client trains on none of its own test graphs: whoever trains on one is another.

    Parameters
    ----------
    y : int array, shape (num_graphs,)
        Classes of the data set.
    shares : sequence of int arrays
        Rows of each client, as a partitioner returns them.
    seed, held_out
        As for :func:`split_client`.
    """
    is_trained_on = np.zeros(len(y), bool)
    tested: list[IntArray] = []
    for rows in shares:
        at = np.arange(len(rows))
        train, _, test = split_client(at, y[rows], seed=seed, held_out=held_out)
        is_trained_on[rows[train]] = True
        tested.append(rows[test])
    return [(int(is_trained_on[rows].sum()), len(rows)) for rows in tested]


def split_graphs(
    client_id: int, graphs: GraphSet, ids: IntArray, settings: RunSettings, **more: Any
) -> GraphPartition:
    """Split a client's graphs by the run's settings; ``more`` is said of them."""
    train, val, test = split_client(
        np.arange(len(graphs)),
        graphs.y,
        seed=settings.split_seed,
        held_out=settings.held_out,
    )
    return GraphPartition(
        client_id=client_id,
        graphs=graphs,
        graph_ids=ids,
        train=train,
        val=val,
        test=test,
        **more,
    )


def split_client(
    graph_ids: IntArray,
    y: NDArray[np.generic],
    *,
    seed: int,
    held_out: float = 0.2,
) -> tuple[IntArray, IntArray, IntArray]:
    """Split one client's graphs 80/10/10, keeping class shares.

    Parameters
    ----------
    graph_ids : int array, shape (n,)
        Rows of the client's graphs, unique, n >= 3.
    y : int array, shape (num_graphs,), or float array, shape (num_graphs, num_tasks)
        Class of every row that ``graph_ids`` may name. Several labels per graph are no
        classes to keep shares of: the split is then plain random.
    seed : int
        Split seed.
    held_out : float
        Share of the graphs that is kept from training, in [0, 1): half of them
        validate, half test. 0 holds out none, and looks at no class.

    Returns
    -------
    train, val, test : int64 arrays
        Positions into ``graph_ids``, ascending, disjoint. With ``held_out`` > 0 none
        is empty: two graphs at least are held out, and one is trained on.

    Raises
    ------
    DataError
        If there are fewer than 3 graphs.
    ValueError
        If a graph occurs twice.

    Source
    ------
    GCFL's code: scikit-learn's ``train_test_split`` twice with the split seed. If a
    class is too small to stratify by, the split is plain random and a warning is
    logged.
    """
    num_graphs = len(graph_ids)
    if num_graphs < MIN_GRAPHS:
        raise DataError(
            f"{num_graphs} graphs cannot be split into train, validation and test"
            f" (at least {MIN_GRAPHS}); lower num-clients"
        )
    if len(np.unique(graph_ids)) != num_graphs:
        raise ValueError("graph_ids has repeats, which would leak into the test set")
    everything = np.arange(num_graphs)
    if held_out == 0:
        return everything, everything[:0], everything[:0]
    labels = np.asarray(y)[graph_ids] if np.ndim(y) == 1 else None
    count = min(max(2, math.ceil(held_out * num_graphs)), num_graphs - 1)
    train, rest = _split_off(everything, labels, count, seed=seed)
    val, test = _split_off(rest, labels, math.ceil(len(rest) / 2), seed=seed)
    return np.sort(train), np.sort(val), np.sort(test)


def _split_off(
    positions: IntArray, labels: NDArray[np.generic] | None, count: int, *, seed: int
) -> tuple[IntArray, IntArray]:
    """Split ``count`` of the positions off, stratified by ``labels`` if possible."""
    # here, because scikit-learn takes seconds to import and the server needs none
    from sklearn.model_selection import train_test_split

    left, right = train_test_split(
        positions,
        test_size=count,
        random_state=seed,
        stratify=None if labels is None else _strata(labels[positions], count),
    )
    return left, right


def _strata(labels: NDArray[np.generic], count: int) -> NDArray[np.generic] | None:
    """Return ``labels``, or None if ``count`` cannot be stratified by them."""
    classes, sizes = np.unique(labels, return_counts=True)
    smaller_side = min(count, len(labels) - count)
    can_stratify = sizes.min() >= 2 and smaller_side >= len(classes)
    if not can_stratify:
        log.warning(
            "split of %d graphs is not stratified: class sizes are %s, %d to split off",
            len(labels),
            dict(zip(classes.tolist(), sizes.tolist(), strict=True)),
            count,
        )
    return labels if can_stratify else None
