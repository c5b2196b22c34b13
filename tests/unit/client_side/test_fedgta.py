"""FedGTA: propagated labels, moments, confidence, averages; neutral settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from oracles import fedgta as oracle
from toys_fedgkd import ON_NODES, ROUND, make

from clients.fedgta import FedGTAClient, label_moments, smoothing_confidence
from fedgraph_flwr.methods.fedgta import CONFIDENCE, MOMENTS
from strategies.fedgta import confident_average, moment_cosine


def gta(tmp_path, **options):
    return make(tmp_path, method="fedgta", **options)


def dense(client):
    return client.graph.adjacency.to_dense().numpy()


def expected(client, temperature, **changes):
    options = {"steps": client.params.steps, "alpha": 0.5, "reinforce": True}
    with torch.no_grad():
        predicted = torch.softmax(client.logits(None), 1).double().numpy()
    return oracle.soft_labels(
        predicted,
        client.graph.y.tolist(),
        client.graph.train.tolist(),
        dense(client),
        t=temperature,
        **{**options, **changes},
    )


# What a client makes ---------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_soft_labels_agree_with_the_oracle(tmp_path, steps):
    client = gta(tmp_path, **{"fedgta.steps": steps})
    for t in (1.0, 20.0):
        found = client.soft_labels(t)
        np.testing.assert_allclose(found, expected(client, t), atol=1e-6)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    known = client.graph.y[client.graph.train]
    at_train = client.soft_labels(1.0)[client.graph.train]
    assert torch.equal(at_train.argmax(1), known)
    assert set(at_train.unique().tolist()) == {0.0, 1.0}


def test_moments_agree_with_the_oracle():
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], size=7)
    found = label_moments(torch.from_numpy(soft), 4)
    np.testing.assert_allclose(found, oracle.moments(soft, 4, "hybrid"), atol=1e-12)
    mixed = label_moments(torch.from_numpy(soft[::-1].copy()), 4)
    np.testing.assert_allclose(mixed, found, atol=1e-12)


def test_confidence_agrees_with_the_oracle_and_the_closed_forms():
    rng = np.random.default_rng(1)
    soft, degree = rng.dirichlet([1, 1, 1], size=5), np.array([2.0, 0, 1, 4, 1])
    found = smoothing_confidence(torch.from_numpy(soft), torch.from_numpy(degree))
    edges = [[d] for d in degree]
    assert float(found) == pytest.approx(oracle.confidence(soft, edges))
    sure = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 0]]
    d = torch.from_numpy(degree)
    assert float(smoothing_confidence(sure, d)) == pytest.approx(3 / math.e * 8)
    flat = torch.full((5, 3), 1 / 3, dtype=torch.float64)
    want = (3 / math.e - math.log(3)) * 8
    assert float(smoothing_confidence(flat, d)) == pytest.approx(want, rel=1e-5)
    level = torch.full((5, 3), 1 / math.e, dtype=torch.float64)
    assert 0 <= float(smoothing_confidence(level, d)) < 1e-6


def test_what_is_sent_is_made_by_the_trained_model(tmp_path):
    client = gta(tmp_path, **{"learning-rate": 0.1})
    before = label_moments(client.soft_labels(1.0), 10).float().numpy()
    sent = client.participate(toys.parcel(client), ROUND).arrays
    soft = expected(client, 1.0)
    want = oracle.moments(soft, 10, "hybrid")
    np.testing.assert_allclose(sent[MOMENTS], want, atol=1e-6)
    assert not np.allclose(sent[MOMENTS], before, atol=1e-6)
    h = oracle.confidence(expected(client, 20.0), dense(client))
    assert float(sent[CONFIDENCE][0]) == pytest.approx(h, rel=1e-5)


# What the server makes -------------------------------------------------------------


def test_weights_agree_with_the_oracle():
    rng = np.random.default_rng(3)
    vectors, h = rng.normal(size=(5, 8)), rng.random(5)
    for epsilon in (-1.0, 0.0, 0.2, 1.0):
        q = confident_average(moment_cosine(list(vectors)), h, epsilon)
        np.testing.assert_allclose(q, oracle.weights(vectors, h, epsilon), atol=1e-12)
        np.testing.assert_allclose(q.sum(1), 1)
        scaled = confident_average(moment_cosine(list(vectors)), 7 * h, epsilon)
        np.testing.assert_allclose(scaled, q, atol=1e-12)


def test_nobody_is_left_without_an_average():
    zero = np.zeros(3)
    none = confident_average(moment_cosine([zero, zero]), np.zeros(2), 0.5)
    np.testing.assert_array_equal(none, np.eye(2))
    same = confident_average(moment_cosine([np.ones(3)] * 2), np.zeros(2), 0.5)
    np.testing.assert_array_equal(same, np.full((2, 2), 0.5))
    alone = confident_average(np.ones((2, 2)), np.array([0.0, 2.0]), 1.0)
    np.testing.assert_array_equal(alone, np.eye(2))


# Neutral settings ------------------------------------------------------------------


def test_everybody_alike_is_fedavg_and_nobody_alike_is_training_alone(
    run, once, monkeypatch
):
    monkeypatch.setattr(FedGTAClient, "_confidence", lambda _: torch.ones(1))
    for changes, method in (
        ({"fedgta.epsilon": -1.0}, "fedavg"),
        ({"fedgta.epsilon": 1.0}, "local"),
    ):
        ours, theirs = run("fedgta", **changes), once(method, **ON_NODES)
        for key, value in theirs.values("loss").items():
            assert ours.values("loss")[key] == pytest.approx(value, abs=1e-5), key


def test_a_client_that_claims_to_be_sure_of_all_is_named(run, monkeypatch):
    """By that it makes up every other client's average."""
    alike = {"fedgta.epsilon": -1.0, "num-server-rounds": 1}
    assert run("fedgta", **alike).summary["outweighing"] == ""
    confidence = FedGTAClient._confidence

    def claimed(self):
        return confidence(self) * (1e6 if self.job.client_id == 1 else 1.0)

    monkeypatch.setattr(FedGTAClient, "_confidence", claimed)
    found = run("fedgta", **alike).summary["outweighing"]
    assert found.startswith("client 1 has 100.0% of the weight in averages")
