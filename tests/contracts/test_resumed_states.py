"""Clients go on from states that count, with the data and accounts that they had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toys
from matrix import one_per_strategy
from stops import (
    ROUNDS,
    contents,
    damage_checkpoint,
    lose_client,
    places,
    resumed,
    stopped,
)

import datasets
from clients.store import STATES, ClientStore
from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import (
    ConfigError,
    DataError,
    FedGraphError,
    RunFailedError,
    StorageError,
    WireError,
)
from fedgraph_flwr.node import introduce
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.results.reader import load_summary
from simulations.contract import Killed, killed_at_checkpoint
from simulations.inline import InlineGrid

# A round counts for both sides or for neither --------------------------------------


def fail_in(monkeypatch, server_round: int, *, client: int = 1) -> None:
    """Let a client raise in a round before it has stored anything."""
    here = (client, server_round)
    toys.fail_when(monkeypatch, lambda *at: at == here, step="load")


SELDOM = {"num-server-rounds": 7, "checkpoint-every": 2, "min-fit-replies": 0.5}


# SpreadGNN's clients never go back: they would take letters that they have read.
@one_per_strategy([c for c in toys.CASES if c != "spreadgnn"], also=["moon", "fclg"])
def test_a_client_that_fails_in_a_repeated_round(run, method, tmp_path, monkeypatch):
    """Its states of that round and later ones are of a run that is no more."""
    some = {**SELDOM, "persist-optimizer": True}
    part = stopped(run, method, tmp_path, at=6, **some)  # round 5 is done, and lost
    fail_in(monkeypatch, 5)
    again, whole = resumed(run, part, method), run(method, **some)
    assert [f["round"] for f in whole.summary["failures"]] == [5]
    assert again.summary["failures"] == whole.summary["failures"]
    assert again.sha == whole.sha
    assert again.rounds == whole.rounds


def test_a_client_that_fails_in_all_repeated_rounds_and_is_resumed_again(
    run, tmp_path, monkeypatch
):
    """The second resume finds states up to round 7; the server knows round 2."""
    some = {**SELDOM, "num-server-rounds": 9, "checkpoint-every": 3}
    part = stopped(run, "gcfl+", tmp_path, at=6, **some)
    for number in (4, 5, 6):
        fail_in(monkeypatch, number)
    with killed_at_checkpoint(9), pytest.raises(Killed):
        resumed(run, part, "gcfl+")
    again, whole = resumed(run, part, "gcfl+"), run("gcfl+", **some)
    assert [f["round"] for f in whole.summary["failures"]] == [4, 5, 6]
    assert again.summary["failures"] == whole.summary["failures"]
    assert again.sha == whole.sha


@one_per_strategy([c for c in toys.CASES if c != "spreadgnn"], also=["moon", "fclg"])
def test_a_lost_reply_is_a_round_not_done(run, method, monkeypatch):
    """Whether a late client has stored its state does not change what follows."""
    weights = []
    for break_down in (
        lambda patch: toys.lose_reply(patch, server_round=4, client=1),
        lambda patch: fail_in(patch, 4),
    ):
        with monkeypatch.context() as patch:
            break_down(patch)
            found = run(method, nodes=3, **SELDOM)
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
    deliver, refused = InlineGrid.deliver, []

    def let_go(self, message):
        if message.content.get("header", {}).get("server-round") == 8 and held:
            store, number, tensors, more = held.pop()
            store._unsaved = None
            try:
                save(store, number, tensors, **more)
            except WireError as error:
                refused.append(str(error))
        return deliver(self, message)

    monkeypatch.setattr(InlineGrid, "deliver", let_go)
    again = resumed(run, part, "gcfl+")
    assert again.sha == once("gcfl+", **some).sha
    assert again.summary["failures"] == []
    assert ["is over at this site" in why for why in refused] == [True]


@pytest.mark.parametrize("method", ["fedavg", "fedstar"])
def test_a_folder_restored_from_a_copy_of_another_branch_is_refused(
    run, method, tmp_path, monkeypatch
):
    part = stopped(run, method, tmp_path, at=6, **SELDOM)  # it has done round 5
    (path,) = (tmp_path / "state").glob(f"*/{STATES}")
    of_client, states = "FROM states WHERE client = 1", Database(path, "")
    copy = states.rows(f"SELECT * {of_client}")
    fail_in(monkeypatch, 5)
    with killed_at_checkpoint(8), pytest.raises(Killed):
        resumed(run, part, method, **{"num-server-rounds": 9})
    with states.transaction() as db:
        db.execute(f"DELETE {of_client}")
        db.executemany("INSERT INTO states VALUES (?, ?, ?, ?, ?)", copy)
    found = resumed(run, part, method, **{"num-server-rounds": 9}).summary["failures"]
    assert [(f["round"], f["client"]) for f in found] == [
        (5, 1),
        *((r, 1) for r in (7, 8, 9, 10)),
    ]
    assert all("after round 6 is gone" in f["reason"] for f in found[1:])


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
    deliver = InlineGrid.deliver

    def kill(self, message):
        reply = deliver(self, message)
        if message.content.get("header", {}).get("server-round") == server_round:
            raise Killed
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", kill)


def test_a_lost_reply_before_the_checkpoint_costs_no_state_after_it(
    run, tmp_path, monkeypatch
):
    """Round 3 counts for neither side; its state must not pass for that of round 2."""
    some = {"checkpoint-every": 3, "min-fit-replies": 0.5}
    three, eight = {"num-server-rounds": 3}, {"num-server-rounds": 8}
    with monkeypatch.context() as patch:
        toys.lose_reply(patch, server_round=3, client=1)
        part = run("gcfl+", nodes=3, **some, **three, **places(tmp_path))
        whole = run("gcfl+", nodes=3, **some, **eight)
    with monkeypatch.context() as patch:
        kill_when_answered(patch, 5)
        with pytest.raises(Killed):
            resumed(run, part, "gcfl+", nodes=3, **eight)
    again = resumed(run, part, "gcfl+", nodes=3, **eight)
    assert [(f["round"], f["client"]) for f in again.summary["failures"]] == [(3, 1)]
    assert again.sha == whole.sha


def test_states_of_runs_that_came_to_nothing_do_not_pile_up(run, tmp_path, monkeypatch):
    part = stopped(run, "fedavg", tmp_path, at=4, **{"num-server-rounds": 9})
    for _ in range(5):
        with monkeypatch.context() as patch:
            kill_when_answered(patch, 5)
            with pytest.raises(Killed):
                resumed(run, part, "fedavg")
    (path,) = (tmp_path / "state").glob(f"*/{STATES}")
    states = Database(path, "").rows("SELECT round FROM states WHERE client = 1")
    assert len(states) <= 4


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"privacy": 7}',
        b'{"privacy": {"per_client": {"1": {"e": "x"}}}}',
    ],
)
def test_a_damaged_summary_is_named(run, tmp_path, damage):
    full = StorageError("cannot write round-000003: no space left on device")
    part = stopped(run, "fedavg", tmp_path, error=full, **{"privacy.update-clip": 1.0})
    (part.path / "summary.json").write_bytes(damage)
    with pytest.raises(DataError, match=r"summary\.json.*cannot be read.*delete it"):
        resumed(run, part, "fedavg")


def test_a_run_with_too_few_rounds_for_its_checkpoints_says_so(run, tmp_path):
    seldom = {"evaluate-every": 3, "checkpoint-every": 4, "num-server-rounds": 10}
    part = stopped(run, "fedavg", tmp_path, at=8, **seldom)
    with pytest.raises(
        ConfigError, match=r"= 4, where it was 10, asks to.* set 10 again"
    ):
        resumed(run, part, "fedavg", **{"num-server-rounds": 4})


def test_an_only_checkpoint_that_is_damaged_is_not_to_be_deleted(run, tmp_path):
    part = stopped(run, "fedavg", tmp_path, at=4, **{"checkpoint-every": 2})
    damage_checkpoint(part.path)
    with pytest.raises(DataError, match="restore it from a copy, or start a new run"):
        resumed(run, part, "fedavg")


def test_what_a_client_had_spent_when_the_run_failed_stays_in_the_summary(
    run, tmp_path, monkeypatch
):
    """Its replies of later rounds are all lost."""
    some = {**SELDOM, "checkpoint-every": 4, "privacy.update-clip": 0.5}
    some |= {"num-server-rounds": 9}
    with monkeypatch.context() as patch:
        for client in (0, 2):
            toys.lose_reply(patch, server_round=6, client=client)
        with pytest.raises(RunFailedError):
            run("fedavg", nodes=3, **some, **places(tmp_path))
    (path,) = (tmp_path / "results").iterdir()
    failed = toys.Run(path, {**some, **places(tmp_path)})

    def spent() -> float:
        told = load_summary(path)["privacy"]
        return told["per_client"]["1"]["update-epsilon"]

    before = spent()
    for number in range(5, 11):
        toys.lose_reply(monkeypatch, server_round=number, client=1)
    with monkeypatch.context() as patch:  # a kill leaves no summary
        patch.setattr(RunFolder, "finish", lambda *_, **__: {})
        with killed_at_checkpoint(8), pytest.raises(Killed):
            resumed(run, failed, "fedavg", nodes=3)
    assert resumed(run, failed, "fedavg", nodes=3).summary["status"] == "completed"
    assert spent() == before


# What a client has lost, or has other than before -------------------------------------


@pytest.fixture
def begun(run, tmp_path):
    """Start a run that stops before its first checkpoint, and would begin again."""
    five = {"checkpoint-every": 5}
    return lambda method, **more: stopped(run, method, tmp_path, at=5, **five, **more)


def swapped(client: int):
    """Load data of which one client's training and test graphs are swapped."""

    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        if client_id != client:
            return partition
        return replace(
            partition, train=partition.test, test=partition.train, data_hash=""
        )

    return load


