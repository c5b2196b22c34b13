"""Whole rounds of FedGKD, FED-PUB and FedStar on toy graphs."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd as oracle

from clients.base import GraphClient
from clients.fedgkd import FedGKDClient
from clients.models.masked_gnn import MaskedGNN
from fedgraph_flwr.errors import ConfigError, DataError, WireError
from fedgraph_flwr.figures import draw_run
from fedgraph_flwr.figures_data import read_matrices
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0
from fedgraph_flwr.registry import resolve
from simulations.relatedness import analyse, label_similarity, rank_correlation
from strategies.fedgkd import common_start
from strategies.fedgkd_relator import relatedness
from strategies.personal import AbstractPersonalStrategy

ON_NODES = {"dataset": "planted", "shared-group": "all", "local-epochs": 2}
PLAIN = {"fedgkd.tau-s": 0.0, "fedgkd.proximal-lambda": 0.0}
ROUND = {"server-round": 1}


def make(tmp_path, *, partition=None, method="fedgkd", **overrides):
    partition = partition or toys.make_node_partition()
    client = toys.make_client(tmp_path, method, partition=partition, **overrides)
    client.extra_downlink = common_start(
        10, 1, nodes_per_class=2, num_features=6, num_classes=3
    )
    return client


def fitted(client):
    client.fit(toys.shared_arrays(client), ROUND)
    return client


def assert_same_models(ours: dict, theirs: dict, **tolerance):
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, **tolerance)


# Neutral settings ------------------------------------------------------------------


@pytest.mark.parametrize(
    "uniform",
    [
        {"fedgkd.tau-s": 0.0},
        {"fedgkd.tau": 0.0, "fedgkd.kappa-start": 1},
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


def test_both_parts_change_what_is_learned(once, run):
    neutral = run("fedgkd", **PLAIN)
    assert run("fedgkd", **{**PLAIN, "fedgkd.tau-s": 3.0}).sha != neutral.sha
    assert run("fedgkd", **{**PLAIN, "fedgkd.proximal-lambda": 1.0}).sha != neutral.sha


def test_fedpub_without_its_parts_is_uniform_fedavg(run, monkeypatch):
    made = MaskedGNN.__init__

    def frozen(self, *args, **kw):
        made(self, *args, **kw)
        self.masks.requires_grad_(False)

    fresh = {"persist-optimizer": False}
    plain = run("fedavg", **ON_NODES, **fresh)
    monkeypatch.setattr(MaskedGNN, "__init__", frozen)
    ours = run("fedpub", **{"fedpub.alpha": 0.0}, **fresh)
    for model in ours.models.values():
        assert_same_models(model, plain.models["global"], atol=1e-6)


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


@pytest.mark.parametrize("method", ["fedgkd", "fedpub", "fedstar"])
def test_five_clients_on_one_two_or_five_nodes_give_the_same_bytes(run, method):
    five = {"num-clients": 5, "num-server-rounds": 2}
    first, again, two, apart = (run(method, nodes=n, **five) for n in (1, 1, 2, 5))
    assert first.sha == again.sha == two.sha == apart.sha
    assert first.rounds == again.rounds == two.rounds == apart.rounds


# What travels, and what is stored ------------------------------------------------


@pytest.fixture
def uplinks(monkeypatch):
    """Collect the task features that clients send: (round, client) -> arrays."""
    sent: dict = {}
    original = FedGKDClient.extra_uplink

    def spy(self):
        found = original(self)
        sent[self.server_round, self.job.client_id] = found
        return found

    monkeypatch.setattr(FedGKDClient, "extra_uplink", spy)
    return sent


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
        np.testing.assert_allclose(s, oracle.exponential(r, 0.4, 0), atol=1e-9)
        np.testing.assert_allclose(q, oracle.attention(s, 3.0), atol=1e-9)
    seen = finished.values("self_weight", "weight_in_all")
    key = ("3", "1", "train", "update")
    assert seen[(*key, "self_weight")] == pytest.approx(q[1, 1])
    assert seen[(*key, "weight_in_all")] == pytest.approx(q[:, 1].sum())


def test_averages_are_those_of_the_stored_weights(run, monkeypatch):
    sent: dict = {}
    uplink = GraphClient.uplink

    def spy(self, trained):
        arrays = uplink(self, trained)
        sent[self.job.client_id] = dict(zip(self.shared_keys, arrays, strict=True))
        return arrays

    monkeypatch.setattr(GraphClient, "uplink", spy)
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
    found = client.extra_uplink()
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


def test_the_start_can_be_the_same_in_every_round(run, uplinks):
    run("fedgkd", **{"fedgkd.distil-steps": 0, "fedgkd.x0": "once"})
    for server_round in (2, 3):
        np.testing.assert_array_equal(
            uplinks[1, 0]["fedgkd/features-x"],
            uplinks[server_round, 0]["fedgkd/features-x"],
        )


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

STATIC = {"fedgkd.distillation": "static"}


def test_static_features_are_sent_once_and_relate_for_good(run, uplinks):
    finished = run("fedgkd", **STATIC)
    assert all(uplinks[1, c] for c in range(3))
    assert not any(uplinks[t, c] for t in (2, 3) for c in range(3))
    r = read_matrices(finished.path, "R")
    np.testing.assert_array_equal(r[1], r[3])
    assert not np.allclose(r[1], 1)


def test_static_distillation_resumes_where_it_was(run):
    whole = run("fedgkd", **STATIC)
    part = run("fedgkd", **STATIC, **{"num-server-rounds": 1})
    places = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fedgkd", **STATIC, **places, resume=str(part.path))
    assert (resumed.sha, resumed.rounds) == (whole.sha, whole.rounds)


def test_static_features_do_not_depend_on_local_training(tmp_path):
    one, other = (
        fitted(make(tmp_path / str(n), **STATIC, **{"local-epochs": n})).extra_uplink()
        for n in (1, 3)
    )
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_client_without_training_nodes_can_be_asked_for_static_features(tmp_path):
    partition = replace(toys.make_node_partition(), train=np.array([], int))
    found = fitted(make(tmp_path, partition=partition, **STATIC)).extra_uplink()
    assert all(np.isfinite(a).all() for a in found.values())


# The client's loss -----------------------------------------------------------------


def test_the_pull_is_lambda_times_the_squared_distance(tmp_path):
    weight = 0.3
    client = make(tmp_path, **{"fedgkd.proximal-lambda": weight, "dropout": 0.0})
    client._load(1, toys.shared_arrays(client))
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
        plain = super(FedGKDClient, client).loss(client.graph, noise)
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
    reference = np.concatenate([client.received[n].numpy().ravel() for n in names])
    value, gradient = oracle.proximal(
        w.astype(np.float64), reference.astype(np.float64), weight
    )
    assert moved - plain == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose((slope - plain_slope).numpy(), gradient, atol=1e-5)


@pytest.mark.parametrize("server_round", [1, 2])
def test_fedpub_penalties_are_norms_that_are_not_squared(tmp_path, server_round):
    both = {"fedpub.mask-weight": 0.01, "fedpub.proximal-weight": 0.1, "dropout": 0.0}
    losses = {}
    for mode in ("off", "on"):
        client = make(
            tmp_path / mode, method="fedpub", **both, **{"fedpub.penalties": mode}
        )
        client._load(server_round, toys.shared_arrays(client))
        client.model.train()
        with torch.no_grad():
            for name, tensor in client.tensors().items():
                tensor.add_(0.5 if name.startswith("masks") else 0.1)
            loss = client.loss(client.graph, torch.Generator())
        losses[mode] = loss.item()
    sizes = {n: t.numel() for n, t in client.tensors().items()}
    expected = 0.01 * sum(1.5 * n for k, n in sizes.items() if k.startswith("masks"))
    if server_round > 1:
        expected += 0.1 * sum(
            0.1 * n**0.5 for k, n in sizes.items() if not k.startswith("masks")
        )
    assert losses["on"] - losses["off"] == pytest.approx(expected, rel=1e-4)


def test_fedpub_penalties_have_a_gradient(tmp_path):
    client = make(
        tmp_path,
        method="fedpub",
        **{"fedpub.penalties": "on", "fedpub.mask-weight": 1e3},
    )
    before = [mask.detach().clone() for mask in client.model.masks]
    fitted(client)
    # Adam follows the penalty: every entry of every mask goes down.
    for was, mask in zip(before, client.model.masks, strict=True):
        assert (mask < was).all()


def test_fedstar_encodes_its_graph_once(run, monkeypatch):
    from clients import fedstar

    calls: list[int] = []
    encode = fedstar.encode_structure

    def spy(*args, **kw):
        calls.append(1)
        return encode(*args, **kw)

    monkeypatch.setattr(fedstar, "encode_structure", spy)
    run("fedstar")
    assert len(calls) == 3  # clients, not rounds


# Scales ----------------------------------------------------------------------------


def test_a_start_can_have_the_scale_of_the_data(tmp_path):
    still = {"fedgkd.distil-steps": 0}
    unit = fitted(make(tmp_path / "a", **still))
    data = fitted(make(tmp_path / "b", **still, **{"fedgkd.x0-scale": "data"}))
    std = unit.job.data.partition.graphs.x.astype(np.float64).std()
    plain, scaled = (c.extra_uplink()["fedgkd/features-x"] for c in (unit, data))
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
        fitted(client).extra_uplink()


def test_the_scale_of_one_hot_features(tmp_path):
    partition = toys.make_node_partition()
    columns = (np.arange(partition.graphs.num_nodes) % 6).astype(np.uint8)
    hot = replace(partition.graphs, x=columns)
    client = make(tmp_path, partition=replace(partition, graphs=hot))
    assert client._feature_std() == pytest.approx(np.eye(6)[columns].std())


# What goes wrong -------------------------------------------------------------------


def test_a_start_of_another_width_is_refused(tmp_path):
    client = make(tmp_path)
    client.extra_downlink[X0] = np.zeros((6, 5), np.float32)
    with pytest.raises(WireError, match=r"shape \(6, 5\), its own have 6 columns"):
        fitted(client).extra_uplink()


def test_a_client_that_sends_no_features_stops_the_run_by_name(run, monkeypatch):
    monkeypatch.setattr(FedGKDClient, "extra_uplink", lambda _: {})
    with pytest.raises(WireError, match=r"client 0 sent no .*features-x"):
        run("fedgkd")


def test_a_client_that_fails_keeps_its_average(run, monkeypatch):
    fit, seen = GraphClient.fit, []
    step = AbstractPersonalStrategy.step

    def fail(self, parameters, config):
        if self.job.client_id == 1 and config["server-round"] == 2:
            raise ValueError("disk full")
        return fit(self, parameters, config)

    def spy(self, server_round, replies):
        step(self, server_round, replies)
        seen.append(self.personal[1]["readout.bias"].copy())

    monkeypatch.setattr(GraphClient, "fit", fail)
    monkeypatch.setattr(AbstractPersonalStrategy, "step", spy)
    finished = run("fedgkd", **{"min-fit-replies": 0.5})
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    q = read_matrices(finished.path, "q")[2]
    assert np.isnan(q[1]).all()
    assert np.isnan(q[:, 1]).all()
    np.testing.assert_allclose(q[np.ix_([0, 2], [0, 2])].sum(1), 1)
    assert {p.name for p in draw_run(finished.path)} >= {
        "relatedness.png",
        "weights.png",
    }


def test_nan_features_fail_the_client_by_name(run, toy_data, monkeypatch):
    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        if client_id == 2:
            partition.graphs.x[0, 0] = np.nan
        return partition

    monkeypatch.setattr("datasets.load_partition", load)
    finished = run("fedgkd", **{"min-fit-replies": 0.5, "num-server-rounds": 1})
    (failure,) = finished.summary["failures"]
    assert failure["client"] == 2
    assert "NaN" in failure["reason"]


@pytest.mark.parametrize("method", ["fedgkd", "fedpub", "fedstar"])
def test_a_client_without_some_class_takes_part(run, monkeypatch, method):
    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = np.where(
            partition.graphs.y == client_id, (client_id + 1) % 3, partition.graphs.y
        )
        return replace(partition, graphs=replace(partition.graphs, y=y))

    monkeypatch.setattr("datasets.load_partition", load)
    finished = run(method)
    assert finished.summary["status"] == "completed"
    assert finished.summary["failures"] == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"fedgkd.tau": 2.0}, "fedgkd.tau = 2 times 3 clients is above 5"),
        ({"fedgkd.tau": 8.0, "fedgkd.tau-s": 9.0}, "of all averages; lower"),
    ],
)
def test_a_collapse_is_warned_of(run, caplog, overrides, words):
    logger = logging.getLogger("flwr")
    level, logger.propagate = logger.level, True
    logger.setLevel(logging.WARNING)
    try:
        run("fedgkd", **overrides, **{"fedgkd.feature-map": "H"})
        assert words in caplog.text
        caplog.clear()
        run("fedgkd")
        assert words not in caplog.text
    finally:
        logger.setLevel(level)
        logger.propagate = False


def test_settings_that_contradict_each_other_are_refused():
    base = {**toys.defaults(), **toys.tiny("fedgkd")}
    labels = {"fedgkd.feature-map": "y"}
    for still in ({"fedgkd.update-labels": False}, STATIC):
        with pytest.raises(ConfigError, match=r"compares learned labels, but nothing"):
            resolve({**base, **labels, **still})
    resolve({**base, **labels})
    for method in ("fedgkd", "fedpub"):
        with pytest.raises(ConfigError, match=rf"{method} sends features that its"):
            resolve({**base, "method": method, "privacy.update-clip": 1.0})


# Diagnostics -----------------------------------------------------------------------


def test_relatedness_is_compared_with_class_shares_afterwards(run):
    finished = run("fedgkd", **{"fedgkd.feature-map": "H"})
    found = analyse(finished.path)
    assert sorted(found) == [1, 2, 3]
    labels = label_similarity(np.array(finished.summary["class_counts"]))
    r = read_matrices(finished.path, "R")[3]
    assert found[3][0] == pytest.approx(rank_correlation(r, labels), nan_ok=True)


def test_similarity_of_class_shares_by_hand():
    found = label_similarity(np.array([[2, 2], [5, 5], [9, 0], [0, 3]]))
    assert found[0, 1] == pytest.approx(1)
    assert found[2, 3] == pytest.approx(0)
    assert 0 < found[0, 2] < 1
    np.testing.assert_array_equal(found, found.T)


def test_rank_correlation_by_hand():
    up = np.array([[1, 0.1, 0.2], [0.1, 1, 0.3], [0.2, 0.3, 1]])
    assert rank_correlation(up, up**3) == pytest.approx(1)
    assert rank_correlation(up, -up) == pytest.approx(-1)
    absent = up.copy()
    absent[2] = absent[:, 2] = np.nan
    assert np.isnan(rank_correlation(absent, up))  # one pair is left
    assert np.isnan(rank_correlation(np.ones((3, 3)), up))


def test_a_run_without_matrices_cannot_be_analysed(once):
    with pytest.raises(DataError, match="has no matrix 'R'"):
        analyse(once("fedavg", **ON_NODES).path)
