"""Small generated federations, on which every method is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from datasets import label_kind
from datasets.task_masks import mask_tasks
from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition, GraphSet, pointer


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
    edges = []
    for n in sizes:
        upper = np.triu(rng.random((n, n)) < 0.5, 1)
        if n > 2:
            upper[:, -1] = False
        edges.append(np.argwhere(upper | upper.T).T)
    total = sum(sizes)
    return GraphSet(
        name="toy",
        x=(
            rng.normal(size=(total, num_features)).astype(np.float32)
            if dense
            else rng.integers(0, num_features, total).astype(np.uint8)
        ),
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=pointer(sizes),
        edge_ptr=pointer([e.shape[1] for e in edges]),
        y=np.arange(num_graphs, dtype=np.int64) % num_classes,
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
    turn = np.arange(num_graphs) % 5 if held_out else np.zeros(num_graphs, int)
    return GraphPartition(
        client_id=client_id,
        graphs=graphs,
        graph_ids=1000 * client_id + np.arange(num_graphs),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client_id % 2,
    )


def federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Stand in for ``datasets.load_partition``: clients of 20, 25, 30, ... graphs.

    Or of so many nodes, where these are classified.
    """
    if label_kind(settings) == "nodes":
        return make_node_partition(client_id, num_nodes=20 + 5 * client_id)
    partition = make_partition(
        client_id, num_graphs=20 + 5 * client_id, held_out=settings.held_out
    )
    kind = label_kind(settings)
    if kind == "classes":
        return partition
    labelled = with_tasks(partition, kind)
    return mask_tasks(labelled, settings)


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
    upper = np.triu(rng.random((num_nodes, num_nodes)) < density, 1)
    upper[:, -1] = False
    edges = np.argwhere(upper | upper.T).T
    y = np.arange(num_nodes, dtype=np.int64) % num_classes
    x = rng.normal(size=(num_nodes, num_features)) + np.eye(num_features)[y]
    return GraphSet(
        name="toy-nodes",
        x=x.astype(np.float32),
        edge_index=edges.astype(np.int32),
        node_ptr=pointer([num_nodes]),
        edge_ptr=pointer([edges.shape[1]]),
        y=y,
        num_features=num_features,
        num_classes=num_classes,
        is_undirected=True,
    )


def make_node_partition(
    client_id: int = 0, *, num_nodes: int = 20, **kw: Any
) -> GraphPartition:
    """Of five nodes in a row, three train, one validates, one tests."""
    turn = np.arange(num_nodes) % 5
    return GraphPartition(
        client_id=client_id,
        graphs=make_whole_graph(num_nodes, **{"seed": client_id, **kw}),
        graph_ids=1000 * client_id + np.arange(num_nodes),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client_id % 2,
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


def other_federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Make as many graphs or nodes as :func:`federation`, with other content."""
    own = federation(settings, client_id)
    if len(own.graphs) == 1:  # whose nodes are classified
        graphs = make_whole_graph(own.graphs.num_nodes, seed=50 + client_id)
    else:
        graphs = random_graphs(len(own.graphs), seed=50 + client_id)
    y = own.graphs.y.copy()
    y[: len(y) // 2] = y[0]
    return replace(own, graphs=replace(graphs, name=own.graphs.name, y=y))


def with_other_test_labels(partition: GraphPartition) -> GraphPartition:
    """Label the test items otherwise, each of them."""
    graphs, test = partition.graphs, partition.test
    y = graphs.y.copy()
    y[test] = 1 - y[test] if graphs.has_tasks else (y[test] + 1) % graphs.num_classes
    return replace(partition, graphs=replace(graphs, y=y), data_hash="")
