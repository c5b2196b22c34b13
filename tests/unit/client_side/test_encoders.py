"""Encoders equal plain models of PyG with the same weights: outputs and gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from torch import nn
from torch_geometric import nn as pyg
from toys_edges import ENCODERS, NONE, multigraphs, spec_of

from clients.graphs.batching import CollatedGraphs
from clients.graphs.node_data import NodeData
from clients.models.encoders import edge_gnn
from clients.tasks.edge_learner import EdgeData
from fedgraph_flwr.core.data import GraphPartition
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.server_app import common_start


class Alone(nn.Module):
    """Reads no edge."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, x, edge_index):
        return self.mlp(x)


class Plain(nn.Module):
    """The same in the words of PyG: on COO edges, one function per layer."""

    def __init__(self, ours, name, graphs, direction):
        super().__init__()
        self.ours, self.name, self.direction = ours, name, direction
        h, d = ours.pre.out_features, 4
        mlp = lambda: nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, h))  # noqa: E731
        deg = torch.zeros(4)
        make = {
            "gin": lambda: pyg.GINConv(mlp()),
            "gine": lambda: pyg.GINEConv(mlp(), edge_dim=d),
            "gcn": lambda: pyg.GCNConv(h, h),
            "graphconv": lambda: pyg.GraphConv(h, h),
            "gatv2": lambda: pyg.GATv2Conv(h, h, heads=4, concat=False, edge_dim=d),
            "mlp": lambda: Alone(mlp()),
            "pna": lambda: pyg.PNAConv(
                h,
                h,
                ["mean", "min", "max", "std"],
                ["identity", "amplification", "attenuation"],
                deg + 1,
                edge_dim=d,
            ),
            "sage": lambda: pyg.SAGEConv(h, h),
        }[name]
        ways = ("along", "against") if direction == "separate" else ("along",)
        self.convs = nn.ModuleList(
            nn.ModuleDict({way: make() for way in ways}) for _ in ours.convs
        )
        self.convs.load_state_dict(ours.convs.state_dict())

    def forward(self, x, edge_index, attr, weight, undirected):
        given = {}
        if self.name in ("gine", "gatv2", "pna"):
            given = {"edge_attr": torch.cat([attr, weight[:, None]], 1)}
        elif self.name in ("gcn", "graphconv"):
            given = {"edge_weight": weight}
        if self.direction == "both" and not undirected:
            pairs = [k for k, (u, v) in enumerate(edge_index.T.tolist()) if u != v]
            back = edge_index.flip(0)[:, pairs]
            edge_index = torch.cat([edge_index, back], 1)
            given = {k: torch.cat([t, t[pairs]]) for k, t in given.items()}
        h = nn.functional.linear(x, self.ours.pre.weight, self.ours.pre.bias)
        for conv in self.convs:
            z = conv["along"](h, edge_index, **given)
            if self.direction == "separate":
                z = z + conv["against"](h, edge_index[[1, 0]], **given)
            h = z.relu()
        return z


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("direction", ["both", "forward", "separate"])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_is_pygs_on_batches_and_on_one_graph(name, direction, directed):
    graphs = multigraphs(directed=directed)
    spec = spec_of(graphs, name, direction)
    batch = CollatedGraphs(graphs, toys.CPU).batch(np.arange(4))
    ours = edge_gnn(spec, "graphs")
    plain = Plain(ours, name, graphs, direction)
    found = ours(batch, None)
    args = batch.edge_index, batch.edge_attr, batch.edge_weight, not directed
    h = plain(batch.x, *args).relu()
    pooled = pyg.global_add_pool(h, batch.graph_of_node, 4)
    wide = torch.cat([pooled, batch.graph_x], 1)
    theirs = ours.readout(ours.post(wide).relu())
    torch.testing.assert_close(found, theirs)
    nn.functional.cross_entropy(found, batch.y).backward()
    mine = gradients(ours.convs)
    nn.functional.cross_entropy(theirs, batch.y).backward()
    torch.testing.assert_close(mine, gradients(plain.convs), rtol=1e-4, atol=1e-5)
    # one graph, whose nodes and whose edges are predicted
    one = graphs.take(np.array([1]))
    of_nodes = replace(one, y=np.arange(7) % 2, pairs=None, item_edge=None)
    partition = GraphPartition(
        client_id=0,
        graphs=of_nodes,
        graph_ids=np.arange(7),
        train=np.arange(3),
        val=np.arange(3, 5),
        test=np.arange(5, 7),
    )
    whole = NodeData.collate(partition, toys.CPU).whole
    h = plain(
        whole.x, whole.edge_index, whole.edge_attr, whole.edge_weight, not directed
    )
    nodes = edge_gnn(spec, "nodes")
    nodes.load_state_dict(ours.state_dict(), strict=False)
    torch.testing.assert_close(nodes(whole, None), nodes.readout(h.relu()))


