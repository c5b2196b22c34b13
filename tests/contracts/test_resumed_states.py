"""Clients go on from states that count, with the data and accounts that they had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toys
from matrix import mostly_slow
from stops import (
    ROUNDS,
    contents,
    lose_client,
    places,
    resumed,
    stopped,
)

from clients.store import STATES, ClientStore
from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import (
    ConfigError,
    FedGraphError,
    RunFailedError,
    WireError,
)
from fedgraph_flwr.node import serve
from simulations.contract import Killed

# A round counts for both sides or for neither --------------------------------------


def fail_in(monkeypatch, server_round: int, *, client: int = 1) -> None:
    """Let a client raise in a round before it has stored anything."""
    here = (client, server_round)
    toys.fail_when(monkeypatch, lambda *at: at == here, step="load")


SELDOM = {"num-server-rounds": 7, "checkpoint-every": 2, "min-fit-replies": 0.5}


# SpreadGNN's clients never go back: they would take letters that they have read.
GO_BACK = [c for c in toys.CASES if c != "spreadgnn"]
# They keep layers and moments, a former model, negatives and views, a part of a model.
KEEP = pytest.mark.parametrize(
    "method", mostly_slow(GO_BACK, fast=["fedavg", "moon", "fgcl", "fedstar"])
)


@KEEP
def test_a_client_that_fails_in_a_repeated_round(run, method, tmp_path, monkeypatch):
    """Its states of that round and later ones are of a run that is no more."""
    some = {**SELDOM, "num-server-rounds": 4, "persist-optimizer": True}
    part = stopped(run, method, tmp_path, at=4, **some)  # round 3 is done, and lost
    fail_in(monkeypatch, 3)
    again, whole = resumed(run, part, method), run(method, **some)
    assert [f["round"] for f in whole.summary["failures"]] == [3]
    assert again.summary["failures"] == whole.summary["failures"]
    assert again.sha == whole.sha
    assert again.rounds == whole.rounds


@KEEP
def test_a_lost_reply_is_a_round_not_done(run, method, monkeypatch):
    """Whether a late client has stored its state does not change what follows."""
    weights = []
    for break_down in (
        lambda patch: toys.lose_reply(patch, server_round=2, client=1),
        lambda patch: fail_in(patch, 2),
    ):
        with monkeypatch.context() as patch:
            break_down(patch)
            found = run(method, nodes=3, **SELDOM | {"num-server-rounds": 3})
        assert {f["client"] for f in found.summary["failures"]} == {1}
        weights.append(found.sha)
    assert len(set(weights)) == 1


def test_peers_refuse_to_go_on_from_a_branch_that_the_server_has_left(
    run, tmp_path, monkeypatch
):
    """All have done round 6 of a run that was killed before it had its checkpoint."""
    part = stopped(run, "spreadgnn", tmp_path, at=6, **SELDOM)
    fail_in(monkeypatch, 5)
    with pytest.raises(RunFailedError) as failed:
        resumed(run, part, "spreadgnn")
    for why in (
        "again, with other mail",  # clients 0 and 2, without client 1's letter
        "client 1 has done round 5 in a run that the server has left",
        "DELETE FROM states WHERE client = 1 AND round >= 5",
    ):
        assert why in str(failed.value)


# What other runs have left ------------------------------------------------------------


def test_a_node_still_at_work_on_the_killed_run_changes_nothing(
    run, once, tmp_path, monkeypatch
):
    """It stores its round when the resumed run has done some."""
    save, held = ClientStore.save, []
    some = {**SELDOM, "checkpoint-every": 4, "num-server-rounds": 9}

    def hold(self, server_round, *rest, **more):
        if (self.client_id, server_round) == (1, 7):
            held.append((self, server_round, *rest, more))
            raise Killed
        return save(self, server_round, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(ClientStore, "save", hold)
        part = stopped(run, "gcfl+", tmp_path, at=9, **some)
    refused = []

    def let_go(_, message):
        if toys.round_of(message) == 8 and held:
            store, number, tensors, more = held.pop()
            store._unsaved = None
            try:
                save(store, number, tensors, **more)
            except WireError as error:
                refused.append(str(error))

    toys.on_delivery(monkeypatch, before=let_go)
    again = resumed(run, part, "gcfl+")
    assert again.sha == once("gcfl+", **some).sha
    assert again.summary["failures"] == []
    assert ["is over at this site" in why for why in refused] == [True]


@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_a_longer_run_that_completes_no_round_takes_nothing_from_clients(
    run, once, tmp_path, monkeypatch, how
):
    """Nor does one that is killed before it has written its first round."""
    seldom = {"evaluate-every": 2, "checkpoint-every": 3, "num-server-rounds": 5}
    whole = run("fedavg", **seldom, **places(tmp_path))
    longer = {"num-server-rounds": 8}
    with monkeypatch.context() as patch:
        if how == "raises":
            fail_in(patch, 4, client=2)
            with pytest.raises(RunFailedError):
                resumed(run, whole, "fedavg", **longer)
        else:
            kill_when_answered(patch, 5)
            with pytest.raises(Killed):
                resumed(run, whole, "fedavg", **longer)
    assert resumed(run, whole, "fedavg").sha == whole.sha
    more = resumed(run, whole, "fedavg", **longer)
    assert more.sha == once("fedavg", **{**seldom, **longer}).sha
    (path,) = (tmp_path / "state").glob(f"*/{STATES}")
    rounds = Database(path, "").rows("SELECT round FROM states WHERE client = 1")
    assert len(rounds) == len(set(rounds)), "states that nobody needs are gone"


def kill_when_answered(monkeypatch, server_round: int) -> None:
    """Kill the server when clients have done a round, before it does anything."""

    def kill(message, _):
        if toys.round_of(message) == server_round:
            raise Killed

    toys.on_delivery(monkeypatch, after=kill)


def test_a_run_with_too_few_rounds_for_its_checkpoints_says_so(run, tmp_path):
    seldom = {"evaluate-every": 3, "checkpoint-every": 4, "num-server-rounds": 10}
    part = stopped(run, "fedavg", tmp_path, at=8, **seldom)
    with pytest.raises(
        ConfigError, match=r"= 4, where it was 10, asks to.* set 10 again"
    ):
        resumed(run, part, "fedavg", **{"num-server-rounds": 4})


# What a client has lost, or has other than before -------------------------------------


@pytest.fixture
def begun(run, tmp_path):
    """Start a run that stops before its first checkpoint, and would begin again."""
    five = {"checkpoint-every": 5}
    return lambda method, **more: stopped(run, method, tmp_path, at=5, **five, **more)


def test_another_first_model_is_refused_where_a_run_begins_again(run, begun, tmp_path):
    whole = {"shared-group": "all"}
    former = run("fedavg", **whole, **ROUNDS, **places(tmp_path / "former"))
    part = begun("fedavg", **whole, **{"init-from": str(former.path)})
    resumed(run, former, "fedavg", **{"num-server-rounds": 6})
    with pytest.raises(ConfigError, match="init-from names has changed"):
        resumed(run, part, "fedavg")


def lose_state(monkeypatch, root: Path, *, client: int, before_round: int) -> None:
    """Delete a client's state as a container without a volume does."""
    todo = [client]

    def lose(_, message):
        if toys.round_of(message) == before_round and todo:
            lose_client(root / "state", todo.pop())

    toys.on_delivery(monkeypatch, before=lose)


