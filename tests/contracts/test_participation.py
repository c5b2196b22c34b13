"""Rounds in which some of the clients train, for every method."""

from __future__ import annotations

import numpy as np
import pytest
import toys

from clients.base import GraphClient
from fedgraph_flwr.errors import ConfigError, RunFailedError
from fedgraph_flwr.registry import METHODS

SOME = sorted(m for m in METHODS if not METHODS[m].params.NEEDS_ALL)
HALF = {"num-clients": 6, "client-fraction": 0.5, "num-server-rounds": 4}


@pytest.fixture
def trained(monkeypatch):
    """Clients whose ``fit`` was called, by round."""
    called: dict[int, list[int]] = {}
    fit = GraphClient.fit

    def spy(self, parameters, config):
        called.setdefault(config["server-round"], []).append(self.job.client_id)
        return fit(self, parameters, config)

    monkeypatch.setattr(GraphClient, "fit", spy)
    return called


@pytest.mark.parametrize("method", SOME)
def test_a_share_of_the_clients_trains_and_all_are_evaluated_at_the_end(
    run, trained, method
):
    finished = run(method, nodes=2, **HALF)
    assert [len(clients) for clients in trained.values()] == [3] * 4
    assert len({tuple(sorted(clients)) for clients in trained.values()}) > 1
    assert finished.summary["failures"] == []
    assert set(finished.summary["final"]["per_client"]) == set("012345")
    addressed = {
        (int(r["round"]), int(r["client"]))
        for r in finished.ledger
        if r["client"] != "-1" and r["direction"] == "down" and int(r["round"]) <= 4
    }
    assert addressed == {(t, c) for t, clients in trained.items() for c in clients}


def test_a_method_that_needs_all_clients_refuses_a_share():
    with pytest.raises(
        ConfigError, match=r"client-fraction must be 1 for spreadgnn, g"
    ):
        toys.resolved("spreadgnn", **HALF)


def test_who_trains_is_drawn_from_the_run_seed_alone(run, trained):
    def drawn(method, **options):
        trained.clear()
        run(method, **HALF, **options)
        return {t: sorted(clients) for t, clients in trained.items()}

    first = drawn("fedavg")
    assert drawn("gcfl+", nodes=3) == first
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


def test_resuming_draws_the_same_clients(run, trained):
    whole = run("gcfl+", **HALF)
    everyone = {t: list(clients) for t, clients in trained.items()}
    part = run("gcfl+", **{**HALF, "num-server-rounds": 2})
    trained.clear()
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("gcfl+", **HALF, **again, resume=str(part.path))
    assert trained == {t: everyone[t] for t in (3, 4)}
    assert resumed.sha == whole.sha
    assert resumed.rounds == whole.rounds


def test_only_clients_of_the_round_can_fail_it(run, monkeypatch):
    fit = GraphClient.fit

    def broken(self, parameters, config):
        if config["server-round"] == 2:
            raise ValueError("disk full")
        return fit(self, parameters, config)

    monkeypatch.setattr(GraphClient, "fit", broken)
    with pytest.raises(RunFailedError, match=r"round 2: 0 of 3 clients replied"):
        run("fedavg", **HALF)


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.34, 2), (0.99, 6)])
def test_the_share_is_rounded_to_whole_clients(run, trained, fraction, count):
    run("fedavg", **{**HALF, "num-server-rounds": 1, "client-fraction": fraction})
    assert len(trained[1]) == count


def test_every_client_is_drawn_as_often(run, trained):
    many = {"num-server-rounds": 60, "local-epochs": 0, "hidden-dim": 2}
    run("fedavg", **{**HALF, **many})
    counts = np.bincount(np.concatenate(list(trained.values())), minlength=6)
    assert counts.sum() == 180
    assert counts.min() > 15  # 30 expected, standard deviation 3.9