@pytest.mark.parametrize("head", ["edges", "links"])
@pytest.mark.parametrize("directed", [True, False])
def test_pairs_are_seen_by_both_ends_and_by_the_edge(directed, head):
    one = multigraphs(directed=directed).take(np.array([1]))
    items = np.array([0, 3, 4])
    graphs = replace(
        one, y=np.array([0, 1, 1]), pairs=one.edge_index[:, items], item_edge=items
    )
    partition = GraphPartition(
        client_id=0,
        graphs=graphs,
        graph_ids=items,
        train=items[:1] * 0,
        val=np.array([1]),
        test=np.array([2]),
    )
    whole = NodeData.collate(partition, toys.CPU).whole
    spec = spec_of(graphs, "gatv2", "both")
    model = edge_gnn(spec, head)
    h = model.embed(whole, None)
    for row, item in enumerate(items.tolist()):
        u, v = h[one.edge_index[:, item].astype(int)]
        own = np.append(graphs.edge_attr[item], graphs.edge_weight[item])
        if head == "edges":
            ends = [u, v] if directed else [u + v, u * v]
            z = torch.cat([*ends, torch.from_numpy(own)])
            expected = model.readout(model.post(z).relu())
        else:
            to = model.post(v) if directed else v
            expected = u @ to + model.readout(u + v)
        torch.testing.assert_close(model(whole, None)[row], expected)


def test_pna_scales_by_the_logarithm_of_the_degree():
    """As PyG makes it of nodes that all have this degree."""
    graphs = multigraphs(directed=True)
    spec = spec_of(graphs, "pna", "both", **{"pna-degree": 3.0})
    model = edge_gnn(spec, "graphs")
    theirs = pyg.aggr.DegreeScalerAggregation(
        ["mean"], ["identity"], torch.tensor([0, 0, 0, 9])
    )
    ours = model.convs[0].along.aggr_module
    torch.testing.assert_close(ours.avg_deg_lin, theirs.avg_deg_lin)
    torch.testing.assert_close(ours.avg_deg_log, theirs.avg_deg_log)


def test_numbers_of_columns_are_one_hot_rows():
    compact = multigraphs(directed=True, compact=True)
    wide = replace(compact, edge_attr=np.eye(3, dtype=np.float32)[compact.edge_attr])
    spec = spec_of(wide, "gine", "separate")
    model = edge_gnn(spec, "graphs")
    for positions in ([0], [3, 0, 1]):
        given = [
            model(CollatedGraphs(g, toys.CPU).batch(np.array(positions)), None)
            for g in (compact, wide)
        ]
        torch.testing.assert_close(*given)


