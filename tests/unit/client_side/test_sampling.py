"""Samples of a graph: all neighbours are exact, some are right on average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from toys_edges import ENCODERS, NONE, multigraphs, spec_of

import datasets
from clients.graphs.node_data import NodeData
from clients.graphs.ops import dense_rows
from clients.graphs.sampling import Neighbours, _distinct
from clients.models import encoders
from clients.models.encoders import edge_gnn
from clients.models.node_gnn import GCNConv, NodeGNN, SAGEConv
from fedgraph_flwr.core.config import ALL
from fedgraph_flwr.core.data import GraphPartition
from fedgraph_flwr.core.errors import ConfigError


def of_nodes(graph):
    count = graph.num_nodes
    return GraphPartition(
        client_id=0,
        graphs=graph,
        graph_ids=np.arange(count),
        train=np.arange(count),
        val=NONE,
        test=NONE,
    )


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("direction", ["both", "forward", "separate"])
@pytest.mark.parametrize("name", [e for e in ENCODERS if e != "gcn"])
def test_with_all_neighbours_an_encoder_sees_what_it_sees_in_the_graph(
    name, direction, directed
):
    graphs = multigraphs(directed=directed).take(np.array([1]))
    graphs = replace(graphs, y=np.zeros(7, np.int64))
    whole = NodeData.collate(of_nodes(graphs), toys.CPU).whole
    model = edge_gnn(spec_of(graphs, name, direction), "nodes")
    neighbours = Neighbours(whole, direction)
    for seeds in ([0], [5, 2], [6, 1, 3]):
        fanouts = [ALL] * len(model.convs)
        sample = neighbours.around(torch.tensor(seeds), fanouts, seeded())
        found = model(sample, None)[: len(seeds)]
        torch.testing.assert_close(found, model(whole, None)[seeds])


def gnn(graph, conv, **more):
    widths = graph.num_features, graph.num_classes
    sizes = {"hidden_dim": 8, "num_layers": 2, "dropout": 0.0}
    return NodeGNN(*widths, **sizes, generator=seeded(), conv=conv, **more)


@pytest.mark.parametrize("num_features", [3, 40])  # dense, and sparse rows
@pytest.mark.parametrize("conv", [GCNConv, SAGEConv])
@pytest.mark.parametrize("ends_in_conv", [True, False])
def test_with_all_neighbours_a_gnn_has_the_graphs_logits_and_gradients(
    num_features, conv, ends_in_conv
):
    graph = toys.make_whole_graph(40, density=0.05, num_features=num_features)
    whole = NodeData.collate(of_nodes(graph), toys.CPU).whole
    model = gnn(graph, conv, ends_in_conv=ends_in_conv)
    seeds = torch.tensor([3, 17, 4])
    sample = Neighbours(whole, "both").around(seeds, [ALL, ALL], seeded())
    assert len(sample.nodes) < 40
    np.testing.assert_array_equal(dense_rows(sample.features), whole.x[sample.nodes])
    grads = []
    for logits in (model(sample, None)[:3], model(whole, None)[seeds]):
        model.zero_grad()
        logits.square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        grads[-1].append(logits.detach())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("conv", [GCNConv, SAGEConv])
def test_a_layer_of_drawn_neighbours_has_the_mean_of_the_graphs(conv):
    graph = toys.make_whole_graph(30, density=0.4, num_features=3)
    whole = NodeData.collate(of_nodes(graph), toys.CPU).whole
    layer, neighbours = conv(3, 4, seeded()), Neighbours(whole, "both")
    seeds, drawn, count = torch.tensor([2, 9]), seeded(1), 4000
    with torch.no_grad():
        found = []
        for _ in range(count):
            sample = neighbours.around(seeds, [3], drawn)
            assert (torch.bincount(sample.arriving[1]) == 3).all()
            found.append(layer(sample.features, sample)[:2])
        off = torch.stack(found) - layer(whole.x, whole)[seeds]
    assert (off.mean(0).abs() < 5 * off.std(0) / count**0.5).all()
    assert off.std() > 0.01


def test_neighbours_are_drawn_without_repeats_and_alike():
    sizes, count = torch.tensor([5, 9]), 3
    drawn = torch.stack(
        [_distinct(sizes, count, g) for g in [seeded()] for _ in range(3000)]
    )
    assert (drawn.diff(dim=2) > 0).all()
    for row, size in enumerate(sizes.tolist()):
        share = torch.bincount(drawn[:, row].flatten(), minlength=size) / 3000
        expected = count / size
        assert (share - expected).abs().max() < 5 * (expected / 3000) ** 0.5


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("direction", ["both", "separate"])
def test_scores_made_by_parts_are_those_of_the_whole(name, direction, monkeypatch):
    graphs = multigraphs(directed=True).take(np.array([1]))
    graphs = replace(graphs, y=np.zeros(7, np.int64))
    whole = NodeData.collate(of_nodes(graphs), toys.CPU).whole
    model = edge_gnn(spec_of(graphs, name, direction), "nodes")
    expected = model(whole, None).detach()
    for most in (1, 4, 9):
        monkeypatch.setattr(encoders, "MOST_MESSAGES", most)
        with torch.no_grad():
            torch.testing.assert_close(model(whole, None), expected)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("fedgkd", {"fanout": "5"}, "fanout must be empty for fedgkd"),
        ("scaffold", {"fanout": "5", "optimizer": "sgd"}, "must be empty for scaff"),
        ("fedproto", {"fanout": "5"}, "fanout must be empty for fedproto"),
        ("fedavg", {"fanout": "5,5,5"}, "one for each of the 2 layers"),
        ("fedavg", {"fanout": "5", "encoder": "gcn"}, "must not be 'gcn' with fanout"),
        ("fedavg", {"fanout": "0"}, "fanout must be 'all', a number, or"),
        ("fedavg", {"planted-degree": 60.0}, "is too much for planted-nodes"),
    ],
)
def test_what_cannot_be_sampled_is_refused(method, given, words):
    with pytest.raises(ConfigError, match=words):
        datasets.load_partition(
            toys.resolved(method, dataset="planted", **given).settings, 0
        )
