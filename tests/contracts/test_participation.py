"""Rounds in which some of the clients train, for every method."""

from __future__ import annotations

import re

import numpy as np
import pytest
import toys
from matrix import mostly_slow, one_per_strategy
from stops import resumed

from clients.base import GraphClient
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING
from fedgraph_flwr.results.printed import summary_table
from strategies.fedavg import FedAvg

NEED_ALL = [m for m in toys.CASES if toys.row(m).params.NEEDS_ALL]
ONE_PER_STRATEGY = one_per_strategy(set(toys.CASES) - set(NEED_ALL))
HALF = {
    "num-clients": 6,
    "client-fraction": 0.5,
    "num-server-rounds": 2,
    "patience": 0,  # nodes: 20 by default, which a share of the clients rules out
}


@pytest.fixture
def trained(monkeypatch):
    """Clients that were asked to train, by round."""
    called: dict[int, list[int]] = {}
    train = GraphClient.participate

    def spy(self, parcel, header):
        called.setdefault(header["server-round"], []).append(self.job.client_id)
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "participate", spy)
    return called


@ONE_PER_STRATEGY
def test_a_share_of_the_clients_trains_and_all_are_evaluated_at_the_end(
    run, trained, method
):
    finished = run(method, nodes=2, **HALF)
    assert [len(clients) for clients in trained.values()] == [3] * 2
    assert len({tuple(sorted(clients)) for clients in trained.values()}) > 1
    assert finished.summary["failures"] == []
    assert finished.summary["rules"] == ["final"]  # no round but the last has all
    assert set(finished.summary["final"]["per_client"]) == set("012345")
    addressed = {
        (int(r["round"]), int(r["client"]))
        for r in finished.ledger
        if r["client"] != "-1" and r["direction"] == "down" and int(r["round"]) <= 2
    }
    assert addressed == {(t, c) for t, clients in trained.items() for c in clients}


def test_who_trains_is_drawn_from_the_run_seed_alone(run, trained):
    def drawn(method, **options):
        trained.clear()
        run(method, **HALF, **options)
        return {t: sorted(clients) for t, clients in trained.items()}

    first = drawn("fedavg")
    assert drawn("fedprox", nodes=3) == first
    assert drawn("fedavg", seed=11) != first


def test_the_average_is_over_those_who_trained(run):
    """Of one client it is that client's model, which it then receives."""
    alone = {"client-fraction": 0.1, "num-server-rounds": 1, "shared-group": "all"}
    finished = run("fedavg", **{**HALF, **alone})
    (client,) = {r["client"] for r in finished.ledger if r["round"] == "1"} - {"-1"}
    seen = finished.values("loss")
    trained = seen["1", client, "val", "post_training", "loss"]
    assert trained == seen["1", client, "val", "post_aggregation", "loss"]
    assert trained != seen["0", client, "val", "post_aggregation", "loss"]


def test_resuming_draws_the_same_clients_and_holds_out_the_same(run, trained):
    half = {**HALF, "held-out-clients": "0.34", "shared-group": "all"}
    longer = {**half, "num-server-rounds": 4}
    whole = run("fedavg", **longer)
    everyone = {t: list(clients) for t, clients in trained.items()}
    part = run("fedavg", **half)
    trained.clear()
    again = resumed(run, part, "fedavg", **longer)
    assert trained == {t: everyone[t] for t in (3, 4)}
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)
    for key in ("held_out_clients", "final"):
        assert again.summary[key] == whole.summary[key]


def test_only_clients_of_the_round_can_fail_it(run, monkeypatch):
    toys.fail_when(monkeypatch, lambda _, server_round: server_round == 2)
    with pytest.raises(RunFailedError, match=r"round 2: 0 of 3 clients replied"):
        run("fedavg", **HALF)


@pytest.mark.parametrize("method", NEED_ALL)
def test_methods_that_need_every_client_refuse_a_share_of_them(method):
    name = re.escape(method.split()[0])
    with pytest.raises(ConfigError, match=f"client-fraction must be 1 for {name}, got"):
        toys.resolved(method, **HALF)
    assert {"gcfl", "gcfl+"} <= set(NEED_ALL)


def test_early_stopping_refuses_a_share_of_the_clients():
    with pytest.raises(ConfigError, match=r"patience must be 0 .* set patience to 0"):
        toys.resolved("fedavg", **{**HALF, "patience": 2})


def test_the_share_is_rounded_to_whole_clients(run, trained):
    for fraction, count in ((0.01, 1), (0.34, 2), (0.99, 6)):
        trained.clear()
        run("fedavg", **{**HALF, "num-server-rounds": 1, "client-fraction": fraction})
        assert len(trained[1]) == count