def test_a_finished_run_that_begins_again_has_the_same_data(run, once, monkeypatch):
    """Its only checkpoint is of its last round, which was measured as such."""
    seldom = {"evaluate-every": 2, "checkpoint-every": 5}
    part = run("fedavg", **seldom, **{"num-server-rounds": 3})
    before, longer = contents(part.path), {"num-server-rounds": 6}
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_partition", swapped(2))
        with pytest.raises(DataError, match=r"client 2 .*came back with other data"):
            resumed(run, part, "fedavg", **longer)
    assert contents(part.path) == before
    again = resumed(run, part, "fedavg", **longer)
    assert again.sha == once("fedavg", **seldom, **longer).sha


def test_other_data_are_refused_also_where_a_run_begins_again(run, begun, monkeypatch):
    part = begun("fedavg")
    before = contents(part.path)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_partition", swapped(2))
        with pytest.raises(DataError, match=r"client 2 .*came back with other data"):
            resumed(run, part, "fedavg")
    assert contents(part.path) == before
    again = resumed(run, part, "fedavg")
    assert again.summary["status"] == "completed"


def test_another_first_model_is_refused_where_a_run_begins_again(run, begun, tmp_path):
    whole = {"shared-group": "all"}
    former = run("fedavg", **whole, **ROUNDS, **places(tmp_path / "former"))
    part = begun("fedavg", **whole, **{"init-from": str(former.path)})
    resumed(run, former, "fedavg", **{"num-server-rounds": 6})
    with pytest.raises(ConfigError, match="init-from names has changed"):
        resumed(run, part, "fedavg")


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"clients": {"0": {}}}', b"\xff"])
def test_a_damaged_roll_call_is_named(run, begun, damage):
    part = begun("fedavg")
    (part.path / "roll-call.json").write_bytes(damage)
    with pytest.raises(DataError, match=r"roll-call\.json cannot be read"):
        resumed(run, part, "fedavg")