def test_what_an_encoder_cannot_read_is_refused():
    graphs = multigraphs(directed=True)
    client = toys.resolved("fedavg").method.client
    bare = replace(graphs, edge_attr=None, edge_weight=None, num_edge_features=0)
    negative = replace(graphs, edge_weight=-graphs.edge_weight)
    for given, encoder, words in (
        (graphs, "paper", "which this model does not read"),
        (bare, "gine", "has none"),
        (negative, "gcn", "has a weight of -"),
    ):
        with pytest.raises(DataError, match=words):
            client.check_graphs(given, toys.run_settings(encoder=encoder))
    known = replace(graphs, graph_x=np.zeros((len(graphs), 1), np.float32))
    words = {"paper": "features and weights of edges, features of graphs", "pna": ""}
    for encoder, told in words.items():
        assert client.unread(known, toys.run_settings(encoder=encoder)) == told
    for method, changes, words in (
        ("fedgkd", {"encoder": "gin"}, "encoder must be 'paper' for fedgkd"),
        ("fedgmtl", {"encoder": "gin"}, "encoder must be 'paper' for fedgmtl"),
        ("examples.sage:METHOD", {"encoder": "gin"}, "encoder must be 'paper' for"),
        ("fedavg", {"encoder": "pna"}, "pna-degree must be above 0"),
        (
            "fedavg",
            {
                "encoder": "pna",
                "pna-degree": 2.0,
                "privacy.update-clip": 1.0,
                "privacy.update-noise": 1.0,
            },
            "would change the constants",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            toys.resolved(method, **changes)


@pytest.mark.parametrize("is_by_time", [True, False])
def test_later_edges_pass_no_message_if_items_are_split_by_time(is_by_time):
    """Nor do they change the score of an edge that came before them."""
    one = multigraphs(directed=True).take(np.array([1]))
    rng = np.random.default_rng(3)
    count = one.edge_index.shape[1]
    times = rng.permutation(count).astype(float)
    items = np.argsort(times)
    graphs = replace(
        one,
        y=np.arange(count) % 2,
        pairs=one.edge_index[:, items],
        item_edge=items,
        edge_time=times,
        time=times[items] if is_by_time else None,
    )
    partition = GraphPartition(
        client_id=0,
        graphs=graphs,
        graph_ids=items,
        train=np.arange(8),
        val=np.arange(8, 12),
        test=np.arange(12, count),
    )
    spec = spec_of(graphs, "gine", "separate")
    model = edge_gnn(spec, "edges")
    seen = EdgeData.collate(partition, toys.CPU).seen
    for name, cut in (("train", 7), ("val", 11), ("test", count - 1)):
        past = np.flatnonzero(times <= cut) if is_by_time else np.arange(count)
        part = partition.positions(name)
        small = replace(
            one.take_edges(past),
            y=graphs.y[part],
            pairs=graphs.pairs[:, part],
            item_edge=np.searchsorted(past, items[part]),
        )
        alone = replace(
            partition,
            graphs=small,
            train=np.arange(len(part)),
            val=NONE,
            test=NONE,
            data_hash="",
        )
        expected = model(NodeData.collate(alone, toys.CPU).whole, None)
        torch.testing.assert_close(model(seen[name], None), expected)
        np.testing.assert_array_equal(seen[name].y, small.y)


def test_keys_that_the_encoder_does_not_read_are_warned_of():
    keys = {"direction": "forward", "pna-degree": 2.0}
    for encoder, unread in (("paper", [*keys]), ("sage", ["pna-degree"]), ("pna", [])):
        found = toys.resolved("fedavg", **keys, encoder=encoder).warnings
        assert [w.split()[0] for w in found] == unread


def test_shared_layers_of_other_widths_are_refused_at_roll_call():
    """With convs alone shared, features may differ, but not those of edges."""
    run = toys.resolved("fedavg", **{"encoder": "gine", "shared-group": "convs"})

    def info(client, width):
        return toys.info(client, num_features=4 + client, num_edge_features=width)

    assert common_start(run, {0: info(0, 3), 1: info(1, 3)})
    with pytest.raises(ConfigError, match="have other shapes"):
        common_start(run, {0: info(0, 3), 1: info(1, 2)})