HELD_OUT = {"num-clients": 6, "held-out-clients": "1,4", "shared-group": "all"}
ALLOW = [
    m
    for m in toys.CASES
    if not toys.row(m).strategy.NO_HOLD_OUT
    and toys.row(m).task is not GRAPH_EMBEDDING
    and m != "fedstar"  # a part of its model stays with each client
]


@pytest.mark.parametrize("method", mostly_slow(ALLOW, fast=["fedavg", "gcfl+"]))
def test_held_out_clients_never_train_and_stand_apart(run, trained, method):
    finished = run(method, nodes=2, **HELD_OUT)
    summary = finished.summary
    assert {c for clients in trained.values() for c in clients} == {0, 2, 3, 5}
    assert summary["failures"] == []
    apart, metric = summary["held_out_clients"], summary["metric"]
    for rule in summary["rules"]:
        assert set(summary[rule]["per_client"]) == set("0235")
    assert [c for cluster in summary["clusters"] for c in sorted(cluster)] == [
        0,
        2,
        3,
        5,
    ]
    seen = finished.values(metric)
    last = str(summary["rounds"])
    at = "test", "held_out", metric
    assert apart["per_client"] == {c: seen[(last, c, *at)] for c in "14"}
    assert apart["mean"] == pytest.approx(sum(apart["per_client"].values()) / 2)
    assert {k[0] for k in seen if k[1] in "14"} == {last}
    table = " ".join(summary_table(summary).split())
    words = f"2 clients held out from training: {metric} {apart['mean']:.4f}"
    assert words in table
    if metric == "accuracy":
        assert set(apart["also_per_client"]["macro-f1"]) == {"1", "4"}


def test_held_out_clients_change_nothing_but_who_trains(run):
    """Clients 3 to 5 of six are held out: the others train as if alone."""
    few = {"shared-group": "all", "num-server-rounds": 2}
    alone = run("fedavg", **{**few, "num-clients": 3})
    held_out = {"num-clients": 6, "held-out-clients": "3,4,5"}
    apart = run("fedavg", **few, **held_out)
    (ours,), (theirs,) = apart.models.values(), alone.models.values()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name])
    assert apart.summary["final"] == alone.summary["final"]
    assert alone.summary["held_out_clients"] is None


def test_a_share_of_clients_is_held_out_by_the_split_seed_alone(run):
    def held_out(**options):
        given = {**HELD_OUT, "held-out-clients": "0.5", "num-server-rounds": 1}
        return set(
            run("fedavg", **given, **options).summary["held_out_clients"]["per_client"]
        )

    first = held_out()
    assert len(first) == 3
    assert held_out(seed=11) == first
    assert any(held_out(**{"split-seed": s}) != first for s in (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("6", "below 6, each once, got '6'"),
        ("0,1,2,3,4,5", "which is 6 of 6"),
        ("0.05", "which is 0 of 6"),
        ("a", "must be a share of the clients such as '0.2'"),
    ],
)
def test_a_choice_of_clients_that_cannot_be_held_out_is_refused(text, words):
    with pytest.raises(ConfigError, match=f"held-out-clients .*{re.escape(words)}"):
        toys.resolved("fedavg", **{**HELD_OUT, "held-out-clients": text})


@pytest.mark.parametrize("method", sorted({*toys.CASES} - {*ALLOW, "fedstar"}))
def test_methods_without_a_model_for_newcomers_hold_nobody_out(method):
    found = toys.row(method)
    reason = found.strategy.NO_HOLD_OUT
    if found.task is GRAPH_EMBEDDING:
        reason = "measured after the same rounds"
    with pytest.raises(ConfigError, match=f"held-out-clients must be empty.*{reason}"):
        toys.resolved(method, **HELD_OUT)


def test_a_held_out_client_refuses_to_train(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "trainers", lambda self: sorted(self.clients))
    with pytest.raises(
        RunFailedError, match="client 4 is asked to train, but held-out"
    ):
        run("fedavg", **HELD_OUT)


def test_at_sites_a_client_held_out_tells_what_its_policy_lets_out(run, tmp_path):
    nodes = [
        {"clients": clients, "data-path": "/toys", "state-dir": str(tmp_path / clients)}
        for clients in ("0,2,3,5", "1", "4")
    ]
    nodes[1] |= toys.policy(tmp_path, scores=False)
    at_sites = run("fedavg", node_configs=nodes, **HELD_OUT)
    simulated = run("fedavg", **HELD_OUT).summary
    assert at_sites.sha == simulated["weights_sha256"]
    summary = at_sites.summary
    assert summary["final"] == simulated["final"]
    told = simulated["held_out_clients"]["per_client"]
    assert summary["held_out_clients"]["per_client"] == {"4": told["4"]}
