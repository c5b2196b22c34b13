"""FedGMTL and its baselines: masked training, the penalty, and Omega on its way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from matrix import mostly_slow
from oracles import task_covariance as oracle
from sklearn.metrics import log_loss

from clients.task_covariance import normalise
from fedgraph_flwr.core.privacy_settings import UPDATE_EPSILON
from fedgraph_flwr.core.wire import Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedgmtl import OMEGA
from fedgraph_flwr.results.pooled import read_covariances, read_rounds
from strategies.fedgmtl import FedGMTL

MASKS = {"task-masks": "0;1;0-1"}  # of three clients
EITHER = pytest.mark.parametrize("encoder", ["sage", "gat"])


def client(root, method="fedgmtl", *, client_id=0, **overrides):
    """Client of a federation with masks, ready to train in round 1."""
    given = {**MASKS, "dropout": 0.0, **overrides}
    settings = toys.resolved(method, **given).settings
    made = toys.make_client(
        root, method, partition=toys.federation(settings, client_id), **given
    )
    toys.begun(made)
    if method == "fedgmtl":
        made.relate()
    return made


def gradients(made, positions=None):
    train = made.trained_on() if positions is None else positions
    batch = made.job.data.graphs.batch(train)
    made.model.zero_grad()
    loss = made.loss(batch, torch.Generator()) + made.penalty()
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in made.model.named_parameters()}


def skewed(made):
    """Give the client an Omega that relates its two tasks."""
    omega = torch.tensor([[0.7, -0.3], [-0.3, 0.3]])
    made.tensors()[OMEGA].copy_(omega)
    made.relate()
    return omega.double().numpy()


def unlabelled(partition, split):
    """The same client without any label in a split."""
    y = partition.graphs.y.copy()
    y[partition.positions(split)] = np.nan
    return replace(partition, graphs=replace(partition.graphs, y=y))


# The loss -----------------------------------------------------------------------------


@EITHER
@pytest.mark.parametrize("reg", mostly_slow([0.0, 0.01], fast=[0.01]))
def test_the_penalty_moves_own_rows_by_two_lambda_omega_inverse_phi(
    tmp_path, encoder, reg
):
    options = {"multitask.encoder": encoder, "client_id": 1}
    made = client(tmp_path, **options, **{"fedgmtl.task-reg": reg})
    plain = client(tmp_path, **options, **{"fedgmtl.task-reg": 0.0})
    omega = skewed(made)
    (loss, found), (data_loss, without) = gradients(made), gradients(plain)
    phi = made.model.head.weight.detach().double().numpy()
    assert loss - data_loss == pytest.approx(reg * oracle.penalty(phi, omega), abs=1e-5)
    expected = 2 * reg * (np.linalg.inv(omega) @ phi)
    extra = (found["head.weight"] - without["head.weight"]).numpy()
    np.testing.assert_allclose(extra[1], expected[1], atol=1e-5)
    assert (extra[0] == 0).all()
    assert bool(np.abs(extra[1]).max() > 1e-3) == bool(reg)
    for name, gradient in without.items():
        if name != "head.weight":
            torch.testing.assert_close(found[name], gradient)


@EITHER
def test_heads_of_other_clients_tasks_get_no_gradient_from_data(tmp_path, encoder):
    options = {"multitask.encoder": encoder, "client_id": 1}
    _, found = gradients(client(tmp_path, "fedavg multi-task", **options))
    for part in ("head.weight", "head.bias"):
        assert (found[part][0] == 0).all()
        assert (found[part][1] != 0).any()


def test_the_loss_is_scikit_learns_over_own_observed_labels(tmp_path):
    made = client(tmp_path, "fedavg multi-task", client_id=1)
    partition = made.job.data.partition
    y = toys.with_tasks(toys.make_partition(1, num_graphs=25)).graphs.y
    kept = [g for g in partition.train if not np.isnan(y[g, 1])]
    assert kept != partition.train.tolist()  # some labels are missing
    batch = made.job.data.graphs.batch(partition.train)
    chances = torch.sigmoid(made.logits(batch, batch)).detach().numpy()
    rows = np.searchsorted(partition.train, kept)
    expected = log_loss(y[kept, 1], chances[rows, 1].astype(float), labels=[0, 1])
    found = made.loss(batch, torch.Generator()).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_graphs_without_an_own_label_are_skipped(tmp_path, monkeypatch):
    made = client(tmp_path, client_id=1, **{"batch-size": 1})
    y, train = made.job.data.partition.graphs.y, made.job.data.partition.train
    kept = train[~np.isnan(y[train, 1])]
    np.testing.assert_array_equal(made.trained_on(), kept)
    assert 0 < len(kept) < len(train)
    seen = []
    batch_of = made.job.data.graphs.batch
    monkeypatch.setattr(
        made.job.data.graphs, "batch", lambda p: seen.extend(p) or batch_of(p)
    )
    _, num_examples, metrics = made.fit(toys.shared_arrays(made), {"server-round": 1})
    assert sorted(seen) == kept.tolist()
    assert num_examples == len(train)  # N_k counts molecules, not labels
    assert np.isfinite(metrics["eval/train/post_training/loss"])


@pytest.mark.parametrize("method", ["fedgmtl", "fedavg multi-task", "local multi-task"])
def test_a_client_without_any_label_says_so_and_goes_on(tmp_path, caplog, method):
    settings = toys.resolved(method, **MASKS).settings
    bare = unlabelled(toys.federation(settings, 1), "train")
    made = toys.make_client(tmp_path, method, partition=bare, **MASKS)
    start = toys.shared_arrays(made)
    sent, _, metrics = made.fit(start, {"server-round": 1})
    assert "client 1 trains nothing: none of its 15 training graphs has a label of" in (
        caplog.text
    )
    for before, after in zip(start, sent, strict=bool(sent)):
        np.testing.assert_array_equal(before, after)
    assert "eval/test/post_aggregation/roc-auc" in metrics
    assert "eval/train/post_training/loss" not in metrics


@pytest.mark.parametrize(("dataset", "split"), [("BACE", "val"), ("ESOL", "test")])
def test_graphs_without_any_label_have_no_loss(tmp_path, dataset, split):
    """Their loss of 0 would count as the best of all clients."""
    options = {**MASKS, "dataset": dataset}
    settings = toys.resolved("fedavg multi-task", **options).settings
    partition = toys.federation(settings, 0)
    bare = unlabelled(partition, split)
    made = toys.make_client(tmp_path, "fedavg multi-task", partition=bare, **options)
    metrics = toys.begun(made).scores("post_aggregation").metrics
    for name in ("val", "test"):
        assert (f"eval/{name}/post_aggregation/loss" in metrics) == (name != split)
    scored = f"eval/{split}/post_aggregation/{made.job.learning.metric}"
    assert scored not in metrics
    assert metrics[f"eval/{split}/post_aggregation/tasks-skipped"] == 2
    assert metrics[f"count/{split}"] == len(partition.positions(split))


# Omega --------------------------------------------------------------------------------


def test_omega_becomes_the_closed_form_of_the_trained_heads(tmp_path):
    options = {"fedgmtl.task-reg": 0.01, "client_id": 2}
    options |= {"local-epochs": 2}
    made = client(tmp_path, **options)
    reply = made.participate(toys.parcel(made), {"server-round": 1})
    named = select(SHARED, reply.arrays)
    expected = oracle.closed_form(named["head.weight"].astype(float))
    np.testing.assert_allclose(named[OMEGA], expected, atol=1e-6)
    record = reply.evaluation
    np.testing.assert_allclose(record["task-covariance"], expected, atol=1e-6)
    assert record["task-ids"].tolist() == [0, 1]


def test_the_server_averages_omega_by_training_graphs(run):
    finished = run("fedgmtl", **MASKS, **{"num-server-rounds": 2})
    assert read_rounds(finished.path) == [1, 2]
    (model,) = finished.models.values()
    sent = read_covariances(finished.path, 2)
    assert set(sent) == {0, 1, 2}
    sizes = np.array([12, 15, 18])  # of 20, 25 and 30 graphs three of five train
    mean = sum(n * sent[c][1] for c, n in enumerate(sizes)) / sizes.sum()
    np.testing.assert_allclose(model[OMEGA], mean, atol=1e-6)
    assert np.trace(model[OMEGA]) == pytest.approx(1, abs=1e-6)
    differ = [np.abs(sent[0][1] - sent[c][1]).max() for c in (1, 2)]
    assert min(differ) > 1e-6


@pytest.mark.parametrize("noisy", [(), (1,), (0, 1)])
def test_a_client_that_sends_no_covariance_is_named(noisy):
    """Unless all put noise on it: that some say so excuses nobody."""
    sent = {
        0: np.array([[0.7, -0.3], [-0.3, 0.3]]),
        1: np.eye(2),  # of trace 2
        2: np.array([[0.5, 1.5], [1.5, 0.5]]),
    }
    server = object.__new__(FedGMTL)
    server.spent = {c: {UPDATE_EPSILON: 1.0} for c in noisy}
    found = server.misfits(
        {c: Parcel(arrays={SHARED + OMEGA: a.astype("f4")}) for c, a in sent.items()}
    )
    assert list(found) == [1, 2]
    assert "has trace 2 and entries up to 1;" in found[1]


def test_a_received_omega_that_is_not_positive_is_mended_before_it_is_inverted(
    tmp_path,
):
    made = client(tmp_path)
    bent = torch.tensor([[0.5, 0.9], [0.9, 0.5]])
    made.tensors()[OMEGA].copy_(bent)
    made.relate()
    torch.testing.assert_close(made.tensors()[OMEGA], normalise(bent).float())
    _, found = gradients(made)
    assert all(g.isfinite().all() for g in found.values())


def test_the_server_mends_the_mean_of_omegas_that_noise_has_bent():
    made = toys.resolved("fedgmtl")
    server = FedGMTL(made.settings, made.params, experiment="e")
    server.clients = {c: toys.info(c) for c in range(2)}
    server.initialise({OMEGA: np.eye(2, dtype=np.float32) / 2})
    bent = np.array([[1.0, 0.5], [0.1, 3.0]], np.float32)
    replies = {
        c: Parcel(
            arrays=with_prefix("shared/", {OMEGA: bent * scale}),
            metrics={"num-examples": 1},
        )
        for c, scale in enumerate((0.5, 1.5))
    }
    server.step(1, replies)
    expected = np.array([[1.0, 0.3], [0.3, 3.0]]) / 4
    np.testing.assert_allclose(server.theta[OMEGA], expected, rtol=1e-6)


@pytest.mark.slow
def test_noise_that_leaves_no_covariance_leaves_that_of_the_round_before(run, caplog):
    noisy = {"privacy.update-clip": 0.1, "privacy.update-noise": 300.0}
    with caplog.at_level("WARNING", logger="flwr"):
        finished = run("fedgmtl", **MASKS, **noisy, **{"num-server-rounds": 6})
    assert finished.summary["status"] == "completed", finished.summary["error"]
    assert finished.summary["failures"] == []
    assert "left no covariance of tasks; that of the round before stays" in caplog.text
    (model,) = finished.models.values()
    assert np.trace(model[OMEGA]) == pytest.approx(1)


# Whole runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "weighting"), [("sage", "samples"), ("gat", "uniform")]
)
def test_without_penalty_it_is_fedavg_in_every_round(run, encoder, weighting):
    neutral = {"fedgmtl.task-reg": 0.0, "num-server-rounds": 2}
    neutral |= {"multitask.encoder": encoder, "weighting": weighting}
    ours, fedavg = (
        run(m, **MASKS, **neutral) for m in ("fedgmtl", "fedavg multi-task")
    )
    (model,), (plain,) = ours.models.values(), fedavg.models.values()
    assert set(model) - set(plain) == {OMEGA}
    for name, array in plain.items():
        np.testing.assert_array_equal(model[name], array)
    assert ours.rounds == fedavg.rounds


def test_errors_of_the_mean_are_of_each_tasks_own_mean(tmp_path):
    made = client(tmp_path, "fedavg multi-task", dataset="ESOL")
    metrics = made.scores("post_aggregation").metrics
    partition = made.job.data.partition
    y = partition.graphs.y[partition.test].astype(float)
    apart = y - np.nanmean(y, axis=0)
    mae = np.nanmean(np.abs(apart), axis=0).mean()
    rmse = np.sqrt(np.nanmean(apart**2, axis=0)).mean()
    at = "eval/test/post_aggregation/"
    assert metrics[at + "mae-of-mean"] == pytest.approx(mae, rel=1e-5)
    assert metrics[at + "rmse-of-mean"] == pytest.approx(rmse, rel=1e-5)


def test_auc_of_own_and_other_tasks(run):
    finished = run("fedavg multi-task", **MASKS)
    names = [f"roc-auc{tail}" for tail in ("", "-own", "-unseen", "-task-0", "-task-1")]
    seen = finished.values(*names)
    at = "3", "0", "test", "post_aggregation"
    whole, own, unseen, *by_task = (seen[(*at, name)] for name in names)
    assert [own, unseen] == by_task  # client 0 has task 0
    assert whole == pytest.approx(np.mean(by_task))
    everything = ("3", "2", "val", "post_aggregation", "roc-auc-own")
    assert everything in seen  # client 2 has both tasks
    assert ("3", "2", "val", "post_aggregation", "roc-auc-unseen") not in seen
