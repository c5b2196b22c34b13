"""What goes wrong in FedGKD's rounds, and diagnostics of a finished run."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import toys
from toys_fedgkd import ON_NODES, STATIC, fitted, make

from clients.fedgkd import FedGKDClient
from fedgraph_flwr.core.errors import ConfigError, DataError, RunFailedError, WireError
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0
from fedgraph_flwr.resolve import resolve
from fedgraph_flwr.results.reader import read_matrices
from fedgraph_flwr.view.drawers import draw_all
from simulations.relatedness import analyse, label_similarity, rank_correlation
from strategies.personal import AbstractPersonalStrategy

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast

# What goes wrong -------------------------------------------------------------------


def test_a_start_of_another_width_is_refused(tmp_path):
    wide = {X0: np.zeros((6, 5), np.float32)}
    with pytest.raises(WireError, match=r"shape \(6, 5\), its own have 6 columns"):
        fitted(make(tmp_path), **wide)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        (Y0, np.full(6, np.nan, np.float32)),
        (Y0, np.full(6, 3, np.int64)),
        (Y0, np.full(6, -1, np.int64)),
        (Y0, np.int64(0)),
        (Y0, np.zeros(0, np.int64)),
        (NOISE_SEED, np.full(1, -1, np.int64)),
        (NOISE_SEED, np.zeros(0, np.int64)),
        (NOISE_SEED, np.full(1, np.nan, np.float32)),
    ],
)
def test_a_start_of_no_classes_or_no_seed_is_refused(tmp_path, name, sent):
    client = make(tmp_path)
    with pytest.raises(WireError, match=r"client 0 received classes .*int64"):
        fitted(client, **{name: sent})
    assert client.job.store.rounds() == []  # it has not done the round


@pytest.mark.parametrize("sent", [np.float32(1), np.zeros((6, 6), np.int64)])
def test_a_start_of_no_features_is_refused(tmp_path, sent):
    with pytest.raises(WireError, match="client 0 received features"):
        fitted(make(tmp_path), **{X0: sent})


def test_a_client_that_sends_no_features_stops_the_run_by_name(run, monkeypatch):
    monkeypatch.setattr(FedGKDClient, "features", lambda _: {})
    with pytest.raises(RunFailedError, match=r"clients 0-2: .* lacks .*features-h.*-x"):
        run("fedgkd")


def test_a_client_that_fails_keeps_its_average(run, monkeypatch):
    seen, step = [], AbstractPersonalStrategy.step

    def spy(self, server_round, replies):
        step(self, server_round, replies)
        seen.append(self.personal[1]["readout.bias"].copy())

    toys.fail_when(monkeypatch, lambda *at: at == (1, 2))
    monkeypatch.setattr(AbstractPersonalStrategy, "step", spy)
    finished = run("fedgkd", **{"min-fit-replies": 0.5})
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    q = read_matrices(finished.path, "q")[2]
    assert np.isnan(q[1]).all()
    assert np.isnan(q[:, 1]).all()
    np.testing.assert_allclose(q[np.ix_([0, 2], [0, 2])].sum(1), 1)
    assert {p.name for p in draw_all(finished.path)} >= {
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
    trained, closing = finished.summary["failures"]  # its loss is NaN at the end too
    assert trained["client"] == closing["client"] == 2
    assert "NaN" in trained["reason"]


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


@pytest.mark.parametrize("method", ["fedgkd", "fedpub", "fedstar", "fedsage+"])
def test_a_client_without_edges_or_training_nodes_takes_part(run, toy_data, method):
    def load(settings, client_id):
        if client_id != 1:
            return toys.federation(settings, client_id)
        alone = toys.make_node_partition(1, num_nodes=25, density=0.0)
        return replace(alone, train=np.arange(0))

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        finished = run(method)
    assert finished.summary["failures"] == []
    assert set(finished.summary["best_val"]["per_client"]) == {"0", "1", "2"}
    for matrices in ("R", "q"):
        for matrix in read_matrices(finished.path, matrices).values():
            assert np.isfinite(matrix).all()
    for model in finished.models.values():
        assert all(np.isfinite(array).all() for array in model.values())


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
    with pytest.raises(ConfigError, match=r"compares learned labels, but"):
        resolve({**base, **labels, **STATIC})
    resolve({**base, **labels})
    for method in ("fedgkd", "fedpub"):
        with pytest.raises(ConfigError, match="send features that a trained model"):
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
