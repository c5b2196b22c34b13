"""A client's disk: whole files, as many as a resume may need, none of the future."""

from __future__ import annotations

import resource
import time

import pytest
import torch
from safetensors.numpy import save_file

from clients import store as client_store
from clients.privacy.accounts import FOLDER as LIFETIME
from clients.store import (
    ClientStore,
    bind_run,
    default_state_dir,
)
from clients.training import optimizer_tensors, restore_optimizer
from fedgraph_flwr.core import files
from fedgraph_flwr.core.errors import DataError, StorageError, WireError
from fedgraph_flwr.core.files import Flushes
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


def test_a_folder_where_an_old_state_stood_is_named(store):
    grow(store, 1, 2, 3)
    path = store.folder / "round-000001.safetensors"
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=r"cannot delete .*round-000001"):
        store.save(4, {"w": torch.zeros(1)}, after=3, keep_from=2)


def test_without_a_checkpoint_everything_is_kept(store):
    grow(store, 1, 2, 3, 4)
    assert store.rounds() == [1, 2, 3, 4]


def test_the_state_of_a_client_that_seldom_trains_is_kept(store):
    """Checkpoint 7 needs the state of round 2, the last that the client did before."""
    grow(store, 1, 2)
    store.save(9, {"w": torch.zeros(1)}, after=2, keep_from=7)
    assert store.rounds() == [2, 9]


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


def names(store: ClientStore) -> list[str]:
    return sorted(p.name for p in store.folder.iterdir())


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
    with pytest.raises(DataError, match=r"after round 3 is gone .*round-000003-8"):
        second.load(3)
    assert second.newest(3) == (2, "")
    assert second.newest(4) == (3, "round-000003-7.safetensors")
    assert second.newest(1) == (0, "")
    # The server may still go back to a checkpoint of the old run.
    second.save(3, state(30), after=2, keep_from=1)
    assert first.load(3)["w"].tolist() == [3, 3]
    assert second.load(3)["w"].tolist() == [30, 30]
    second = lived(tmp_path, Lives(8, ((7, 2),)))
    second.save(4, state(40), after=3, keep_from=1)
    runs = ["1-7", "2-7", "3-8", "4-8"]
    assert names(second) == [f"round-00000{r}.safetensors" for r in runs]


@pytest.mark.usefixtures("bound")
def test_what_runs_left_that_the_server_has_no_checkpoint_of_goes(tmp_path):
    grow(ClientStore(tmp_path, "experiment", client_id=4), 1, 2)
    store = lived(tmp_path, Lives(8))
    store.save(1, state(10), after=0)
    assert names(store) == ["round-000001-8.safetensors"]


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
    runs = ["2-7", "4-9", "5-9"]
    assert names(second) == [f"round-00000{r}.safetensors" for r in runs]


@pytest.mark.usefixtures("bound")
def test_a_node_still_at_work_on_a_run_that_is_over_stores_nothing(tmp_path):
    late, store = lived(tmp_path, Lives(7)), lived(tmp_path, Lives(8, ((7, 2),)))
    store.save(3, state(30), after=2)
    with pytest.raises(WireError, match=r"run 8 goes on.*run 7 is over at this site"):
        late.save(3, state(3), after=2)
    assert names(store) == ["round-000003-8.safetensors"]


def test_a_run_that_ends_while_it_looks_deletes_nothing_of_the_next(
    tmp_path, monkeypatch
):
    bind_run(tmp_path, 7, "experiment")
    late = lived(tmp_path, Lives(7))
    late.save(1, state(1), after=0)
    check = client_store.check_run

    def goes_on(*given) -> None:
        """Let the next run store its round when the last one has been let through."""
        monkeypatch.setattr(client_store, "check_run", check)
        check(*given)
        bind_run(tmp_path, 8, "experiment")
        lived(tmp_path, Lives(8, ((7, 1),))).save(2, state(20), after=1)

    monkeypatch.setattr(client_store, "check_run", goes_on)
    late.save(2, state(2), after=1)
    assert "round-000002-8.safetensors" in names(late)


