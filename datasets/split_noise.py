"""Noise on features, edges or labels as part of the split, to test a method.

What is drawn depends on ``split-seed`` and the client alone, so that all runs on a
split have the same noise. It is no privacy: who knows the seed can undo most of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.seeding import numpy_rng

_FEW_PAIRS = 1_000_000  # of a graph: up to so many, pairs without an edge are listed


def check_noise(settings: RunSettings, label_kind: str) -> None:
    """Refuse noise on labels that are numbers: no other class could replace them.

    Raises
    ------
    ConfigError
    """
    if settings.split_noise_labels and label_kind == "regression":
        raise ConfigError(
            f"split-noise-labels must be 0 for labels that are numbers, got"
            f" {settings.split_noise_labels:g}: noise replaces a class by another; set"
            " it to 0 in the run config"
        )


def add_noise(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Return a client's data with the noise of a run; the same object without any.

    Parameters
    ----------
    partition : GraphPartition
    settings : RunSettings
        ``split_noise_features``, ``split_noise_edges``, ``split_noise_labels`` and
        ``split_seed`` are read.

    Raises
    ------
    DataError
        Labels are to be noisy and there is one class only.
    """
    shares = {
        "features": settings.split_noise_features,
        "edges": settings.split_noise_edges,
        "labels": settings.split_noise_labels,
    }
    if not any(shares.values()):
        return partition
    streams = {
        kind: numpy_rng(settings.split_seed, "noise", partition.client_id, kind)
        for kind in shares
    }
    graphs = partition.graphs
    if share := shares["features"]:
        x = shuffled_rows(graphs.x, share, streams["features"])
        graphs = replace(graphs, x=x)
    if share := shares["edges"]:
        graphs = rewired(graphs, share, streams["edges"])
    if share := shares["labels"]:
        y = flipped(graphs, partition.train, share, streams["labels"])
        graphs = replace(graphs, y=y)
    words = ",".join(f"{kind}={share:g}" for kind, share in shares.items() if share)
    noise = f"{words},seed={settings.split_seed}"
    return replace(partition, graphs=graphs, noise=noise, data_hash="")


def shuffled_rows(
    x: NDArray[np.generic], share: float, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Let a share of the nodes exchange their features.

    Every value stays as frequent as it was.

    Parameters
    ----------
    x : array, shape (num_nodes, num_features) or (num_nodes,)
    share : float
        In [0, 1], of the nodes of all graphs; rounded to whole nodes. One node alone
        has nobody to swap with.
    rng : Generator
    """
    chosen = rng.permutation(len(x))[: round(share * len(x))]
    noisy = np.array(x)
    noisy[chosen] = noisy[np.roll(chosen, 1)]
    return noisy


def rewired(graphs: GraphSet, share: float, rng: np.random.Generator) -> GraphSet:
    """Replace a share of each graph's edges by pairs of nodes that had none.

    An undirected edge counts once. Self-loops stay. A graph keeps its number of edges,
    unless it has too few pairs without an edge.

    Parameters
    ----------
    graphs : GraphSet
    share : float
        In [0, 1]; rounded to whole edges in each graph.
    rng : Generator
    """
    found, counts = [], []
    for g in range(len(graphs)):
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        size = int(graphs.node_ptr[g + 1] - graphs.node_ptr[g])
        noisy = _rewire(edges, size, share, rng, is_undirected=graphs.is_undirected)
        found.append(noisy)
        counts.append(noisy.shape[1])
    return replace(
        graphs,
        edge_index=np.concatenate(found, axis=1).astype(graphs.edge_index.dtype),
        edge_ptr=pointer(counts),
    )


def _rewire(
    edges: NDArray[np.integer],
    size: int,
    share: float,
    rng: np.random.Generator,
    *,
    is_undirected: bool,
) -> IntArray:
    """Edges of one graph, shape (2, num_edges), sorted by source, then target."""
    source, target = np.array(edges, dtype=np.int64)
    is_loop = source == target
    is_pair = source < target if is_undirected else ~is_loop
    pairs = np.unique(source[is_pair] * size + target[is_pair])
    count = round(share * len(pairs))
    new = _free_pairs(pairs, size, count, rng, is_undirected=is_undirected)
    gone = rng.permutation(len(pairs))[: len(new)]
    kept = np.concatenate([np.delete(pairs, gone), new])
    one_way = np.stack([kept // max(size, 1), kept % max(size, 1)])
    loops = np.stack([source[is_loop], target[is_loop]])
    parts = [one_way, one_way[::-1], loops] if is_undirected else [one_way, loops]
    every = np.concatenate(parts, axis=1)
    return every[:, np.lexsort((every[1], every[0]))]


def _free_pairs(
    pairs: IntArray,
    size: int,
    count: int,
    rng: np.random.Generator,
    *,
    is_undirected: bool,
) -> IntArray:
    """Draw ``count`` pairs that are not in ``pairs``; fewer if there are fewer.

    A pair (u, v) is the number u * size + v, with u < v if edges are undirected.
    """
    total = size * (size - 1) // (2 if is_undirected else 1)
    count = min(count, total - len(pairs))
    if size * size <= _FEW_PAIRS:
        numbers = np.arange(size * size)
        u, v = numbers // max(size, 1), numbers % max(size, 1)
        numbers = numbers[u < v if is_undirected else u != v]
        return rng.permutation(np.setdiff1d(numbers, pairs))[:count]
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count:
        u, v = rng.integers(size, size=(2, 2 * count + 10))
        if is_undirected:
            u, v = np.minimum(u, v), np.maximum(u, v)
        more = (u * size + v)[u != v]
        more = more[~np.isin(more, pairs)]
        every = np.concatenate([drawn, more])
        _, first = np.unique(every, return_index=True)
        drawn = every[np.sort(first)]
    return drawn[:count]


def flipped(
    graphs: GraphSet, train: IntArray, share: float, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Return labels; a share of those to train on is wrong.

    A class becomes one of the others, each as likely; a yes/no label becomes the other.
    Labels to validate and test by stay right.

    Parameters
    ----------
    graphs : GraphSet
    train : int array
        Positions of the graphs, or nodes, to train on.
    share : float
        In [0, 1], of the labels that are there; rounded to whole labels.
    rng : Generator

    Raises
    ------
    DataError
        There is one class only.
    """
    y = np.array(graphs.y)
    if graphs.has_tasks:
        row, task = np.nonzero(~np.isnan(y[train]))
        chosen = rng.permutation(len(row))[: round(share * len(row))]
        at = train[row[chosen]], task[chosen]
        y[at] = 1 - y[at]
        return y
    if graphs.num_classes < 2:
        raise DataError(
            f"split-noise-labels {share:g} needs two classes or more, {graphs.name} has"
            f" {graphs.num_classes}; set it to 0 in the run config"
        )
    known = train[y[train] >= 0]
    chosen = rng.permutation(known)[: round(share * len(known))]
    step = rng.integers(1, graphs.num_classes, size=len(chosen))
    y[chosen] = (y[chosen] + step) % graphs.num_classes
    return y
