"""Noise on gradients: nothing but noisy gradients knows a training graph.

Two worlds, as for noisy updates: other data at every client, and the same noisy
gradients. Whatever differs has gone around the noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys
from matrix import one_per_strategy

from fedgraph_flwr.core.errors import ConfigError
from simulations import contract
from simulations.tiny_runs import Lab

ON = {
    "privacy.graph-clip": 0.5,
    "privacy.graph-noise": 1.5,
    "privacy.update-clip": 0.0,
    "num-server-rounds": 2,
}


def takes(case):
    try:
        toys.resolved(case, **ON)
    except ConfigError:
        return False
    return True


ALLOWED = sorted(filter(takes, toys.AT_SITES))
MULTI = [f"{m} multi-task" for m in ("local", "fedavg", "fedprox", "gcfl+")]


def test_every_averaging_and_clustering_method_of_graphs_is_there():
    plain = {"fedavg", "fedprox", "local", "moon", "gcfl", "gcfl+", "self-weight"}
    assert {*plain, *MULTI, "fedgmtl"} <= set(ALLOWED)


@one_per_strategy(ALLOWED, also=["moon", "fedavg multi-task"])
def test_nothing_but_noisy_gradients_tells_the_data(lab, method, monkeypatch):
    def given(total, **_):
        for p in total:
            drawn = np.random.default_rng(p.shape).normal(size=p.shape)
            p.grad = p.new_tensor(drawn)

    monkeypatch.setattr("clients.noisy_steps.add_noise", given)
    words = contract.protects_updates(lab, method, **ON)
    assert words is None, "the setting is refused"


def test_a_run_says_what_a_graph_has_paid_and_no_training_loss(run):
    private, plain = run("fedavg", **ON), run("fedavg", **{"num-server-rounds": 2})
    of_train = [key for key in private.values() if key[2] == "train"]
    assert not of_train
    assert [key for key in plain.values() if key[2] == "train"]
    spent = private.summary["privacy"]["per_client"]["0"]
    assert 0 < spent["graph-epsilon"] == spent["graph-epsilon-lifetime"]
    assert "DP for one training graph" in private.summary["privacy"]["says"]
    assert private.sha == run("fedavg", nodes=3, **ON).sha != plain.sha


def test_kinds_of_noise_are_told_side_by_side(run):
    more = {"privacy.update-clip": 1.0, "privacy.both": True, "features": "labels"}
    found = run("fedavg", **{**ON, **more, "privacy.edge-epsilon": 1.0}).summary
    says = found["privacy"]["says"]
    assert all(word in says for word in ("edges: ", "updates: ", "graphs: "))


@pytest.mark.parametrize("method", ["gcfl+", "fedavg multi-task"])
def test_a_resume_after_a_kill_has_the_same_bytes(lab, method, tmp_path):
    noise = {k: v for k, v in ON.items() if k != "num-server-rounds"}
    lab = Lab(tmp_path, {**lab.settings, **noise})  # which keeps runs of its own
    assert "graphs: " in lab.once(method).summary["privacy"]["says"]
    contract.resumes_after_a_kill(lab, method)
    contract.same_bytes_in_any_process(lab, method)


@pytest.mark.parametrize("method", ["fedavg", "fedavg multi-task"])
def test_scores_know_no_training_label_either(method, tmp_path):
    """The commonest class is an exact function of them, and so is the rarer of two."""
    found = []
    for label in (0, 1):
        part = toys.make_partition(num_graphs=25)
        part = toys.with_tasks(part) if "multi" in method else part
        y = part.graphs.y.copy()
        y[part.train] = label
        part = toys.renewed(part, graphs=replace(part.graphs, y=y))
        client = toys.make_client(tmp_path, method, partition=part, **ON)
        client.is_last = True
        found.append(client.scores("post_aggregation").metrics)
    assert found[0] == found[1]
    assert any("/loss" in name for name in found[0])
