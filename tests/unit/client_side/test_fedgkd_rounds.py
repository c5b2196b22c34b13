"""Rounds of FedGKD and its rivals: neutral settings, what travels, what is stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd as oracle
from toys_fedgkd import ON_NODES, PLAIN, fitted, make

from clients.fedgkd import FedGKDClient
from fedgraph_flwr.core.errors import ConfigError, WireError
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0
from fedgraph_flwr.results.reader import read_matrices
from strategies.fedgkd import common_start


def assert_same_models(ours: dict, theirs: dict, **tolerance):
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, **tolerance)


# Neutral settings ------------------------------------------------------------------


@pytest.mark.slow
def test_uniform_weights_without_a_pull_are_uniform_fedavg(run, once):
    ours = run("fedgkd", **PLAIN)
    plain = once("fedavg", **ON_NODES)
    for key, value in plain.values("loss", "accuracy").items():
        assert ours.values("loss", "accuracy")[key] == pytest.approx(value, abs=1e-5)
    assert sorted(ours.models) == ["client-0", "client-1", "client-2"]
    for model in ours.models.values():
        assert_same_models(model, plain.models["global"], atol=1e-6)


# What travels, and what is stored ------------------------------------------------


def test_masks_stay_with_the_client_from_round_to_round(tmp_path):
    client = fitted(make(tmp_path, method="fedpub"))
    later = make(tmp_path, method="fedpub")
    start = toys.shared_arrays(later)
    assert all((mask == 1).all() for mask in later.model.masks)
    later.evaluate(start, {"server-round": 2})
    for mask, kept in zip(later.model.masks, client.model.masks, strict=True):
        assert not (mask == 1).all()
        assert torch.equal(mask, kept)


@pytest.fixture
def uplinks(monkeypatch):
    """Collect the task features that clients send: (round, client) -> arrays."""
    sent: dict = {}
    original = FedGKDClient.features

    def spy(self):
        found = original(self)
        sent[self.round.number, self.job.client_id] = found
        return found

    monkeypatch.setattr(FedGKDClient, "features", spy)
    return sent


@pytest.mark.slow
def test_the_run_stores_r_s_and_q_of_every_round(run, uplinks):
    finished = run("fedgkd", **{"fedgkd.tau": 0.4})
    for server_round in (1, 2, 3):
        sent = [uplinks[server_round, c] for c in range(3)]
        names = [f"fedgkd/features-{part}" for part in "xh"]
        features = [np.hstack([arrays[name] for name in names]) for arrays in sent]
        r = read_matrices(finished.path, "R")[server_round]
        s = read_matrices(finished.path, "S")[server_round]
        q = read_matrices(finished.path, "q")[server_round]
        np.testing.assert_allclose(r, oracle.relatedness(features), atol=1e-6)
        np.testing.assert_allclose(s, oracle.exponential(r, 0.4), atol=1e-9)
        np.testing.assert_allclose(q, oracle.attention(s, 3.0), atol=1e-9)
    seen = finished.values("self_weight", "weight_in_all")
    key = ("3", "1", "train", "update")
    assert seen[(*key, "self_weight")] == pytest.approx(q[1, 1])
    assert seen[(*key, "weight_in_all")] == pytest.approx(q[:, 1].sum())


@pytest.mark.parametrize(
    ("feature_map", "parts"), [("XH", "xh"), ("X", "x"), ("H", "h"), ("y", "y")]
)
def test_only_the_features_that_are_compared_are_sent(tmp_path, feature_map, parts):
    client = fitted(make(tmp_path, **{"fedgkd.feature-map": feature_map}))
    found = client.features()
    shapes = {"x": (6, 6), "h": (6, 8), "y": (6, 3)}
    assert {n: a.shape for n, a in found.items()} == {
        f"fedgkd/features-{part}": shapes[part] for part in parts
    }
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}


def test_the_common_start_is_one_draw_per_round():
    kw = {"nodes_per_class": 3, "num_features": 400, "num_classes": 2}
    first, second = common_start(10, 1, **kw), common_start(10, 2, **kw)
    assert first[Y0].tolist() == [0, 0, 0, 1, 1, 1]
    assert first[X0].shape == (6, 400)
    assert first[X0].dtype == np.float32
    assert abs(first[X0].mean()) < 0.1
    assert abs(first[X0].std() - 1) < 0.05
    assert not np.array_equal(first[X0], second[X0])
    assert first[NOISE_SEED] != second[NOISE_SEED]
    np.testing.assert_array_equal(common_start(10, 1, **kw)[X0], first[X0])


# What goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent", "words"),
    [
        (X0, np.zeros((6, 5), np.float32), r"\(6, 5\), its own have 6 columns"),
        (X0, np.zeros((6, 6), np.int64), "received features"),
        (Y0, np.full(6, np.nan, np.float32), "received classes .*int64"),
        (Y0, np.full(6, 3, np.int64), "received classes .*int64"),
        (Y0, np.full(6, -1, np.int64), "received classes .*int64"),
        (Y0, np.zeros(0, np.int64), "received classes .*int64"),
        (NOISE_SEED, np.full(1, -1, np.int64), "received classes .*int64"),
        (NOISE_SEED, np.zeros(0, np.int64), "received classes .*int64"),
    ],
)
def test_a_start_that_is_none_is_refused(tmp_path, name, sent, words):
    client = make(tmp_path)
    with pytest.raises(WireError, match=words):
        fitted(client, **{name: sent})
    assert client.job.store.rounds() == []  # it has not done the round


def test_settings_that_contradict_each_other_are_refused():
    for method in ("fedgkd", "fedpub"):
        with pytest.raises(ConfigError, match="send features that a trained model"):
            toys.resolved(method, **{"privacy.update-clip": 1.0})
