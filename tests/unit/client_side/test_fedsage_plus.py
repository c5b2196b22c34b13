"""FedSage+: mended graphs, impaired graphs, the generator and its losses."""

from __future__ import annotations

import numpy as np
import torch
import toys
from oracles import fedsage_plus as oracle
from torch_geometric.nn import GCNConv, SAGEConv
from toys import seeded

from clients import fedsage_plus
from clients.fedsage_plus_generator import (
    MendedGraph,
    NeighbourGenerator,
    adjacency_of,
    choose_neighbours,
    impair,
    train_generator,
)
from clients.models import node_gnn
from fedgraph_flwr.core.seeding import derive_seed

CPU = torch.device("cpu")
PATH = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # 0 - 1 - 2 - 3


def mended():
    """A path of four nodes and a fifth alone; two new nodes on 1, one on 4."""
    x, new = (
        torch.randn(5, 3, generator=seeded()),
        torch.randn(3, 3, generator=seeded(1)),
    )
    owner = torch.tensor([1, 1, 4])
    return MendedGraph(adjacency_of(PATH, 5, CPU), x, new, owner)


EDGES = torch.tensor(  # the same, written out in both directions
    [[0, 1, 1, 2, 2, 3, 1, 5, 1, 6, 4, 7], [1, 0, 2, 1, 3, 2, 5, 1, 6, 1, 7, 4]]
)


def test_a_mended_graph_propagates_as_pyg_does_on_its_edge_list():
    graph = mended()
    for ours, theirs in (
        (node_gnn.GCNConv(3, 4, seeded()), GCNConv(3, 4)),
        (node_gnn.SAGEConv(3, 4, seeded()), SAGEConv(3, 4)),
    ):
        with torch.no_grad():
            if isinstance(theirs, GCNConv):
                theirs.lin.weight.copy_(ours.weight)
                theirs.bias.copy_(ours.bias)
            else:
                theirs.lin_l.weight.copy_(ours.neighbours.weight)
                theirs.lin_l.bias.copy_(ours.neighbours.bias)
                theirs.lin_r.weight.copy_(ours.root)
            np.testing.assert_allclose(
                ours(graph.x, graph), theirs(graph.x, EDGES), atol=1e-5
            )


def test_hiding_a_node_by_hand():
    found = impair(PATH, 5, np.array([2]))
    assert found.kept.tolist() == [0, 1, 3, 4]
    assert found.edge_index.tolist() == [[0, 1], [1, 0]]
    assert found.missing.tolist() == [0, 1, 1, 0]
    assert found.lost.tolist() == [[1, 2], [2, 2]]


def test_counts_are_rounded_and_limited():
    owner, slot = choose_neighbours(torch.tensor([0.4, 1.6, 0.0, 9.0]), 3)
    assert owner.tolist() == [1, 1, 3, 3, 3]
    assert slot.tolist() == [0, 1, 0, 1, 2]


WHOLE = toys.make_whole_graph(20)


def trained(steps):
    """A generator and a classifier after training, and the losses."""
    impaired = impair(WHOLE.edge_index.astype(np.int64), 20, np.array([3, 8, 13]))
    sizes = {"num_layers": 2, "dropout": 0.0, "conv": node_gnn.SAGEConv}
    classifier = node_gnn.NodeGNN(6, 3, hidden_dim=8, **sizes, generator=seeded())
    own = {"max_neighbours": 2, "noise": 1.0, "generator": seeded()}
    model = NeighbourGenerator(6, hidden_dim=8, **own)
    data = torch.from_numpy(WHOLE.x), torch.from_numpy(WHOLE.y), torch.arange(10)
    how = {"learning_rate": 1e-3, "weight_decay": 0.0, "generator": seeded()}
    losses = train_generator(model, classifier, impaired, *data, steps=steps, **how)
    return model, classifier, losses


def test_the_graph_is_mended_once_and_what_is_made_stays_at_home(run, monkeypatch):
    calls: list[int] = []
    train = fedsage_plus.train_generator

    def spy(*args, **kw):
        calls.append(1)
        return train(*args, **kw)

    monkeypatch.setattr(fedsage_plus, "train_generator", spy)
    finished = run("fedsage+")
    assert len(calls) == 3  # clients, not rounds
    ours = {r["bytes"] for r in finished.ledger if r["record"] == "arrays"}
    plain = run("fedsage")
    assert ours == {r["bytes"] for r in plain.ledger if r["record"] == "arrays"}
    assert finished.sha != plain.sha


def test_what_a_client_generates_is_what_the_oracle_does(tmp_path, monkeypatch):
    part = toys.make_node_partition(density=0.46)
    for name, value in {
        "MAX_NEIGHBOURS": 2, "NOISE": 0.5, "LEARNING_RATE": 0.01, "HIDDEN_SHARE": 1.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"clients.fedsage_plus.{name}", value)
    options = {"fedsage-plus.rounds": 2}
    options |= {"local-epochs": 2, "weight-decay": 0.1, "dropout": 0.0}
    client = toys.make_client(tmp_path, "fedsage+", partition=part, **options)
    toys.begun(client)
    seed = derive_seed(client.job.settings.seed, "common", "neighbours")
    model = NeighbourGenerator(
        6, hidden_dim=8, max_neighbours=2, noise=0.5, generator=seeded(seed)
    )
    hidden, stream, edges = (
        client._hidden().tolist(),
        seeded(seed),
        torch.zeros(20, 20),
    )
    sizes = [20 - len(hidden)] * 4 + [20]
    noises = [0.5 * torch.empty(n, 8).normal_(generator=stream) for n in sizes]
    edges[tuple(part.graphs.edge_index)] = 1
    models = model.state_dict(), client.model.state_dict()
    owners, features = oracle.mend(
        *models,
        torch.from_numpy(part.graphs.x), edges, torch.from_numpy(part.graphs.y),
        part.train.tolist(), hidden, noises, rate=0.01, decay=0.1,
    )  # fmt: skip
    graph = client.mended()
    assert {owners.count(v) for v in range(20)} == {1, 2}
    assert graph.owner.tolist() == owners
    np.testing.assert_allclose(graph.x[20:], features, atol=1e-4)


def test_hidden_nodes_are_validation_nodes_drawn_by_the_seed(tmp_path):
    partition, drawn = toys.make_node_partition(num_nodes=40), set()
    for seed in range(4):
        client = toys.make_client(tmp_path, "fedsage+", partition=partition, seed=seed)
        hidden = client._hidden()
        assert len(hidden) == 4
        assert set(hidden) < set(client.job.data.partition.val)
        drawn.add(tuple(hidden))
    assert len(drawn) > 1


def test_a_graph_that_gets_no_neighbour_is_fedsage(run, monkeypatch):
    def nobody(counts, max_neighbours):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)

    plain = run("fedsage")
    monkeypatch.setattr(fedsage_plus, "choose_neighbours", nobody)
    ours = run("fedsage+")
    for name, array in plain.models["global"].items():
        np.testing.assert_allclose(ours.models["global"][name], array, atol=1e-5)
