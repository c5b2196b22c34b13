"""What each client sends, keeps and computes in a round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from oracles import fedprox as oracle

from clients.job import Round
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.training import make_optimizer
from fedgraph_flwr.core.errors import PrivacyBudgetError, WireError

ROUND = {"server-round": 1}


def named(client) -> dict[str, np.ndarray]:
    return {n: p.detach().numpy().copy() for n, p in client.model.named_parameters()}


def test_gcfl_sends_trained_minus_received(tmp_path):
    client = toys.make_client(tmp_path, "gcfl")
    received = [a + 1 for a in toys.shared_arrays(client)]
    deltas, num_examples, _ = client.fit(received, ROUND)
    assert num_examples == 12
    for delta, array, name in zip(deltas, received, client.shared_keys, strict=True):
        np.testing.assert_array_equal(delta, named(client)[name] - array)
        assert np.abs(delta).max() > 0


def test_the_body_is_all_but_the_last_layer_and_starts_alike(tmp_path):
    one, other = (
        toys.make_client(
            tmp_path / str(c),
            "fedavg",
            partition=toys.make_partition(client_id=c),
            **{"shared-group": "body"},
        )
        for c in (0, 1)
    )
    assert set(named(one)) - set(one.shared_keys) == {"readout.weight", "readout.bias"}
    for name in one.shared_keys:
        np.testing.assert_array_equal(named(one)[name], named(other)[name])


def test_fedprox_adds_its_term_to_value_and_gradient(tmp_path):
    mu = 0.7
    plain = toys.make_client(tmp_path / "a", "fedavg")
    prox = toys.make_client(tmp_path / "b", "fedprox", **{"fedprox.mu": mu})
    received = {}
    for client in (plain, prox):
        tensors = {
            n: p.detach() - 0.1 for n, p in client.model.named_parameters()
            if n in client.shared_keys
        }  # fmt: skip
        client.round = Round(received=tensors)
        received = {n: a.numpy() for n, a in tensors.items()}
    batch = plain.job.data.evaluation[0]
    losses = [c.loss(batch, toys.seeded()) + c.penalty() for c in (plain, prox)]
    expected = oracle.penalty(named(prox), received, mu)
    assert (losses[1] - losses[0]).item() == pytest.approx(expected, rel=1e-4)
    for loss in losses:
        loss.backward()
    gradient = oracle.penalty_gradient(named(prox), received, mu)
    for name, entry in gradient.items():
        added = (
            prox.model.get_parameter(name).grad - plain.model.get_parameter(name).grad
        )
        np.testing.assert_allclose(added.numpy(), entry, atol=1e-4)
    for name in set(named(prox)) - set(gradient):  # private tensors are left alone
        assert torch.equal(
            prox.model.get_parameter(name).grad, plain.model.get_parameter(name).grad
        )


def test_a_client_that_must_not_send_has_not_done_the_round(tmp_path):
    noise = {"privacy.update-clip": 1.0, "privacy.update-budget-max": 0.001}
    client = toys.make_client(tmp_path, "fedavg", **noise)
    with pytest.raises(PrivacyBudgetError, match=r"update-budget-max allows 0\.001"):
        client.fit(toys.shared_arrays(client), ROUND)
    assert client.job.store.rounds() == []


@pytest.mark.parametrize("method", ["fedavg", "moon", "fclg", "infograph"])
def test_a_client_whose_training_overflowed_is_as_before_the_round(tmp_path, method):
    """Its update is the noise alone, and its state is that of the round before."""
    noise = {"privacy.update-clip": 1.0}
    first = toys.make_client(tmp_path, method, **noise)
    sent = toys.shared_arrays(first)
    first.fit(sent, ROUND)
    kept = first.job.store.load(1)
    second = toys.make_client(tmp_path, method, **noise)
    huge = toys.parcel(second, [np.full_like(a, 1e38) for a in sent], facts=told(1))
    second.participate(huge, {"server-round": 2})
    (release,) = second.job.site.released
    assert all(np.isfinite(a).all() for a in release.update)
    third = toys.make_client(tmp_path, method, **noise)
    stored = toys.begun(third, 3, facts=told(2)).round.stored
    assert set(stored) == set(kept) > set(first.private_keys())
    for name, tensor in kept.items():
        assert torch.equal(stored[name], tensor)


def told(last_round):
    return {"last-round": last_round}


def optimizer_of(client):
    return make_optimizer(
        client.model.parameters(), client.job.settings, client.round.stored
    )


def test_private_layers_and_moments_come_back_in_the_next_round(tmp_path):
    first = toys.make_client(tmp_path, "fedavg")
    first.fit(toys.shared_arrays(first), ROUND)
    second = toys.make_client(tmp_path, "fedavg")
    optimizer = optimizer_of(toys.begun(second, 2, facts={"last-round": 1}))
    for name in first.private_keys():
        np.testing.assert_array_equal(named(second)[name], named(first)[name])
    steps = {int(s["step"]) for s in optimizer.state.values()}
    assert steps == {3}  # 12 graphs in batches of 4
    forgetful = toys.make_client(tmp_path, "fedavg", **{"persist-optimizer": False})
    assert not optimizer_of(toys.begun(forgetful, 2)).state


def test_the_gradient_norm_is_that_of_the_last_mini_batch(tmp_path, monkeypatch):
    client = toys.make_client(
        tmp_path, "gcfl+", **{"gcfl.seq-source": "last-grad-norm", "dropout": 0.0}
    )
    seen = []
    loss = GraphClassifierClient.loss

    def spy(self, batch, generator):
        value = loss(self, batch, generator)
        shared = [self.model.get_parameter(n) for n in self.shared_keys]
        seen.append(torch.autograd.grad(value, shared, retain_graph=True))
        return value

    monkeypatch.setattr(GraphClassifierClient, "loss", spy)
    _, _, metrics = client.fit(toys.shared_arrays(client), ROUND)
    expected = torch.cat([g.flatten() for g in seen[-1]]).norm().item()
    assert metrics["grad-norm"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda arrays: arrays[:1], "received 1 arrays, the client's model shares"),
        (lambda arrays: [a[:1] for a in arrays], "client 0 received arrays of shapes"),
        (lambda arrays: [a.astype(bool) for a in arrays], "0 received arrays of types"),
        (lambda arrays: [a.astype("f8") for a in arrays], "0 received arrays of types"),
        (lambda arrays: [a * np.nan for a in arrays], "received NaN or infinite entri"),
        (lambda arrays: [a + np.inf for a in arrays], "received NaN or infinite entri"),
    ],
)
def test_arrays_that_are_not_the_models_are_refused(tmp_path, spoil, words):
    client = toys.make_client(tmp_path, "fedavg")
    with pytest.raises(WireError, match=words):
        client.fit(spoil(toys.shared_arrays(client)), ROUND)


@pytest.mark.parametrize("method", ["fedavg", "gcfl", "fedgkd", "fclg"])
def test_flowers_classic_wrapper_drives_every_client(tmp_path, method):
    """``to_client`` is how Flower calls a NumPyClient; it gives what ``train`` does."""
    nodes = {"partition": toys.make_node_partition()} if method == "fedgkd" else {}
    driven, direct = (
        toys.make_client(tmp_path / name, method, **nodes) for name in ("a", "b")
    )
    start = toys.shared_arrays(driven)
    classic = driven.to_client()
    result = classic.fit(FitIns(ndarrays_to_parameters(start), ROUND))
    assert result.status.code is Code.OK
    reply = direct.participate(toys.parcel(direct), ROUND)
    sent = parameters_to_ndarrays(result.parameters)
    for ours, array in zip(sent, reply.arrays.values(), strict=True):
        np.testing.assert_array_equal(ours, array)
    assert result.num_examples == len(driven.job.data.partition.train)
    assert result.metrics == told_of(reply)

    later = {"server-round": 2}
    measured = classic.evaluate(EvaluateIns(ndarrays_to_parameters(start), later))
    assert measured.status.code is Code.OK
    reply = direct.assess(toys.parcel(direct, start), later)
    assert measured.metrics == told_of(reply)
    assert len(measured.metrics["weights-sha256"]) == 64


def told_of(reply):
    metrics = {k: v for k, v in reply.metrics.items() if k != "num-examples"}
    return {**metrics, **reply.facts}


def test_every_client_round_seed_and_purpose_has_a_stream_of_its_own(tmp_path):
    def streams(client_id=0, server_round=1, seed=10):
        partition = toys.make_partition(client_id)
        client = toys.make_client(tmp_path, partition=partition, seed=seed)
        toys.begun(client, server_round)
        return [g.initial_seed() for g in (client.order, client.noise)]

    found = streams(), streams(client_id=1), streams(server_round=2), streams(seed=11)
    assert len({stream for pair in found for stream in pair}) == 2 * len(found)
    assert streams() == found[0]
