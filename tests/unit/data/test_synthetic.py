"""The generated default data set."""

import numpy as np
import pytest
import torch
import toys

import datasets
from datasets import synthetic


def settings(**changes):
    own = {"dataset": "synthetic", "num_clients": 4, "partition": "planted"}
    return toys.run_settings(**{**own, **changes})


def arrays(graphs):
    return [graphs.x, graphs.edge_index, graphs.node_ptr, graphs.edge_ptr, graphs.y]


def same(left, right):
    return all(map(np.array_equal, arrays(left), arrays(right)))


@pytest.fixture(scope="module")
def graphs():
    """One client of each group."""
    return [synthetic.generate_client(client, 123) for client in (0, 1)]


def test_graphs_are_well_formed(graphs):
    for data in graphs:
        smallest, largest = synthetic.NUM_NODES
        sizes = np.diff(data.node_ptr)
        assert smallest <= sizes.min() <= sizes.max() <= largest
        assert (data.edge_index.dtype, data.x.dtype) == (np.int32, np.uint8)
        assert data.num_features == 16
        for i in range(len(data)):
            own = slice(data.edge_ptr[i], data.edge_ptr[i + 1])
            pairs = data.edge_index[:, own].T.tolist()
            assert pairs == sorted(pairs)
            assert {(a, b) for a, b in pairs} == {(b, a) for a, b in pairs}
            assert all(a != b < sizes[i] for a, b in pairs)
            degree = np.bincount([a for a, _ in pairs], minlength=sizes[i])
            x = data.x[data.node_ptr[i] : data.node_ptr[i + 1]]
            assert x.tolist() == np.minimum(degree, 15).tolist()


def test_same_seed_same_graphs_whatever_came_before(graphs):
    torch.manual_seed(99)
    synthetic.generate_client(3, 7)
    assert same(synthetic.generate_client(0, 123), graphs[0])
    assert not same(synthetic.generate_client(0, 124), graphs[0])
    assert not np.array_equal(
        synthetic.generate_client(2, 123).edge_index, graphs[0].edge_index
    )


def test_partition_knows_its_group():
    config = settings()
    parts = [datasets.load_partition(config, client) for client in range(4)]
    assert [part.group for part in parts] == [0, 1, 0, 1]
    assert len(parts[1].graphs) > len(parts[0].graphs)
    rows = np.concatenate([part.graph_ids for part in parts])
    assert rows.tolist() == list(range(len(rows)))
    assert len({part.split_hash for part in parts}) == 4
    for part in parts:
        for split in ("train", "val", "test"):
            counts = np.bincount(part.graphs.y[part.positions(split)], minlength=2)
            assert abs(counts[0] - counts[1]) <= 1
