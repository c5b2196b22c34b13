"""Rounds of FedGKD and its rivals: neutral settings, what travels, what is stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd as oracle
from toys_fedgkd import ON_NODES, STATIC, fitted, make, start

from clients.fedgkd import FedGKDClient
from clients.models.masked_gnn import MaskedGNN
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0
from fedgraph_flwr.results.reader import read_matrices
from strategies.fedgkd import common_start
from strategies.fedgkd_relator import relatedness


def assert_same_models(ours: dict, theirs: dict, **tolerance):
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, **tolerance)


# Neutral settings ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "uniform",
    [
        {"fedgkd.tau-s": 0.0},
        {"fedgkd.tau-s": 0.0, "fedgkd.kernel": "square", "fedgkd.feature-map": "H"},
    ],
)
def test_uniform_weights_without_a_pull_are_uniform_fedavg(run, once, uniform):
    ours = run("fedgkd", **{**uniform, "fedgkd.proximal-lambda": 0.0})
    plain = once("fedavg", **ON_NODES)
    for key, value in plain.values("loss", "accuracy").items():
        assert ours.values("loss", "accuracy")[key] == pytest.approx(value, abs=1e-5)
    assert sorted(ours.models) == ["client-0", "client-1", "client-2"]
    for model in ours.models.values():
        assert_same_models(model, plain.models["global"], atol=1e-6)


@pytest.mark.slow
def test_fedpub_without_its_parts_is_uniform_fedavg(run, monkeypatch):
    made = MaskedGNN.__init__

    def frozen(self, *args, **kw):
        made(self, *args, **kw)
        self.masks.requires_grad_(False)

    fresh = {"persist-optimizer": False}
    plain = run("fedavg", **ON_NODES, **fresh)
    monkeypatch.setattr(MaskedGNN, "__init__", frozen)
    monkeypatch.setattr("strategies.fedpub.ALPHA", 0.0)
    ours = run("fedpub", **fresh)
    for model in ours.models.values():
        assert_same_models(model, plain.models["global"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedgkd", "fedstar"])
def test_one_client_alone_trains_as_if_nobody_listened(run, method):
    alone = {"num-clients": 1, "fedgkd.proximal-lambda": 0.0}
    # Four rounds of two steps, or one of eight: without dropout the same.
    still = {"dropout": 0.0}
    ours = run(method, **alone, **still, **{"num-server-rounds": 4})
    in_one = run(
        method, **alone, **still, **{"num-server-rounds": 1, "local-epochs": 8}
    )
    (model,), (whole,) = ours.models.values(), in_one.models.values()
    assert_same_models(model, whole, atol=1e-5)


def test_one_client_with_a_pull_is_local_proximal_training(run):
    """Weights are 1, so the pull is towards the client's own model of the round."""
    still = {"num-clients": 1, "dropout": 0.0, "num-server-rounds": 2}
    ours = run("fedgkd", **still, **{"fedgkd.proximal-lambda": 0.05})
    prox = run("fedprox", **ON_NODES, **still, **{"fedprox.mu": 0.1})
    assert_same_models(ours.models["client-0"], prox.models["global"], atol=1e-6)


@pytest.mark.slow
def test_without_distillation_clients_are_alike_and_fedgkd_is_its_control(run):
    """R is all ones, S one more on its diagonal: q_ii = e^tau_s / (e^tau_s + n - 1).

    In the control q_ii is a + (1 - a) / n.
    """
    n, tau_s, pull = 3, 2.0, 0.05
    own = np.exp(tau_s) / (np.exp(tau_s) + n - 1)
    ours = run(
        "fedgkd",
        **{
            "fedgkd.feature-map": "X",
            "fedgkd.distil-steps": 0,
            "fedgkd.tau-s": tau_s,
            "fedgkd.proximal-lambda": pull,
        },
    )
    control = {"self-weight.a": float((n * own - 1) / (n - 1))}
    theirs = run("self-weight", **control, **{"self-weight.proximal-lambda": pull})
    assert len(ours.models) == n
    for client, model in ours.models.items():
        assert_same_models(model, theirs.models[client], atol=1e-6)
    without = run("self-weight", **control)
    assert without.sha != theirs.sha


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
        features = [
            np.hstack(
                [
                    uplinks[server_round, c][f"fedgkd/features-{part}"]
                    for part in ("x", "h")
                ]
            )
            for c in range(3)
        ]
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


