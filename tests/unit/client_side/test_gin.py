"""Our GIN is PyG's GIN, also to the end of a training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles.gin import twin
from torch_geometric.data import Batch as PygBatch
from torch_geometric.loader import DataLoader

from clients.graphs.batching import CollatedGraphs
from clients.models import gin
from clients.models.gin import GIN
from clients.tasks.graph_classifier import GraphClassifierClient
from fedgraph_flwr.core.wire import TRAIN_LOSS


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


@pytest.mark.usefixtures("global_rng_untouched")
def test_the_shared_start_is_common_and_the_private_one_is_not():
    one, other = build_gin(), build_gin(9, 3, client_id=1)
    for name in (n for n in one.state_dict() if n.startswith("convs.")):
        assert torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(one.post.weight, other.post.weight)
    models = [build_gin(client_id=c, **{"shared-group": "all"}) for c in (0, 1)]
    assert torch.equal(models[0].post.weight, models[1].post.weight)


# The fast pass against the layers, called one by one --------------------------------


def made(dropout):
    one, two = (torch.Generator().manual_seed(k) for k in (1, 2))
    shape = {"hidden_dim": 8, "num_layers": 3, "dropout": dropout}
    return GIN(4, 2, **shape, shared_generator=one, private_generator=two)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_outputs_and_gradients_are_those_of_the_layers_to_the_bit(dropout, monkeypatch):
    graphs = CollatedGraphs(toys.make_partition().graphs, toys.CPU)
    batch = graphs.batch(np.arange(12))
    found = []
    for is_plain in (gin._are_plain, lambda _: False):
        monkeypatch.setattr(gin, "_are_plain", is_plain)
        model = made(dropout)
        logits = model(batch, torch.Generator().manual_seed(3))
        torch.nn.functional.cross_entropy(logits, batch.y).backward()
        with torch.no_grad():
            scored = model(batch, None)
        found.append([logits, scored, *(p.grad for p in model.parameters())])
    assert len(found[0]) == 2 + 2 * (1 + 3 * 2 + 2)
    assert all(map(torch.equal, *found))
