"""Statistics that clients tell of their graphs: numbers, reading back, the table."""

import json
import math

import numpy as np
import pytest
import toys

from fedgraph_flwr.core.data import GraphPartition, GraphSet, Statistics, measure
from fedgraph_flwr.results.printed import statistics_table


def path_and_node(y, node_ptr):
    """Nodes 0 - 1 - 2 in a row, and node 3 alone: in a graph of its own, or not."""
    graphs = GraphSet(
        name="toy",
        x=np.zeros((4, 1), np.float32),
        edge_index=np.array([[0, 1, 1, 2], [1, 0, 2, 1]], np.int32),
        node_ptr=np.array(node_ptr),
        edge_ptr=np.array([0, 4, 4][: len(node_ptr)]),
        y=np.array(y),
        num_features=1,
        num_classes=2,
        is_undirected=True,
    )
    ids = np.arange(len(graphs.y))
    return GraphPartition(
        client_id=0,
        graphs=graphs,
        graph_ids=ids,
        train=ids[:1],
        val=ids[1:2],
        test=ids[2:],
    )


def two_graphs(y):
    return path_and_node(y, [0, 3, 4])


def one_graph(y):
    return path_and_node(y, [0, 4])


def test_whole_graphs_by_hand():
    found = measure(two_graphs([1, 1]), is_binary=False)
    assert (found.num_graphs, found.num_nodes) == (2, 4)
    assert (found.nodes_per_graph, found.edges_per_graph) == (2, 1)
    assert (found.degree, found.isolated) == (1, 0.25)
    assert math.isnan(found.homophily)
    assert found.counts == (0, 2)


def test_nodes_without_label_count_for_nothing():
    found = measure(one_graph([0, 0, 1, -1]), is_binary=False)
    assert found.counts == (2, 1)
    assert found.homophily == 0.5
    assert measure(one_graph([0, -1, 1, 1]), is_binary=False).counts == (1, 2)
    assert math.isnan(measure(one_graph([0, -1, 1, 1]), is_binary=False).homophily)


def test_targets():
    y = np.array([[1, 2.5], [1, np.nan]], np.float32)
    assert measure(two_graphs(y), is_binary=True).counts == (2, 0)
    numbers = measure(two_graphs(y), is_binary=False)
    assert numbers.target_mean == (1, 2.5)
    assert numbers.target_std == (0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": [-1, 2]},
        {"counts": [1.5]},
        {"counts": [1] * 51},
        {"num_graphs": 10**30},
        {"degree": "high"},
        {"target_mean": [None]},
    ],
)
def test_nonsense_of_a_client_counts_as_nothing_told(change):
    good = measure(two_graphs([0, 1]), is_binary=False).to_json()
    assert Statistics.from_json(good) is not None
    assert Statistics.from_json(json.dumps({**json.loads(good), **change})) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 9999])
def test_no_statistics_at_all(text):
    assert Statistics.from_json(text) is None


def test_table(tmp_path):
    told = {
        0: measure(one_graph([0, 0, 1, -1]), is_binary=False),
        2: measure(one_graph([1, 1, 1, 0]), is_binary=False),
    }
    clients = {
        c: toys.info(c, introduced={"statistics": s.to_json()}) for c, s in told.items()
    }
    table = statistics_table({**clients, 1: toys.info(1)})
    assert [*table["client"]] == [0, 1, 2]
    assert table.iloc[1, 1:].isna().all()
    assert "homophily" in table