@pytest.mark.usefixtures("bound")
def test_a_state_under_the_name_of_another_run_is_refused(tmp_path):
    store = lived(tmp_path, Lives(8))
    store.save(1, state(1), after=0)
    left = store.folder / "round-000001-8.safetensors"
    left.rename(store.folder / "round-000001-7.safetensors")
    with pytest.raises(DataError, match="is that of"):
        lived(tmp_path, Lives(9, ((7, 1),))).load(1)


def test_a_client_of_whose_rounds_no_reply_came_begins_anew(store):
    grow(store, 1)
    assert store.load(0) is None
    store.save(2, {"w": torch.ones(1)}, after=0)
    assert store.rounds() == [2]


def test_a_flipped_bit_is_found(store):
    store.save(1, {"w": torch.ones(100)})
    path = store.folder / "round-000001.safetensors"
    blob = bytearray(path.read_bytes())
    blob[-5] ^= 1
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"round-000001.*its checksum is not"):
        store.load(1)


@pytest.mark.parametrize("other", [("another", 4, 1), ("experiment", 3, 1)])
def test_the_file_of_another_client_or_run_is_not_taken(tmp_path, store, other):
    name, client_id, server_round = other
    foreign = ClientStore(tmp_path, name, client_id=client_id)
    foreign.save(server_round, {"w": torch.ones(1)})
    store.save(1, {"w": torch.ones(1)})
    (foreign.folder / "round-000001.safetensors").replace(
        store.folder / "round-000001.safetensors"
    )
    with pytest.raises(DataError, match=r"is that of .* put every file back"):
        store.load(1)


def test_a_file_of_another_version_has_no_checksum(store):
    store.folder.mkdir(parents=True)
    save_file({"w": torch.ones(1).numpy()}, store.folder / "round-000001.safetensors")
    with pytest.raises(DataError, match="it has no checksum"):
        store.load(1)