def test_statistics_stay_as_they_were_told_first(run, tmp_path, monkeypatch):
    telling = {"tell-statistics": True}
    part = stopped(run, "fedavg", tmp_path, at=3, **telling)
    names = ("statistics.csv", "statistics.png")
    before = [(part.path / name).read_bytes() for name in names]
    monkeypatch.setattr(introduce, "measure", lambda *_, **__: Nothing())
    resumed(run, part, "fedavg")
    assert [(part.path / name).read_bytes() for name in names] == before


class Nothing:
    """Statistics of a site that tells none any more."""

    def to_json(self) -> str:
        return ""


def lose_state(monkeypatch, root: Path, *, client: int, before_round: int) -> None:
    """Delete a client's state as a container without a volume does."""
    deliver = InlineGrid.deliver

    def lose(self, message):
        header = message.content.get("header", {})
        if header.get("server-round") == before_round:
            lose_client(root / "state", client)
        return deliver(self, message)

    monkeypatch.setattr(InlineGrid, "deliver", lose)


@one_per_strategy(toys.CASES, also=["fgcl"])
def test_a_client_whose_state_is_gone_is_a_named_failure(
    run, method, tmp_path, monkeypatch
):
    lose_state(monkeypatch, tmp_path, client=1, before_round=3)
    few = {"min-fit-replies": 0.5}
    found = run(method, **ROUNDS, **places(tmp_path), **few).summary
    failed = [(f["round"], f["client"]) for f in found["failures"]]
    assert failed == [(3, 1), (4, 1), (5, 1), (6, 1)]
    words = "told the server what it had spent" if method == "fgcl" else "is gone"
    assert all(words in f["reason"] for f in found["failures"])
    assert found["fresh_starts"] == []


