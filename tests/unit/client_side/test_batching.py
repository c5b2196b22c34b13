"""Batches cut from flat tensors are PyG's batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from torch_geometric.data import Batch as PygBatch
from torch_geometric.loader import DataLoader

import datasets
from clients.graphs.batching import ClientData, CollatedGraphs
from clients.training import epoch_positions
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.resolve import defaults, resolve


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


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS", "IMDB-BINARY"])
def test_an_epoch_on_real_data_equals_the_data_loader(name, data_dir, tmp_path):
    settings = resolve(
        {
            **defaults(),
            "dataset": name,
            "num-clients": 3,
            "method": "fedavg",
            "data-dir": data_dir,
        }
    ).settings
    data = ClientData.collate(datasets.load_partition(settings, 1), toys.CPU)
    order = torch.randperm(
        len(data.partition.train), generator=torch.Generator().manual_seed(4)
    )
    chosen = data.partition.train[order.numpy()]
    graphs = toys.to_pyg(data.partition.graphs)
    loader = DataLoader([graphs[p] for p in chosen], batch_size=32)
    generator = torch.Generator().manual_seed(4)
    ours = map(data.graphs.batch, epoch_positions(data.partition.train, 32, generator))
    count = 0
    for one, other in zip(ours, loader, strict=True):
        assert_same(one, other)
        count += 1
    assert count == -(-len(chosen) // 32)


def test_every_training_graph_comes_once_per_epoch():
    train = toys.make_partition().train
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        found = [*epoch_positions(train, 5, generator)]
        assert [*map(len, found)] == [5, 5, 2]
        assert sorted(np.concatenate(found)) == train.tolist()


def test_held_out_graphs_can_be_evaluated_in_several_batches():
    partition = toys.make_partition()
    whole = ClientData.collate(partition, toys.CPU)
    parts = ClientData.collate(partition, toys.CPU, max_nodes=6)
    assert len(whole.evaluation) == 1
    assert len(parts.evaluation) > 1
    together = torch.cat([b.y for b in parts.evaluation])
    assert torch.equal(together, whole.evaluation[0].y)


def test_graphs_with_edges_in_one_direction_are_refused():
    """Models here would send messages along them both ways, or in the wrong one."""
    one_way = replace(toys.random_graphs(3), is_undirected=False)
    with pytest.raises(DataError, match="one direction only"):
        CollatedGraphs(one_way, toys.CPU)
