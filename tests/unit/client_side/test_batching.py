"""Batches cut from flat tensors are PyG's batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from torch_geometric.data import Batch as PygBatch

from clients.graphs.batching import CollatedGraphs
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


def test_graphs_with_edges_in_one_direction_are_refused():
    """Models here would send messages along them both ways, or in the wrong one."""
    one_way = replace(toys.random_graphs(3), is_undirected=False)
    with pytest.raises(DataError, match="one direction only"):
        CollatedGraphs(one_way, toys.CPU)
