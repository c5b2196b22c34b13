"""Batches cut from flat tensors are PyG's batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from torch_geometric.data import Batch as PygBatch

from clients.base import GraphClient
from clients.graphs.batching import CollatedGraphs
from fedgraph_flwr.core.data import GraphPartition, hash_data
from fedgraph_flwr.core.errors import DataError


def assert_same(ours, theirs) -> None:
    x = ours.x
    if x.dim() == 1:
        x = torch.nn.functional.one_hot(x, theirs.x.shape[1]).float()
    assert torch.equal(x, theirs.x)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.graph_of_node, theirs.batch)
    assert torch.equal(ours.y, theirs.y)
    n = theirs.num_nodes
    dense = torch.zeros(n, n)
    dense[theirs.edge_index[0], theirs.edge_index[1]] = 1
    assert torch.equal(ours.adjacency.to_dense(), dense)
    assert torch.equal(
        ours.membership.to_dense().sum(1).long(), theirs.batch.bincount()
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("positions", [[0], [3, 3], [7, 2, 5, 0], list(range(12))])
def test_a_batch_equals_pygs(dense, positions):
    graphs = toys.random_graphs(12, dense=dense)
    ours = CollatedGraphs(graphs, toys.CPU).batch(np.array(positions))
    data = toys.to_pyg(graphs)
    assert_same(ours, PygBatch.from_data_list([data[p] for p in positions]))


@pytest.mark.parametrize("beside", ["is_undirected", "is_simple"])
def test_a_model_that_reads_plain_edges_alone_refuses_others(beside):
    """It would send messages along them both ways, or in the wrong one."""
    graphs = replace(toys.random_graphs(3), **{beside: False})
    with pytest.raises(DataError, match="which this model does not read"):
        GraphClient.check_graphs(graphs, toys.run_settings())


@pytest.mark.parametrize("positions", [[0], [3, 3], [7, 2, 5, 0], list(range(12))])
def test_edges_keep_what_they_have_when_graphs_are_taken_and_joined(positions):
    """So do graphs; ``take`` first and a batch of the whole give the same."""
    plain, rng = toys.random_graphs(12), np.random.default_rng(0)
    rows, at = plain.edge_index.shape[1], np.array(positions)
    graphs = replace(
        plain,
        edge_attr=rng.normal(size=(rows, 3)).astype(np.float32),
        edge_weight=rng.random(rows).astype(np.float32),
        edge_time=rng.random(rows),
        graph_x=rng.random((12, 2)).astype(np.float32),
        num_edge_features=3,
    )
    batch = CollatedGraphs(graphs, toys.CPU).batch(at)
    taken = graphs.take(at)
    edges = np.concatenate([np.arange(*graphs.edge_ptr[p : p + 2]) for p in positions])
    for name in ("edge_attr", "edge_weight", "edge_time"):
        np.testing.assert_array_equal(
            getattr(taken, name), getattr(graphs, name)[edges]
        )
    for name in ("edge_attr", "edge_weight", "graph_x"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(taken, name))
    assert batch.edge_index.shape[1] == len(batch.edge_attr)
    none = np.zeros(0, np.int64)
    about = {
        "client_id": 0,
        "graph_ids": none,
        "train": none,
        "val": none,
        "test": none,
    }
    of_plain, of_all = (
        hash_data(GraphPartition(graphs=g, **about)) for g in (plain, graphs)
    )
    assert of_plain != of_all
    assert graphs.without_edges().beside == ()