def test_a_full_disk_is_named(store):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*round-000001.*make ro"):
            store.save(1, {"w": torch.ones(10**5)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(store.folder.iterdir()) == []


def test_an_outdated_state_gives_its_place_on_the_disk(store):
    """To one as long: who still reads a file that becomes shorter dies of it."""
    places = {}
    for r, size in enumerate((4, 4, 4, 4, 400, 4), start=1):
        tensors = {"w": torch.full((size,), float(r))}
        store.save(r, tensors, after=r - 1, keep_from=r - 1)
        places[r] = store._path(r).stat().st_ino
        assert store.load(r)["w"].tolist() == [r] * size
        assert store.rounds() == [r - 1, r][1 // r :]
    assert places[1] == places[3] != places[2] == places[4] == places[6]
    assert places[5] not in (places[3], places[4])


def test_a_place_of_another_user_is_not_taken_over(store, monkeypatch):
    grow(store, 1, 2, size=3)
    monkeypatch.setattr(files.os, "geteuid", lambda: 65534)
    before = store._path(1).stat().st_ino
    with store._path(1).open("rb") as first:
        store.save(3, {"w": torch.zeros(3)}, after=2, keep_from=2)
        assert store._path(3).stat().st_ino != before
        assert first.read(8) != b""
    assert store.rounds() == [2, 3]


@pytest.mark.parametrize("keep_from", [5, 6, 10**9])
def test_the_state_of_the_round_itself_is_kept_whatever_a_server_says(store, keep_from):
    grow(store, 3, 5, 6, 7)
    store.save(5, {"w": torch.zeros(2)}, after=3, keep_from=keep_from)
    assert store.load(5)["w"].tolist() == [0, 0]
    assert store.rounds() == [5]


def test_a_place_with_another_name_is_not_taken_over(store, tmp_path):
    """For instance a backup by hard links."""
    backup = tmp_path / "backup"
    for r in (1, 2, 3):
        tensors = {"w": torch.full((3,), float(r))}
        store.save(r, tensors, after=r - 1, keep_from=r - 1)
        if r == 1:
            backup.hardlink_to(store._path(1))
            was = backup.read_bytes()
    assert backup.read_bytes() == was
    assert store.rounds() == [2, 3]


@pytest.mark.parametrize("keep_from", [3, 9])
def test_no_place_is_taken_over_before_a_later_state_is_there(
    store, keep_from, monkeypatch
):
    """Until then a killed client goes on from the one that it has."""
    grow(store, 1, size=3)
    before = store._path(1).read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "sync", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(3, {"w": torch.zeros(3)}, after=1, keep_from=keep_from)
    assert store._path(1).read_bytes() == before


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", "/a", LIFETIME])
def test_a_server_cannot_name_another_folder(tmp_path, name):
    """Nor a place without a privacy record."""
    with pytest.raises(WireError, match="must be that of a plain folder"):
        ClientStore(tmp_path, name, client_id=0)


def test_a_resumed_run_overwrites_the_future(store):
    grow(store, 1, 2, 3)
    store.save(2, {"w": torch.tensor([20.0])}, after=1)
    assert store.load(2)["w"].tolist() == [20]
    assert store.rounds() == [1, 2]  # round 3 was of the run that went further


def test_a_message_leaves_whole_states_on_the_disk(tmp_path, monkeypatch):
    flushed: list[str] = []

    def slowly(path) -> None:
        time.sleep(0.02)
        flushed.append(path.name)

    monkeypatch.setattr(files, "sync", slowly)
    with Flushes() as flushes:
        begin = time.monotonic()
        for client in range(8):
            of_client = ClientStore(tmp_path, "e", client_id=client, flushes=flushes)
            of_client.save(1, {"w": torch.ones(3)})
        waited = time.monotonic() - begin
    assert waited < 8 * 2 * 0.02, "each waited for the disk"
    names = [f"client-{c}" for c in range(8)]
    assert sorted(n for n in flushed if n.startswith("client-")) == names
    assert len(flushed) == 16  # each file before it has its name, and each folder after
    for client in range(8):
        store = ClientStore(tmp_path, "e", client_id=client)
        assert store.load(1)["w"].tolist() == [1, 1, 1]
        assert [p.name for p in store.folder.iterdir()] == ["round-000001.safetensors"]


def test_states_wait_for_each_other_but_no_more_than_a_few(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_DUE", 3)
    stores = []
    with Flushes() as flushes:
        for client in range(4):
            store = ClientStore(tmp_path, "e", client_id=client, flushes=flushes)
            store.save(1, {"w": torch.ones(3)})
            stores.append(store)
            # Nobody turns to the disk while others train, until there are three.
            done = 3 * ((client + 1) // 3)
            assert [bool(s.rounds()) for s in stores] == [
                c < done for c in range(client + 1)
            ]
        flushes.check(stores[3].folder)
        assert stores[3].rounds() == [1]


def test_what_a_killed_process_began_to_write_goes_with_the_next_state(store):
    store.save(1, {"w": torch.ones(1)})
    left = store.folder / ".round-000002.safetensors.999999999.tmp"
    left.write_bytes(b"half")
    store.save(2, {"w": torch.zeros(1)}, after=1, keep_from=1)
    assert names(store) == ["round-000001.safetensors", "round-000002.safetensors"]


def test_a_flush_that_cannot_begin_fails_that_file_alone(tmp_path, monkeypatch):
    flushes = Flushes()
    begin, begun = flushes._threads.submit, []

    def submit(*given):
        begun.append(given)
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        return begin(*given)

    monkeypatch.setattr(flushes._threads, "submit", submit)
    stores = [
        ClientStore(tmp_path, "e", client_id=client, flushes=flushes)
        for client in range(3)
    ]
    failed = []
    with flushes:
        for store in stores:
            store.save(1, {"w": torch.ones(3)})
        for store in stores:
            try:
                flushes.check(store.folder)
            except StorageError as error:
                failed.append(str(error))
    assert len(failed) == 1
    assert "can't start new thread" in failed[0]
    assert sorted(len(list(s.folder.iterdir())) for s in stores) == [0, 1, 1]


def test_a_state_that_cannot_be_flushed_is_named_and_the_one_before_stays(
    tmp_path, monkeypatch
):
    ClientStore(tmp_path, "e", client_id=0).save(1, {"w": torch.ones(3)})

    def fails(_) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync", fails)
    words = r"cannot write .*round-000002.*Input/output error.*make room"
    flushes = Flushes()
    store = ClientStore(tmp_path, "e", client_id=0, flushes=flushes)
    store.save(2, {"w": torch.zeros(3)}, after=1, keep_from=1)
    with pytest.raises(StorageError, match=words), flushes:
        pass
    assert store.load(1)["w"].tolist() == [1, 1, 1]
    assert len(list(store.folder.iterdir())) == 1


def test_an_old_state_goes_once_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    grow(ClientStore(tmp_path, "e", client_id=0), 1, 2)

    def fails(_) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", fails)
        flushes = Flushes()
        store = ClientStore(tmp_path, "e", client_id=0, flushes=flushes)
        store.save(3, {"w": torch.ones(3)}, after=2, keep_from=3)
        with pytest.raises(StorageError), flushes:
            pass
    assert store.rounds() == [1, 2]
    with Flushes() as others:
        store = ClientStore(tmp_path, "e", client_id=0, flushes=others)
        store.save(3, {"w": torch.ones(3)}, after=2, keep_from=3)
    assert store.rounds() == [3]


def test_an_old_state_that_a_message_cannot_delete_is_named(tmp_path):
    store = ClientStore(tmp_path, "e", client_id=0)
    (store.folder / "round-000001.safetensors").mkdir(parents=True)
    store.save(2, {"w": torch.ones(3)}, after=1)
    flushes = Flushes()
    store = ClientStore(tmp_path, "e", client_id=0, flushes=flushes)
    store.save(3, {"w": torch.ones(3)}, after=2, keep_from=2)
    with pytest.raises(StorageError, match=r"^cannot delete .*round-000001"), flushes:
        pass


def test_a_half_written_file_is_never_read(store):
    store.save(1, {"w": torch.ones(1)})
    (store.folder / "round-000002.999.tmp").write_bytes(b"half")
    assert store.rounds() == [1]


def test_a_damaged_file_is_named_with_the_cure(store):
    store.save(1, {"w": torch.ones(1)})
    (store.folder / "round-000001.safetensors").write_bytes(b"not tensors")
    with pytest.raises(DataError, match=r"round-000001.*cannot be read.*restore it"):
        store.load(1)


def test_state_goes_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "fedgraph-flwr"


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


def test_a_stored_optimizer_goes_on_as_if_never_stopped(store):
    weights, optimizer = _optimizer(0)
    _step(weights, optimizer)
    store.save(1, optimizer_tensors(optimizer))
    copies, fresh = _optimizer(1)
    with torch.no_grad():
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
    restore_optimizer(fresh, store.load(1))
    for _ in range(3):
        _step(weights, optimizer)
        _step(copies, fresh)
    for copy, weight in zip(copies, weights, strict=True):
        assert torch.equal(copy, weight)


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


def test_before_the_first_step_there_is_nothing_to_store():
    _, optimizer = _optimizer(0)
    assert optimizer_tensors(optimizer) == {}
    restore_optimizer(optimizer, {})
    assert not optimizer.state


def test_equal_states_are_equal_files(tmp_path):
    """Whatever process wrote them."""
    for name in "ab":
        ClientStore(tmp_path / name, "x", client_id=0).save(1, {"w": torch.ones(3)})
    found = [p.read_bytes() for p in sorted(tmp_path.glob("*/x/client-0/round-*"))]
    assert found[0] == found[1]
