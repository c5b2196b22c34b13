"""Rounds in which some of the clients train, for every method."""

from __future__ import annotations

import re

import numpy as np
import pytest
import toys
from matrix import one_per_strategy

from clients.base import GraphClient
from fedgraph_flwr.errors import ConfigError, RunFailedError
from fedgraph_flwr.results.table import summary_table

NEED_ALL = [m for m in toys.CASES if toys.row(m).params.NEEDS_ALL]
ONE_PER_STRATEGY = one_per_strategy(set(toys.CASES) - set(NEED_ALL))
HALF = {
    "num-clients": 6,
    "client-fraction": 0.5,
    "num-server-rounds": 4,
    "patience": 0,  # nodes: 20 by default, which a share of the clients rules out
}


@pytest.fixture
def trained(monkeypatch):
    """Clients that were asked to train, by round."""
    called: dict[int, list[int]] = {}
    train = GraphClient.train

    def spy(self, parcel, header):
        called.setdefault(header["server-round"], []).append(self.job.client_id)
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "train", spy)
    return called


@ONE_PER_STRATEGY
def test_a_share_of_the_clients_trains_and_all_are_evaluated_at_the_end(
    run, trained, method
):
    finished = run(method, nodes=2, **HALF)
    assert [len(clients) for clients in trained.values()] == [3] * 4
    assert len({tuple(sorted(clients)) for clients in trained.values()}) > 1
    assert finished.summary["failures"] == []
    assert finished.summary["rules"] == ["final"]  # no round but the last has all
    assert set(finished.summary["final"]["per_client"]) == set("012345")
    addressed = {
        (int(r["round"]), int(r["client"]))
        for r in finished.ledger
        if r["client"] != "-1" and r["direction"] == "down" and int(r["round"]) <= 4
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


def test_resuming_draws_the_same_clients(run, trained):
    whole = run("fedpub", **HALF)
    everyone = {t: list(clients) for t, clients in trained.items()}
    part = run("fedpub", **{**HALF, "num-server-rounds": 2})
    trained.clear()
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fedpub", **HALF, **again, resume=str(part.path))
    assert trained == {t: everyone[t] for t in (3, 4)}
    assert resumed.sha == whole.sha
    assert resumed.rounds == whole.rounds


def test_only_clients_of_the_round_can_fail_it(run, monkeypatch):
    train = GraphClient.train

    def broken(self, parcel, header):
        if header["server-round"] == 2:
            raise ValueError("disk full")
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "train", broken)
    with pytest.raises(RunFailedError, match=r"round 2: 0 of 3 clients replied"):
        run("fedavg", **HALF)


@pytest.mark.parametrize("method", NEED_ALL)
def test_methods_that_need_every_client_refuse_a_share_of_them(run, method):
    name = re.escape(method.split()[0])
    with pytest.raises(ConfigError, match=f"client-fraction must be 1 for {name}, got"):
        run(method, **HALF)
    assert {"gcfl", "gcfl+"} <= set(NEED_ALL)


@pytest.mark.parametrize("method", ["fedavg", "fedgkd"])
def test_early_stopping_refuses_a_share_of_the_clients(run, method):
    with pytest.raises(
        ConfigError, match=r"patience must be 0 .* set patience to 0 or"
    ):
        run(method, **{**HALF, "patience": 2})
    assert run(method, **{**HALF, "client-fraction": 0.99, "num-server-rounds": 1})


EAGER = {
    "num-clients": 6,
    "num-server-rounds": 6,
    "gcfl.mean-norm-threshold": 1e9,
    "gcfl.max-norm-threshold": 0.0,
    "gcfl.min-round": 1,
    "gcfl.min-cluster-size": 2,
    "min-fit-replies": 0.5,
}


@pytest.fixture
def lost(monkeypatch):
    """Let a client fail from round 3 on."""
    train = GraphClient.train

    def lose(client):
        def failing(self, parcel, header):
            if self.job.client_id == client and header["server-round"] >= 3:
                raise ValueError("gone")
            return train(self, parcel, header)

        monkeypatch.setattr(GraphClient, "train", failing)

    return lose


def test_gcfl_says_which_cluster_cannot_split_and_for_want_of_whom(run, lost, caplog):
    assert run("gcfl", **EAGER).summary["num_clusters"] == 6
    lost(4)
    caplog.set_level("WARNING", "flwr")
    whole = run("gcfl", **EAGER)
    (said,) = [m for m in caplog.messages if "cannot split" in m]
    (entry,) = whole.summary["clusters_held_up"]
    together = entry["cluster"]
    assert whole.summary["clusters"] == [together, [3]]  # as split in round 2
    assert entry == {"cluster": [0, 1, 2, 4, 5], "client": 4, "since_round": 3}
    words = f"cluster {together} cannot split: client 4 is missing since round 3"
    assert said == f"round 3: {words}"
    table = " ".join(summary_table(whole.summary).split())
    assert f"cluster {together} could not split: client 4 was missing" in table
    part = run("gcfl", **{**EAGER, "num-server-rounds": 4})
    caplog.clear()
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("gcfl", **EAGER, **again, resume=str(part.path))
    assert resumed.summary["clusters_held_up"] == whole.summary["clusters_held_up"]
    assert not [m for m in caplog.messages if "cannot split" in m]
    assert resumed.sha == whole.sha


def test_a_lost_client_with_a_cluster_of_its_own_holds_nobody_up(run, lost):
    lost(3)
    summary = run("gcfl", **EAGER).summary
    assert summary["num_clusters"] == 6
    assert "clusters_held_up" not in summary


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.34, 2), (0.99, 6)])
def test_the_share_is_rounded_to_whole_clients(run, trained, fraction, count):
    run("fedavg", **{**HALF, "num-server-rounds": 1, "client-fraction": fraction})
    assert len(trained[1]) == count


@pytest.mark.slow
def test_every_client_is_drawn_as_often(run, trained):
    many = {"num-server-rounds": 60, "local-epochs": 0, "hidden-dim": 2}
    run("fedavg", **{**HALF, **many})
    counts = np.bincount(np.concatenate(list(trained.values())), minlength=6)
    assert counts.sum() == 180
    assert counts.min() > 15  # 30 expected, standard deviation 3.9
