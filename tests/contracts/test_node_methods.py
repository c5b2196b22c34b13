"""Methods of other tasks on data whose nodes are classified: the check-list again."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from matrix import mostly_slow, one_per_strategy
from stops import resumed

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import resolve
from fedgraph_flwr.results.printed import summary_table
from simulations.tiny_runs import OF_TASK

NODES = {
    **OF_TASK[NODE_CLASSIFICATION.name],
    "gcfl.mean-norm-threshold": 1e9,  # splits as soon as it may
    "gcfl.max-norm-threshold": 0.0,
}
HAVE_BOTH = [
    m for m, row in METHODS.items() if NODE_CLASSIFICATION in list(row.clients)[1:]
]
ONE_PER_STRATEGY = one_per_strategy(HAVE_BOTH)
NODES_ONLY = toys.of_task(NODE_CLASSIFICATION)


@pytest.fixture(scope="module")
def on_nodes(run):
    def start(method, **overrides):
        return run(method, **{**NODES, **overrides})

    return start


@pytest.mark.parametrize(
    "method", mostly_slow([*HAVE_BOTH, *NODES_ONLY], fast=["gcfl+"])
)
def test_the_same_seed_gives_the_same_bytes_on_any_number_of_nodes(on_nodes, method):
    runs = [on_nodes(method, nodes=n, **{"num-clients": 5}) for n in (1, 2, 5)]
    assert len({r.sha for r in runs}) == 1
    assert len({r.rounds for r in runs}) == 1
    assert on_nodes(method, seed=11, **{"num-clients": 5}).sha != runs[0].sha


def test_both_evaluation_points_are_recorded(on_nodes):
    finished = on_nodes("fedavg")
    seen = finished.values("accuracy")
    points = {(r, p) for r, _, _, p, _ in seen}
    assert {("0", "post_aggregation"), ("3", "post_aggregation")} <= points
    assert {("1", "post_training"), ("3", "post_training")} <= points
    assert {(c, s) for _, c, s, _, _ in seen} == {
        (c, s) for c in "012" for s in ("val", "test")
    }
    summary = finished.summary
    assert summary["task"] == NODE_CLASSIFICATION.name
    assert summary["rules"] == ["best_val", "final", "best_val_trained"]
    assert len(summary["best_val"]["per_client"]) == 3
    trained = {
        r: np.mean([seen[r, c, "val", "post_training", "accuracy"] for c in "012"])
        for r in "123"
    }
    best = summary["best_val_trained"]
    assert str(best["round"]) == max(trained, key=lambda r: (trained[r], -int(r)))
    at = str(best["round"]), "1", "test", "post_training", "accuracy"
    assert best["per_client"]["1"] == seen[at]


def test_the_table_names_the_headline_and_over_whom_a_mean_is(on_nodes, monkeypatch):
    def words(finished):
        rows = summary_table(finished.summary).replace("│", " ").split("\n ")
        return " ".join(" ".join(rows).split())

    whole = words(on_nodes("fedavg"))
    assert whole.count("(headline)") == 1
    assert "ties: the lower validation loss (headline) " in whole  # best_val, not final
    assert "mean over" not in whole

    for step in ("participate", "assess"):
        toys.fail_when(monkeypatch, lambda client, t: client == 2 <= t, step=step)
    rest = on_nodes("fedavg", **{"min-fit-replies": 0.5})
    assert rest.summary["best_val"]["num_clients_chosen_by"] == 2
    assert set(rest.summary["final"]["per_client"]) == {"0", "1"}
    assert "model of the last round; mean over 2 of 3 clients" in words(rest)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_uniform_weights_give_the_plain_mean(on_nodes, method, monkeypatch):
    sent = toys.sent_models(monkeypatch)
    one = {"num-server-rounds": 1}
    model = on_nodes(method, **one).models["global"]
    by_samples = on_nodes(method, **one, weighting="samples").models["global"]
    models = [sent[c] for c in sorted(sent)]
    sizes = [12, 15, 18]  # training nodes
    for name in model:
        stack = np.stack([m[name].astype(np.float64) for m in models])
        np.testing.assert_allclose(model[name], stack.mean(axis=0), atol=1e-7)
        weighted = np.average(stack, axis=0, weights=sizes)
        np.testing.assert_allclose(by_samples[name], weighted, atol=1e-7)
    assert np.abs(stack.mean(axis=0) - weighted).max() > 1e-5


def test_methods_that_need_graphs_refuse_nodes_and_edge_noise_too():
    with pytest.raises(
        ConfigError, match=r"'moon' is for graph classification.*one class per node"
    ):
        resolve({**toys.defaults(), **toys.tiny("moon"), **NODES})
    with pytest.raises(ConfigError, match=r"privacy.edge-epsilon needs a value for"):
        resolve(
            {**toys.defaults(), **toys.tiny("fedavg"), **NODES,
             "privacy.edge-epsilon": 1.0}
        )  # fmt: skip


STILL = {"learning-rate": 0.0, "weight-decay": 0.0}  # no round is better than round 1
EARLY = {**STILL, "num-server-rounds": 9, "patience": 2, "min-rounds": 4}


@ONE_PER_STRATEGY
def test_training_stops_early_and_the_last_model_is_still_measured(on_nodes, method):
    finished = on_nodes(method, **EARLY)
    # Round 4 is measured by the messages of round 5, after which training ends.
    assert finished.summary["rounds"] == 5
    assert finished.summary["status"] == "completed"
    assert finished.summary["best_val"]["round"] == 1
    assert "5" in {key[0] for key in finished.values("accuracy")}
    assert len(finished.summary["final"]["per_client"]) == 3


def test_a_resumed_run_stops_where_the_whole_one_did(on_nodes):
    whole = on_nodes("fedavg", **EARLY)
    part = on_nodes("fedavg", **{**EARLY, "num-server-rounds": 2})
    again = resumed(on_nodes, part, "fedavg", **EARLY)
    assert again.summary["rounds"] == 5
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)


def test_self_weight_lies_between_self_train_and_the_plain_mean(on_nodes):
    for a, method in ((1.0, "local"), (0.0, "fedavg")):
        ours, theirs = on_nodes("self-weight", **{"self-weight.a": a}), on_nodes(method)
        for key, value in theirs.values("loss").items():
            assert ours.values("loss")[key] == pytest.approx(value, abs=1e-5), key
    half = on_nodes("self-weight").models
    assert not np.array_equal(
        half["client-0"]["readout.weight"], half["client-1"]["readout.weight"]
    )
