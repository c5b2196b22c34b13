"""Clients that classify nodes, and the strategies made for them, by hand."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from threadpoolctl import threadpool_limits

from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION
from fedgraph_flwr.core.wire import Parcel, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.registry import METHODS
from strategies.personal import mix
from strategies.self_weight import self_weights

ROUND = {"server-round": 1}
ON_NODES = sorted(m for m, row in METHODS.items() if NODE_CLASSIFICATION in row.clients)


def make(root, method="fedavg", *, partition=None, **overrides):
    partition = partition or toys.make_node_partition()
    given = {"dataset": "planted", "shared-group": "all", "local-epochs": 2}
    return toys.make_client(root, method, partition=partition, **{**given, **overrides})


def without(partition, *splits):
    return replace(partition, **{s: np.arange(0) for s in splits})


def test_one_epoch_is_one_step_on_all_training_nodes(tmp_path):
    """Against plain torch: E full-graph Adam steps (specification 2.2, lambda = 0)."""
    client = make(tmp_path, dropout=0.0, **{"local-epochs": 3, "weight-decay": 0.1})
    twin = make(tmp_path / "twin", dropout=0.0)
    start = toys.shared_arrays(client)
    sent, num_examples, metrics = client.fit(start, ROUND)
    model, graph = twin.model, twin.graph
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        picked = model(graph, None)[graph.train]
        loss = torch.nn.functional.cross_entropy(picked, graph.y[graph.train])
        loss.backward()
        optimizer.step()
    for ours, theirs in zip(sent, toys.shared_arrays(twin), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert num_examples == 12
    assert metrics["eval/train/post_training/loss"] == pytest.approx(loss.item())


def test_accuracy_is_that_of_the_nodes_of_a_split(tmp_path):
    client = make(tmp_path)
    metrics = client.fit(toys.shared_arrays(client), ROUND)[2]
    logits = client.logits(None).detach().numpy()
    for split in ("val", "test"):
        nodes = client.job.data.partition.positions(split)
        hits = logits[nodes].argmax(1) == client.job.data.partition.graphs.y[nodes]
        assert metrics[f"eval/{split}/post_training/accuracy"] == hits.mean()
        assert metrics[f"count/{split}"] == 4
    assert "eval/test/post_aggregation/accuracy" in metrics


@pytest.mark.parametrize("method", ON_NODES)
def test_a_client_without_training_nodes_sends_back_what_it_got(tmp_path, method):
    partition = without(toys.make_node_partition(), "train")
    thresholds = {f"gcfl.{k}-norm-threshold": 1.0 for k in ("mean", "max")}
    client = make(tmp_path, method, partition=partition, **thresholds)
    start = toys.shared_arrays(client)
    sent, num_examples, metrics = client.fit(start, ROUND)
    assert num_examples == 0
    assert not [k for k in metrics if k.startswith("eval/train")]
    start = [] if method in ("local", "fedproto") else start  # they send no model
    for ours, received in zip(sent[: len(start)], start, strict=True):
        expected = 0 * received if method.startswith("gcfl") else received
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("method", ON_NODES)
def test_a_graph_without_any_edge_trains(tmp_path, method):
    partition = toys.make_node_partition(density=0.0)
    assert partition.graphs.edge_index.shape == (2, 0)
    client = make(tmp_path, method, partition=partition)
    sent, _, metrics = client.fit(toys.shared_arrays(client), ROUND)
    assert all(np.isfinite(a).all() for a in sent)
    assert metrics["eval/train/post_training/loss"] > 0


# FedPer -------------------------------------------------------------------------------


def test_fedper_sends_the_encoder_and_keeps_its_head(tmp_path):
    convs = {"shared-group": "convs"}
    client = make(tmp_path, **convs)
    assert client.shared_keys == [
        f"convs.{k}.{what}" for k in (0, 1) for what in ("weight", "bias")
    ]
    start = toys.shared_arrays(client)
    assert len(client.fit(start, ROUND)[0]) == 4
    head = client.tensors()["readout.weight"].detach().clone()
    later = make(tmp_path, **convs)
    assert not torch.equal(later.tensors()["readout.weight"], head)
    later.evaluate(start, {"server-round": 2})  # an average of encoders arrives
    assert torch.equal(later.tensors()["readout.weight"], head)
    for name, array in zip(later.shared_keys, start, strict=True):
        np.testing.assert_array_equal(later.tensors()[name].detach().numpy(), array)


# Self-weight --------------------------------------------------------------------------


def test_weights_of_the_control_have_their_closed_forms():
    np.testing.assert_allclose(self_weights(2, 0.5), [[0.75, 0.25], [0.25, 0.75]])
    np.testing.assert_array_equal(self_weights(3, 1.0), np.eye(3))
    np.testing.assert_allclose(self_weights(3, 0.0), np.full((3, 3), 1 / 3))
    np.testing.assert_allclose(np.diag(self_weights(4, 0.25)), 0.25 + 0.75 / 4)
    np.testing.assert_allclose(self_weights(7, 0.3).sum(axis=1), 1)


def test_mixing_has_the_same_bytes_on_any_number_of_cores(monkeypatch):
    """As in one product of the whole, for blocks that divide the columns and not."""
    rng = np.random.default_rng(0)
    models = [{"w": rng.normal(size=(9, 100)).astype(np.float32)} for _ in range(6)]
    weights = rng.random((6, 6))
    shares = weights / weights.sum(axis=1, keepdims=True)
    whole = np.stack([m["w"].ravel() for m in models], dtype=np.float64)
    for cores, block in ((1, 1 << 22), (1, 6 * 128), (2, 6 * 128), (4, 6 * 300)):
        monkeypatch.setattr("strategies.personal._BLOCK", block)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        with threadpool_limits(limits=1, user_api="blas"):
            found = [m["w"] for m in mix(models, weights)]
            expected = (shares @ whole).astype(np.float32).reshape(6, 9, 100)
        np.testing.assert_array_equal(found, expected)


def test_a_personal_strategy_keeps_the_model_of_who_did_not_reply():
    run = toys.resolved("self-weight", **{"self-weight.a": 0.5})
    strategy = run.method.make_strategy(run.settings, run.params, experiment="e")
    strategy.clients = {c: toys.info(c, num_train=5) for c in (0, 1, 2)}
    strategy.initialise({"w": np.zeros(1, np.float32)})
    sent = strategy.outgoing(1)
    assert sent[0] is sent[2]  # one object, hence one record on the wire
    replies = {
        c: Parcel(
            arrays=with_prefix(SHARED, {"w": np.array([v], np.float32)}),
        )
        for c, v in ((0, 4.0), (2, 8.0))
    }
    strategy.step(1, replies)
    found = {c: float(a[SHARED + "w"][0]) for c, a in strategy.outgoing(2).items()}
    assert found == {0: 5.0, 1: 0.0, 2: 7.0}
    again = run.method.make_strategy(run.settings, run.params, experiment="e")
    again.restore(*strategy.state())
    assert again.outgoing(2).keys() == strategy.outgoing(2).keys()
    for client, arrays in again.outgoing(2).items():
        np.testing.assert_array_equal(arrays[SHARED + "w"], [found[client]])
    assert sorted(strategy.models()) == ["client-0", "client-1", "client-2"]