def test_a_site_may_let_a_client_begin_afresh_and_the_summary_tells(
    run, tmp_path, monkeypatch
):
    lose_state(monkeypatch, tmp_path, client=1, before_round=3)
    state = places(tmp_path)["state-dir"]
    site = {"clients": "0,1,2", "state-dir": state, "fresh-start": True}
    found = run("fedavg", node_configs=[site], **ROUNDS, **places(tmp_path)).summary
    assert found["status"] == "completed"
    assert found["fresh_starts"] == [{"round": 3, "client": 1, "lost_round": 2}]


@pytest.mark.parametrize("method", ["fedavg", "spreadgnn"])  # it never goes back
def test_a_fresh_start_whose_reply_was_lost_is_told_later(
    run, method, tmp_path, monkeypatch
):
    deliver, todo = InlineGrid.deliver, [1]

    def lose(self, message):
        header = message.content.get("header", {})
        if header.get("server-round") == 3 and todo:
            lose_client(tmp_path / "state", todo.pop())
        return deliver(self, message)

    monkeypatch.setattr(InlineGrid, "deliver", lose)
    toys.lose_reply(monkeypatch, server_round=3, client=1)
    state = places(tmp_path)["state-dir"]
    sites = [
        {"clients": str(c), "state-dir": state, "fresh-start": True} for c in range(3)
    ]
    few = {**ROUNDS, **places(tmp_path), "min-fit-replies": 0.5}
    found = run(method, node_configs=sites, **few).summary
    assert found["fresh_starts"] == [{"round": 4, "client": 1, "lost_round": 2}]


def test_no_fresh_start_is_told_where_none_was(once):
    assert once("fedavg").summary["fresh_starts"] == []


def relabelled(client: int):
    """Load data of which one client's labels are turned round: the split is equal."""

    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        if client_id != client:
            return partition
        graphs = partition.graphs
        turned = replace(graphs, y=np.ascontiguousarray(graphs.y[::-1]))
        return replace(partition, graphs=turned, data_hash="")

    return load


@pytest.mark.parametrize("change", [swapped, relabelled])
def test_a_resume_with_other_data_refuses_that_client(run, toy_data, tmp_path, change):
    part = stopped(run, "fedavg", tmp_path)
    before = contents(part.path)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", change(2))
        with pytest.raises(FedGraphError, match="client 2"):
            resumed(run, part, "fedavg", **{"roll-call-timeout-s": 0.1})
    assert contents(part.path) == before


@pytest.mark.parametrize("change", [swapped, relabelled])
def test_data_that_change_in_mid_run_are_a_named_failure(
    run, toy_data, monkeypatch, change
):
    """A SuperNode loads its files anew for every message."""
    from fedgraph_flwr.node import serve

    deliver = InlineGrid.deliver
    with toy_data.context() as patch:

        def late(self, message):
            header = message.content.get("header", {})
            if header.get("server-round") == 3:
                serve.kept_data.clear()
                patch.setattr("datasets.load_partition", change(2))
            return deliver(self, message)

        patch.setattr(InlineGrid, "deliver", late)
        found = run("fedavg", **ROUNDS, **{"min-fit-replies": 0.5}).summary
    failed = [(f["round"], f["client"]) for f in found["failures"]]
    assert failed == [(3, 2), (4, 2), (5, 2), (6, 2)]
    assert all("not those that it had" in f["reason"] for f in found["failures"])
