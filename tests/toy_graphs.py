"""Toy graphs, and federations of them, that tests can check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import datasets
from datasets.edge_items import edge_items
from datasets.splits import mask_tasks
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, pointer


def random_graphs(
    num_graphs: int,
    *,
    num_features: int = 4,
    num_classes: int = 2,
    seed: int = 0,
    dense: bool = False,
    max_nodes: int = 8,
) -> GraphSet:
    """Undirected graphs of 1 to ``max_nodes`` nodes; every fifth is a single node.

    The last node of a graph of more than two is isolated. Features are one-hot
    columns, or real rows if ``dense``.
    """
    rng = np.random.default_rng(seed)
    sizes = [
        1 if g % 5 == 0 else int(rng.integers(2, max_nodes + 1))
        for g in range(num_graphs)
    ]
    edges = [_random_edges(rng, n, 0.5, is_cut=n > 2) for n in sizes]
    y = np.arange(num_graphs, dtype=np.int64) % num_classes
    if dense:
        x = rng.normal(size=(sum(sizes), num_features)).astype(np.float32)
    else:
        x = rng.integers(0, num_features, sum(sizes)).astype(np.uint8)
    return _graph_set("toy", sizes, edges, x, y, num_features, num_classes)


def make_whole_graph(
    num_nodes: int,
    *,
    num_features: int = 6,
    num_classes: int = 3,
    seed: int = 0,
    density: float = 0.2,
) -> GraphSet:
    """One undirected graph with classes of nodes; the last node is isolated."""
    rng = np.random.default_rng(seed)
    edges = _random_edges(rng, num_nodes, density, is_cut=True)
    y = np.arange(num_nodes, dtype=np.int64) % num_classes
    x = rng.normal(size=(num_nodes, num_features)) + np.eye(num_features)[y]
    sizes, x = [num_nodes], x.astype(np.float32)
    return _graph_set("toy-nodes", sizes, [edges], x, y, num_features, num_classes)


def _random_edges(
    rng: np.random.Generator, num_nodes: int, density: float, *, is_cut: bool
) -> NDArray[Any]:
    upper = np.triu(rng.random((num_nodes, num_nodes)) < density, 1)
    if is_cut:
        upper[:, -1] = False
    return np.argwhere(upper | upper.T).T


def _graph_set(
    name: str,
    sizes: Sequence[int],
    edges: Sequence[NDArray[Any]],
    x: NDArray[Any],
    y: NDArray[Any],
    num_features: int,
    num_classes: int,
) -> GraphSet:
    return GraphSet(
        name=name,
        x=x,
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=pointer(sizes),
        edge_ptr=pointer([e.shape[1] for e in edges]),
        y=y,
        num_features=num_features,
        num_classes=num_classes,
        is_undirected=True,
    )


def make_partition(
    client_id: int = 0, *, num_graphs: int = 20, held_out: float = 0.4, **kw: Any
) -> GraphPartition:
    """Of five graphs in a row, three train, one validates, one tests.

    With ``held_out`` = 0 all train.
    """
    graphs = random_graphs(num_graphs, **{"seed": client_id, **kw})
    return _partition(client_id, graphs, num_graphs, is_split=held_out > 0)


def make_node_partition(
    client_id: int = 0, *, num_nodes: int = 20, **kw: Any
) -> GraphPartition:
    """Of five nodes in a row, three train, one validates, one tests."""
    graph = make_whole_graph(num_nodes, **{"seed": client_id, **kw})
    return _partition(client_id, graph, num_nodes)


def _partition(
    client: int, graphs: GraphSet, count: int, *, is_split: bool = True
) -> GraphPartition:
    turn = np.arange(count) % 5 * is_split
    return GraphPartition(
        client_id=client,
        graphs=graphs,
        graph_ids=1000 * client + np.arange(count),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client % 2,
    )


def with_tasks(partition: GraphPartition, kind: str = "binary") -> GraphPartition:
    """Label the graphs 0 or 1 for two tasks, of which a few labels are missing.

    For "regression", by their number of nodes and half of it instead.
    """
    count = len(partition.graphs)
    y = np.stack([np.arange(count) // 5 % 2, np.arange(count) // 10 % 2], axis=1)
    if kind == "regression":
        y = np.diff(partition.graphs.node_ptr)[:, None] * np.array([1.0, 0.5])
    y = y.astype(np.float32)
    y[::7, 1] = np.nan
    return replace(partition, graphs=replace(partition.graphs, y=y), tasks=("a", "b"))


def federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Stand in for ``datasets.load_partition``: clients of 20, 25, 30, ... graphs.

    Or of so many nodes, where these are classified, or edges between them are learned.
    """
    kind, size = datasets.label_kind(settings), 20 + 5 * client_id
    if kind in ("nodes", "edges", "links"):
        made = make_node_partition(client_id, num_nodes=size)
        y, classes = made.graphs.y[made.graphs.edge_index[0]], ["a", "b", "c"]
        graphs = replace(made.graphs, edge_y=y, edge_classes=classes)
        made = replace(made, graphs=graphs) if kind == "edges" else made
        return edge_items(made, settings)
    held_out = settings.held_out
    partition = make_partition(client_id, num_graphs=size, held_out=held_out)
    if kind == "classes":
        return partition
    return mask_tasks(with_tasks(partition, kind), settings)
