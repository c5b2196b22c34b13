"""Losses, penalties and scales of FedGKD's client and its rivals'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd as oracle
from oracles import fedpub as pub_oracle
from toys_fedgkd import fitted, make

from clients.fedpub import proxy_graph
from clients.tasks.node_classifier import NodeClassifierClient
from fedgraph_flwr.core.errors import DataError

# The client's loss -----------------------------------------------------------------


def test_the_pull_is_lambda_times_the_squared_distance(tmp_path):
    weight = 0.3
    client = make(tmp_path, **{"fedgkd.proximal-lambda": weight, "dropout": 0.0})
    toys.begun(client)
    noise = torch.Generator().manual_seed(0)
    names = client.shared_keys

    def pull():
        client.model.zero_grad()
        whole = client.loss(client.graph, noise)
        whole.backward()
        gradient = torch.cat(
            [p.grad.flatten().clone() for p in client.model.parameters()]
        )
        return whole.item(), gradient

    def without():
        client.model.zero_grad()
        plain = NodeClassifierClient.loss(client, client.graph, noise)
        plain.backward()
        gradient = torch.cat(
            [p.grad.flatten().clone() for p in client.model.parameters()]
        )
        return plain.item(), gradient

    (at_start, slope), (plain, plain_slope) = pull(), without()
    assert at_start == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(slope, plain_slope)
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.add_(0.1)
    (moved, slope), (plain, plain_slope) = pull(), without()
    w = np.concatenate([client.tensors()[n].detach().numpy().ravel() for n in names])
    reference = np.concatenate(
        [client.round.received[n].numpy().ravel() for n in names]
    )
    value, gradient = oracle.proximal(
        w.astype(np.float64), reference.astype(np.float64), weight
    )
    assert moved - plain == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose((slope - plain_slope).numpy(), gradient, atol=1e-5)


def test_fedpub_sends_what_its_masked_gcn_makes_of_the_common_graph(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("clients.fedpub.MASK_WEIGHT", 0.4)
    options = {"dropout": 0.5, "num-layers": 2}
    client = make(tmp_path, method="fedpub", **options)
    with torch.no_grad():
        for mask in client.model.masks:
            mask.copy_(torch.rand(mask.shape, generator=torch.Generator()) * 2 - 1)
    client.model.train()  # dropout and small entries of masks must not count
    found = client.embedding()
    layers = [
        [t.detach().numpy() for t in (conv.weight, conv.bias, mask)]
        for conv, mask in zip(client.model.convs, client.model.masks, strict=False)
    ]
    assert len(layers) == 2
    num_features = client.job.data.partition.graphs.num_features
    x, adjacency = proxy_graph(client.job.settings.seed, num_features)
    expected = pub_oracle.embedding(x.numpy(), adjacency.numpy(), layers, 0.4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert (found < 0).any()  # no ReLU at the end


def test_fedstar_encodes_its_graph_once(run, monkeypatch):
    from clients import fedstar

    calls: list[int] = []
    encode = fedstar.encode

    def spy(*args, **kw):
        calls.append(1)
        return encode(*args, **kw)

    monkeypatch.setattr(fedstar, "encode", spy)
    run("fedstar")
    assert len(calls) == 3  # clients, not rounds


# Scales ----------------------------------------------------------------------------


def test_a_start_can_have_the_scale_of_the_data(tmp_path):
    still = {"fedgkd.distil-steps": 0}
    unit = fitted(make(tmp_path / "a", **still))
    data = fitted(make(tmp_path / "b", **still, **{"fedgkd.x0-scale": "data"}))
    std = unit.job.data.partition.graphs.x.astype(np.float64).std()
    plain, scaled = (c.features()["fedgkd/features-x"] for c in (unit, data))
    np.testing.assert_allclose(scaled, std * plain, rtol=1e-5)


def test_constant_features_have_no_scale(tmp_path):
    partition = toys.make_node_partition()
    flat = replace(partition.graphs, x=np.ones_like(partition.graphs.x))
    client = make(
        tmp_path,
        partition=replace(partition, graphs=flat),
        **{"fedgkd.x0-scale": "data"},
    )
    with pytest.raises(DataError, match=r"features of client 0 are all the same"):
        fitted(client)


def test_the_scale_of_one_hot_features(tmp_path):
    partition = toys.make_node_partition()
    columns = (np.arange(partition.graphs.num_nodes) % 6).astype(np.uint8)
    hot = replace(partition.graphs, x=columns)
    client = make(tmp_path, partition=replace(partition, graphs=hot))
    assert client._feature_std() == pytest.approx(np.eye(6)[columns].std())
