"""The generated default data set."""

import random

import numpy as np
import pytest
import torch
import toys

import datasets
from datasets import synthetic
from fedgraph_flwr.core.seeding import derive_seed


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


@pytest.mark.slow  # the import alone takes seconds
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_graphs_are_those_of_pytorch_geometric(graphs):
    from torch_geometric.utils import barabasi_albert_graph, erdos_renyi_graph

    for client, data in enumerate(graphs):
        for i in range(40):
            seed = derive_seed(123, "synthetic", client, i)
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - what PyTorch Geometric uses
            nodes = int(data.node_ptr[i + 1] - data.node_ptr[i])
            expected = barabasi_albert_graph(nodes, synthetic.EDGES_PER_NEW_NODE)
            if i % 2 == 0:
                density = expected.shape[1] / (nodes * (nodes - 1))
                expected = erdos_renyi_graph(nodes, density)
            own = slice(data.edge_ptr[i], data.edge_ptr[i + 1])
            assert np.array_equal(data.edge_index[:, own], expected)


def test_global_random_streams_are_left_alone():
    def draw():
        return torch.rand(3).tolist(), np.random.rand(), random.random()  # noqa: NPY002

    def seed():
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global stream is what is tested
        random.seed(1)

    seed()
    expected = draw()
    seed()
    synthetic.generate_client(0, 123)
    assert draw() == expected


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
