"""A client's private state: as much as a resume may need, none of the future."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing

import pytest
import torch

from clients import store as client_store
from clients.store import (
    STATES,
    ClientStore,
    Unsaved,
    bind_run,
)
from clients.training import optimizer_tensors, restore_optimizer
from fedgraph_flwr.core.errors import DataError, StorageError, WireError
from fedgraph_flwr.core.wire import Lives


@pytest.fixture
def store(tmp_path) -> ClientStore:
    return ClientStore(tmp_path, "experiment", client_id=4)


def grow(store: ClientStore, *rounds: int, size: int = 2) -> None:
    """Save states whose values are their rounds, each going on from the one before."""
    after = 0
    for r in rounds:
        store.save(r, {"w": torch.full((size,), float(r))}, after=after)
        after = r


def test_every_state_that_a_checkpoint_needs_is_kept(store):
    for r in range(1, 7):
        tensors = {"w": torch.full((2,), float(r))}
        store.save(r, tensors, after=r - 1, keep_from=max(0, r - 3))
    assert store.rounds() == [3, 4, 5, 6]
    assert store.load(6)["w"].tolist() == [6, 6]
    assert store.load(3)["w"].tolist() == [3, 3]  # for a round that is repeated
    # Checkpoint 8 needs the last round that the client did before.
    store.save(9, {"w": torch.zeros(1)}, after=6, keep_from=8)
    assert store.rounds() == [6, 9]


@pytest.mark.parametrize("rounds", [[], [1], [1, 3]])
def test_a_state_that_the_server_knows_of_and_is_gone_is_named(store, rounds):
    grow(store, *rounds)
    with pytest.raises(DataError, match=r"client 4 after round 2 is gone.*fresh-start"):
        store.load(2)


@pytest.mark.parametrize("keep_from", [0, 1, 3])
def test_states_that_the_server_has_not_heard_of_go_with_the_next(store, keep_from):
    """Replies of rounds 2 and 3 were lost; checkpoint 3 needs the state of round 1."""
    grow(store, 1, 2, 3)
    store.save(4, {"w": torch.ones(1)}, after=1, keep_from=keep_from)
    assert store.rounds() == [1, 4]


def lived(tmp_path, lives: Lives) -> ClientStore:
    return ClientStore(tmp_path, "experiment", client_id=4, lives=lives)


def kept(store: ClientStore) -> list[str]:
    """List rounds and runs of the states that are there."""
    query = "SELECT round || '-' || run FROM states ORDER BY round, run"
    return [text for (text,) in store.database.rows(query)]


def change(store: ClientStore, statement: str, *values: object) -> None:
    """Do to the file what nothing of ours does."""
    with closing(sqlite3.connect(store.database.path)) as db, db:
        db.execute(statement, values)


@pytest.fixture
def bound(tmp_path):
    """Bind runs 7 and 8, of which 8 is the newest."""
    for run in (7, 8):
        bind_run(tmp_path, run, "experiment")


def state(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), value)}


@pytest.mark.usefixtures("bound")
def test_a_message_that_is_late_or_sent_twice_deletes_no_later_state(tmp_path):
    store = lived(tmp_path, Lives(8))
    grow(store, 1, 2)
    store.save(1, {"w": torch.zeros(2)})
    assert store.load(2)["w"].tolist() == [2, 2]
    store.save(3, {"w": torch.zeros(2)}, after=2)
    assert store.rounds() == [1, 2, 3]


def test_states_of_rounds_that_a_resume_repeats_do_not_count(tmp_path):
    bind_run(tmp_path, 7, "experiment")
    first = lived(tmp_path, Lives(7))
    for r in (1, 2, 3):
        first.save(r, state(r), after=r - 1)
    bind_run(tmp_path, 8, "experiment")
    second = lived(tmp_path, Lives(8, ((7, 2),), spared=(7,)))
    assert second.load(2)["w"].tolist() == [2, 2]
    with pytest.raises(DataError, match=r"after round 3 is gone .*\(run 8\)"):
        second.load(3)
    assert second.newest(3) == (2, False)
    assert second.newest(4) == (3, True)
    assert second.newest(1) == (0, False)
    # The server may still go back to a checkpoint of the old run.
    second.save(3, state(30), after=2, keep_from=1)
    assert first.load(3)["w"].tolist() == [3, 3]
    assert second.load(3)["w"].tolist() == [30, 30]
    second = lived(tmp_path, Lives(8, ((7, 2),)))
    second.save(4, state(40), after=3, keep_from=1)
    assert kept(second) == ["1-7", "2-7", "3-8", "4-8"]


def test_a_round_before_the_checkpoint_whose_reply_was_lost_goes_at_once(tmp_path):
    """Else it would pass for the state that the checkpoint goes with."""
    bind_run(tmp_path, 7, "experiment")
    first = lived(tmp_path, Lives(7))
    for r, after in ((1, 0), (2, 1), (3, 2)):
        first.save(r, state(r), after=after)
    bind_run(tmp_path, 9, "experiment")
    second = lived(tmp_path, Lives(9, ((7, 3),), spared=(7,)))
    second.save(4, state(40), after=2, keep_from=3)
    second.save(5, state(50), after=4, keep_from=3)
    assert kept(second) == ["2-7", "4-9", "5-9"]


@pytest.mark.usefixtures("bound")
def test_a_node_still_at_work_on_a_run_that_is_over_stores_nothing(tmp_path):
    late, store = lived(tmp_path, Lives(7)), lived(tmp_path, Lives(8, ((7, 2),)))
    store.save(3, state(30), after=2)
    with pytest.raises(WireError, match=r"run 8 goes on.*run 7 is over at this site"):
        late.save(3, state(3), after=2)
    assert kept(store) == ["3-8"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("UPDATE states SET tensors = CAST(substr(tensors, 2) AS BLOB)", "damaged"),
        ("UPDATE states SET round = 1 WHERE round = 2", "that of another run"),
        ("UPDATE states SET client = 4 WHERE client = 3", "that of another run"),
    ],
)
def test_a_state_that_is_not_the_one_that_was_written_is_named(tmp_path, spoil, words):
    for client in (3, 4):
        grow(ClientStore(tmp_path, "experiment", client_id=client), 1, 2)
    store = ClientStore(tmp_path, "experiment", client_id=4)
    if "SET tensors" not in spoil:
        change(store, "DELETE FROM states WHERE client = 4 AND round = 1")
        only = "client = 4" if "SET round" in spoil else "round = 1"
        change(store, f"DELETE FROM states WHERE NOT ({only})")
    change(store, spoil)
    with pytest.raises(DataError, match=f"after round 1 in .*{words}.* from a copy"):
        store.load(1)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        ("UPDATE states SET tensors = x'00'", [2.0, 2.0]),  # it is in memory, too
        ("UPDATE states SET sha256 = ''", "damaged"),
        ("DELETE FROM states", "is gone"),
    ],
)
def test_the_last_state_comes_from_memory_only_if_the_file_has_it(store, spoil, found):
    grow(store, 1, 2)
    other = ClientStore(store._root, store.experiment, client_id=store.client_id)
    change(store, spoil)
    if isinstance(found, list):
        assert other.load(2)["w"].tolist() == found
        with pytest.raises(DataError, match=r"after round 1 .*damaged"):
            other.load(1)
    else:
        with pytest.raises(DataError, match=f"after round 2 .*{found}"):
            other.load(2)


def test_a_full_disk_is_named_and_what_was_there_stays(store):
    grow(store, 1)
    size = store.database.path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(StorageError, match=f"{STATES} cannot be used: .*make room"):
            store.save(2, {"w": torch.ones(10**6)}, after=1, keep_from=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.rounds() == [1]
    assert store.load(1)["w"].tolist() == [1, 1]


def test_a_state_that_no_file_can_take_is_refused(store, monkeypatch):
    monkeypatch.setattr(client_store, "_MOST_BYTES", 1000)
    with pytest.raises(StorageError, match=r"client 4 has \d+ bytes, at most 1000"):
        store.save(1, {"w": torch.ones(10**3)})


@pytest.mark.parametrize("keep_from", [5, 6, 10**9])
def test_the_state_of_the_round_itself_is_kept_whatever_a_server_says(store, keep_from):
    grow(store, 3, 5, 6, 7)
    store.save(5, {"w": torch.zeros(2)}, after=3, keep_from=keep_from)
    assert store.load(5)["w"].tolist() == [0, 0]
    assert store.rounds() == [5]


def test_a_resumed_run_overwrites_the_future(store):
    grow(store, 1, 2, 3)
    store.save(2, {"w": torch.tensor([20.0])}, after=1)
    assert store.load(2)["w"].tolist() == [20]
    assert store.rounds() == [1, 2]  # round 3 was of the run that went further


def test_a_message_leaves_states_of_all_its_clients_or_none(tmp_path):
    stores, unsaved = [], Unsaved()
    for client in range(4):
        store = ClientStore(tmp_path, "e", client_id=client, unsaved=unsaved)
        store.save(1, {"w": torch.ones(3)})
        stores.append(store)
    assert [s.rounds() for s in stores] == [[]] * 4  # nobody waits for the disk
    unsaved.commit()
    assert [s.load(1)["w"].tolist() for s in stores] == [[1, 1, 1]] * 4
    assert unsaved.clients == {0, 1, 2, 3}
    stores[0].save(2, {"w": torch.ones(3)}, after=1)
    stores[1].save(2, {"w": torch.ones(3)}, after=1)
    change(
        stores[0],
        "CREATE TRIGGER full BEFORE INSERT ON states WHEN new.client = 1"
        " BEGIN SELECT RAISE(ABORT, 'no more'); END",
    )
    with pytest.raises(DataError, match="no more"):
        unsaved.commit()
    assert [s.rounds() for s in stores] == [[1]] * 4


def test_states_wait_for_each_other_but_no_more_than_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(client_store, "_MOST_HELD", 1000)
    store = ClientStore(tmp_path, "e", client_id=0, unsaved=Unsaved())
    store.save(1, {"w": torch.ones(3)})
    assert store.rounds() == []
    store.save(2, {"w": torch.ones(300)}, after=1)
    assert store.rounds() == [1, 2]


def _optimizer(seed: int) -> tuple[list[torch.nn.Parameter], torch.optim.Adam]:
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=generator))
        for shape in ((3, 2), (4,))
    ]
    return weights, torch.optim.Adam(weights, 0.1, weight_decay=0.01, fused=True)


def _step(weights, optimizer) -> None:
    optimizer.zero_grad()
    sum(((w - 1) ** 2).sum() for w in weights).backward()
    optimizer.step()


def test_a_parameter_without_a_gradient_so_far_begins_as_if_never_stored(store):
    """A layer that is not used yet, or frozen, as PyTorch's Adam leaves it out."""
    courses = []
    for stops in (False, True):
        weights, made = _optimizer(0)[0], torch.optim.Adam
        optimizer = made(weights, lr=0.1, weight_decay=0.01, amsgrad=True)
        for used in (weights[1:], weights[1:], weights, weights):
            _step(used, optimizer)
            if stops:
                store.save(1, optimizer_tensors(optimizer))
                optimizer = made(weights, lr=0.1, weight_decay=0.01, amsgrad=True)
                restore_optimizer(optimizer, store.load(1))
        courses.append(weights)
    assert optimizer.state[weights[0]]["step"] == 2
    assert optimizer.state[weights[1]]["step"] == 4
    for one, other in zip(*courses, strict=True):
        assert torch.equal(one, other)
