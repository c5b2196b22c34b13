"""Our GIN is PyG's GIN, and a dense one, and blind to the numbering of nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles.gin import dense_forward, twin
from torch_geometric.data import Batch as PygBatch
from torch_geometric.loader import DataLoader

from clients.base import start_of
from clients.graphs.batching import ClientData, CollatedGraphs
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.tasks.scores import class_scores
from clients.training import evaluate
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.wire import TRAIN_LOSS
from fedgraph_flwr.resolve import defaults, resolve


def build_gin(num_features=4, num_classes=2, client_id=0, **keys):
    widths = {"num_features": num_features, "num_classes": num_classes}
    spec = replace(toys.resolved(**keys).spec(**widths), client_id=client_id)
    return GraphClassifierClient.build_model(spec)


@pytest.fixture
def model():
    return build_gin()


@pytest.mark.parametrize("dense", [False, True])
def test_logits_and_gradients_equal_pygs(model, dense):
    graphs = toys.random_graphs(9, dense=dense)
    reference = twin(model, 4, 2)
    ours = model(CollatedGraphs(graphs, toys.CPU).batch(np.arange(9)), None)
    theirs = reference(PygBatch.from_data_list(toys.to_pyg(graphs)))
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for name, parameter in reference.ours().items():
        got = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(got, parameter.grad, rtol=1e-4, atol=1e-5)


def test_logits_equal_the_dense_oracle(model):
    graphs = toys.random_graphs(5, dense=True)
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for g in range(5):
        one = graphs.take(np.array([g]))
        n = one.num_nodes
        adjacency = np.zeros((n, n))
        adjacency[one.edge_index[0], one.edge_index[1]] = 1
        expected = dense_forward(weights, one.x, adjacency, num_layers=2)
        batch = CollatedGraphs(one, toys.CPU).batch(np.array([0]))
        got = model(batch, None)[0].detach().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_renumbering_nodes_changes_nothing(model):
    graph = toys.random_graphs(8, dense=True).take(np.array([7]))
    n = graph.num_nodes
    new = np.random.default_rng(0).permutation(n)  # node v becomes new[v]
    edges = new[graph.edge_index]
    order = np.lexsort((edges[1], edges[0]))
    x = np.empty_like(graph.x)
    x[new] = graph.x
    renumbered = GraphSet(
        name="toy", x=x, edge_index=edges[:, order], node_ptr=graph.node_ptr,
        edge_ptr=graph.edge_ptr, y=graph.y, num_features=4, num_classes=2,
        is_undirected=True,
    )  # fmt: skip
    logits = [
        model(CollatedGraphs(g, toys.CPU).batch(np.array([0])), None)
        for g in (graph, renumbered)
    ]
    torch.testing.assert_close(logits[0], logits[1])


def test_training_without_dropout_equals_a_plain_pyg_loop(tmp_path):
    partition = toys.make_partition(num_graphs=40)
    rates = {"learning-rate": 1e-2, "weight-decay": 5e-4, "dropout": 0.0}
    times = {"batch-size": 7, "local-epochs": 3}
    client = toys.make_client(tmp_path, partition=partition, **rates, **times)
    model = toys.begun(client).model
    reference = twin(model, 4, 2)
    cross_entropy = torch.nn.functional.cross_entropy
    client.order.manual_seed(1)
    loss = client.train().metrics[TRAIN_LOSS]
    optimizer = torch.optim.Adam(reference.parameters(), 1e-2, weight_decay=5e-4)
    shuffle = torch.Generator().manual_seed(1)
    graphs = toys.to_pyg(partition.graphs)
    for _ in range(3):
        order = partition.train[torch.randperm(24, generator=shuffle).numpy()]
        total = 0.0
        for batch in DataLoader([graphs[p] for p in order], batch_size=7):
            optimizer.zero_grad()
            value = cross_entropy(reference(batch), batch.y)
            value.backward()
            optimizer.step()
            total += value.item() * batch.num_graphs
    assert loss == pytest.approx(total / 24, abs=1e-5)
    named = dict(model.named_parameters())
    for name, parameter in reference.ours().items():
        torch.testing.assert_close(named[name], parameter, rtol=1e-4, atol=1e-5)


def test_evaluation_equals_one_graph_at_a_time(model):
    partition = toys.make_partition(num_graphs=35)
    data = ClientData.collate(partition, toys.CPU, max_nodes=20)
    logits, losses = evaluate(model, data)
    scores = class_scores(partition, "here", logits.numpy(), losses.numpy()).metrics
    reference = twin(model, 4, 2)
    graphs = toys.to_pyg(partition.graphs)
    for split in ("val", "test"):
        chosen = partition.positions(split)
        one_by_one = [
            reference(PygBatch.from_data_list([graphs[p]]))[0].detach() for p in chosen
        ]
        y = torch.from_numpy(partition.graphs.y[chosen])
        logits = torch.stack(one_by_one)
        assert scores[f"count/{split}"] == len(chosen) == 7
        hits = (logits.argmax(1) == y).double().mean().item()
        assert scores[f"eval/{split}/here/accuracy"] == pytest.approx(hits)
        expected = torch.nn.functional.cross_entropy(logits, y).item()
        assert scores[f"eval/{split}/here/loss"] == pytest.approx(expected, abs=1e-6)


def test_the_paper_model_shares_24960_numbers_and_nothing_private():
    run = resolve({**defaults(), "dataset": "PROTEINS"})
    spec = run.spec(num_features=3, num_classes=2)
    shared = start_of(GraphClassifierClient, spec).arrays()
    assert len(shared) == 12
    assert sum(a.size for a in shared.values()) == 24_960
    assert all(a.dtype == np.float32 for a in shared.values())
    assert all(n.startswith("convs.") for n in shared)


def test_a_frozen_part_gets_no_gradient(model):
    frozen = [model.convs[0].mlp[0].weight, model.post.bias, *model.pre.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    model(batch, None).sum().backward()
    left = [n for n, p in model.named_parameters() if p.grad is None]
    assert left == ["pre.weight", "pre.bias", "convs.0.mlp.0.weight", "post.bias"]


@pytest.mark.usefixtures("global_rng_untouched")
def test_the_shared_start_is_common_and_the_private_one_is_not():
    one, other = build_gin(), build_gin(9, 3, client_id=1)
    for name in (n for n in one.state_dict() if n.startswith("convs.")):
        assert torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(one.post.weight, other.post.weight)
    models = [build_gin(client_id=c, **{"shared-group": "all"}) for c in (0, 1)]
    assert torch.equal(models[0].post.weight, models[1].post.weight)