def test_averages_are_those_of_the_stored_weights(run, monkeypatch):
    sent = toys.sent_models(monkeypatch)
    finished = run("fedgkd", **{"num-server-rounds": 1, "fedgkd.tau": 0.5})
    q = read_matrices(finished.path, "q")[1]
    assert not np.allclose(q, 1 / 3)
    for name in sent[0]:
        flat = [sent[c][name].ravel().astype(np.float64) for c in range(3)]
        for c, want in enumerate(oracle.averages(flat, q)):
            found = finished.models[f"client-{c}"][name].ravel()
            np.testing.assert_allclose(found, want, atol=1e-6)


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


def test_without_steps_the_features_are_the_common_start(run, uplinks):
    run("fedgkd", **{"fedgkd.distil-steps": 0, "fedgkd.feature-map": "X"})
    first = [uplinks[1, c]["fedgkd/features-x"] for c in range(3)]
    np.testing.assert_allclose(relatedness(first), 1.0, atol=1e-12)
    assert not np.array_equal(first[0], uplinks[2, 0]["fedgkd/features-x"])


def test_the_closing_evaluation_carries_no_start(once):
    down = {}
    for row in once("fedgkd").ledger:
        if row["direction"] == "down" and row["record"] == "arrays":
            down.setdefault(row["round"], set()).add(int(row["bytes"]))
    assert down["1"] == down["2"] == down["3"]
    plain = {
        int(r["bytes"])
        for r in once("fedavg", **ON_NODES).ledger
        if (r["round"], r["direction"], r["record"]) == ("4", "down", "arrays")
    }
    assert down["4"] == plain
    assert min(down["3"]) > max(plain) + 4 * 15 * 6  # m C D floats


@pytest.mark.slow
def test_a_resumed_run_stores_the_same_matrices(run, once):
    whole = once("fedgkd")
    part = run("fedgkd", **{"num-server-rounds": 2})
    places = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fedgkd", **places, resume=str(part.path))
    for name in "RSq":
        ours, theirs = (read_matrices(r.path, name) for r in (resumed, whole))
        assert sorted(ours) == sorted(theirs) == [1, 2, 3]
        for t in ours:
            np.testing.assert_array_equal(ours[t], theirs[t])


# Static distillation ---------------------------------------------------------------


def test_static_features_are_sent_once_and_relate_for_good(run, uplinks):
    finished = run("fedgkd", **STATIC)
    assert all(uplinks[1, c] for c in range(3))
    assert not any(uplinks[t, c] for t in (2, 3) for c in range(3))
    r = read_matrices(finished.path, "R")
    np.testing.assert_array_equal(r[1], r[3])
    assert not np.allclose(r[1], 1)


def test_a_late_client_distils_from_the_same_start(run, monkeypatch):
    toys.fail_when(monkeypatch, lambda c, t: c == 2 and t == 1)
    options = {"fedgkd.feature-map": "X", "fedgkd.distil-steps": 0}
    late = run("fedgkd", **STATIC, **options, **{"min-fit-replies": 0.5})
    r = read_matrices(late.path, "R")
    assert np.isnan(r[1][2]).all()
    np.testing.assert_allclose(r[2], 1)


@pytest.mark.slow
def test_static_distillation_resumes_where_it_was(run):
    whole = run("fedgkd", **STATIC)
    part = run("fedgkd", **STATIC, **{"num-server-rounds": 1})
    places = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fedgkd", **STATIC, **places, resume=str(part.path))
    assert (resumed.sha, resumed.rounds) == (whole.sha, whole.rounds)


def test_static_features_do_not_depend_on_local_training(tmp_path):
    one, other = (
        fitted(make(tmp_path / str(n), **STATIC, **{"local-epochs": n})).features()
        for n in (1, 3)
    )
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_client_without_training_nodes_can_be_asked_for_static_features(tmp_path):
    partition = replace(toys.make_node_partition(), train=np.array([], int))
    found = fitted(make(tmp_path, partition=partition, **STATIC)).features()
    assert all(np.isfinite(a).all() for a in found.values())
    # Its gradients are 0, towards which no features move.
    np.testing.assert_array_equal(found["fedgkd/features-x"], start()["fedgkd/x0"])