@pytest.mark.parametrize(
    "method", mostly_slow(toys.CASES, fast=["fedavg", "fgcl", "local", "spreadgnn"])
)
def test_a_client_whose_state_is_gone_is_a_named_failure(
    run, method, tmp_path, monkeypatch
):
    lose_state(monkeypatch, tmp_path, client=1, before_round=2)
    few = {"min-fit-replies": 0.5, "num-server-rounds": 3}
    found = run(method, **places(tmp_path), **few).summary
    failed = [(f["round"], f["client"]) for f in found["failures"]]
    assert failed == [(2, 1), (3, 1), (4, 1)]
    words = "told the server what it had spent" if method == "fgcl" else "is gone"
    assert all(words in f["reason"] for f in found["failures"])
    assert found["fresh_starts"] == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_site_may_let_a_client_begin_afresh_and_the_summary_tells(
    run, tmp_path, monkeypatch, is_lost
):
    """A round later, if the reply that told of it was lost."""
    lose_state(monkeypatch, tmp_path, client=1, before_round=3)
    if is_lost:
        toys.lose_reply(monkeypatch, server_round=3, client=1)
    state = places(tmp_path)["state-dir"]
    sites = [
        {"clients": str(c), "state-dir": state, "fresh-start": True} for c in range(3)
    ]
    few = {**ROUNDS, **places(tmp_path), "min-fit-replies": 0.5}
    found = run("fedavg", node_configs=sites, **few).summary
    first = 4 if is_lost else 3
    assert found["fresh_starts"] == [{"round": first, "client": 1, "lost_round": 2}]


def swapped(found):
    """Training and test graphs are the other way round."""
    return toys.renewed(found, train=found.test, test=found.train)


def relabelled(found):
    """Labels are turned round: the split is equal."""
    turned = np.ascontiguousarray(found.graphs.y[::-1])
    return toys.renewed(found, graphs=replace(found.graphs, y=turned))


def with_other(change):
    """Load data that have changed at client 2."""

    def load(settings, client_id):
        found = toys.federation(settings, client_id)
        return change(found) if client_id == 2 else found

    return load


@pytest.mark.parametrize(
    ("begins", "change"),
    [
        ("goes on", swapped),
        ("goes on", relabelled),
        ("begins again", relabelled),
        ("had ended", swapped),
    ],
)
def test_a_resume_with_other_data_refuses_that_client(
    run, toy_data, tmp_path, change, begins
):
    seldom, longer = {"checkpoint-every": 5}, {"num-server-rounds": 6}
    if begins == "had ended":  # its only checkpoint is of its last round
        part = run("fedavg", **seldom, **{"num-server-rounds": 3})
    else:
        some = {"goes on": {}, "begins again": seldom}[begins]
        part = stopped(run, "fedavg", tmp_path, at=5 if some else 3, **some)
    before = contents(part.path)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", with_other(change))
        with pytest.raises(FedGraphError, match="client 2"):
            resumed(run, part, "fedavg", **longer, **{"roll-call-timeout-s": 0.1})
    assert contents(part.path) == before
    assert resumed(run, part, "fedavg", **longer).summary["status"] == "completed"


def test_data_that_change_in_mid_run_are_a_named_failure(run, toy_data):
    """A SuperNode loads its files anew for every message."""
    with toy_data.context() as patch:

        def late(_, message):
            if toys.round_of(message) == 2:
                serve.kept_data.clear()
                patch.setattr("datasets.load_partition", with_other(relabelled))

        toys.on_delivery(patch, before=late)
        found = run("fedavg", **{"min-fit-replies": 0.5}).summary
    failed = [(f["round"], f["client"]) for f in found["failures"]]
    assert failed == [(2, 2), (3, 2), (4, 2)]
    assert all("not those that it had" in f["reason"] for f in found["failures"])
