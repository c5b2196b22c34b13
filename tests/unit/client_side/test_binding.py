"""Flower runs bound to experiments on a site's disk, and files written once."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import toys

from clients.privacy.accounts import Ledger
from clients.site_database import SITE_FILE
from clients.store import (
    ClientStore,
    begin_folder,
    bind_config,
    bind_run,
    bound_runs,
    check_run,
    is_known,
)
from fedgraph_flwr.core.errors import DataError, RunFailedError, StorageError, WireError
from fedgraph_flwr.core.files import write_once
from simulations.inline import InlineGrid


def test_a_bound_run_has_one_experiment(tmp_path):
    for _ in range(2):  # roll call is taken again when a node comes back
        bind_run(tmp_path, 7, "one")
    check_run(tmp_path, 7, "one")
    for check in (bind_run, check_run):
        with pytest.raises(
            WireError, match="run 7 is experiment 'one' at this site, n"
        ):
            check(tmp_path, 7, "other")
    assert bound_runs(tmp_path) == {"one": [7]}


def test_what_may_not_be_seen_is_named_with_its_cure(tmp_path):
    """As after a run under another user."""
    bind_run(tmp_path, 7, "one", {"seed": 1})
    store = ClientStore(tmp_path, "one", client_id=0)
    store.folder.mkdir(parents=True)
    store.database.path.touch()
    looks = (
        lambda: bind_run(tmp_path, 7, "one", {"seed": 1}),
        lambda: check_run(tmp_path, 7, "one"),
        lambda: is_known(tmp_path, "one"),
        lambda: store.load(1),
        store.rounds,
        lambda: store.newest(2),
    )
    with toys.shut(tmp_path):
        for look in looks:
            with pytest.raises(StorageError, match=r"cannot be used: .* let this user"):
                look()


def test_a_run_without_roll_call_is_refused(tmp_path):
    with pytest.raises(WireError, match="run 8 is not known at this site"):
        check_run(tmp_path, 8, "one")


def test_a_resumed_run_takes_the_place_of_the_one_before(tmp_path):
    bind_run(tmp_path, 9, "one")
    bind_run(tmp_path, 3, "one")
    check_run(tmp_path, 3, "one")
    for check in (check_run, bind_run):  # nor does a second roll call bring it back
        with pytest.raises(WireError, match=r"run 3 goes on with .*: run 9 is over"):
            check(tmp_path, 9, "one")
    bind_run(tmp_path, 4, "two")
    assert bound_runs(tmp_path) == {"one": [3, 9], "two": [4]}


@pytest.mark.parametrize(
    "name",
    [
        SITE_FILE,
        "identity",
        "privacy-lifetime",
        "Privacy-LIFETIME",
        "audit.jsonl",
        "",
        "../a",
        "a\r\nb",
        "x" * 10**6,
        "é" * 128,
    ],
    ids=lambda name: repr(name[:9]),
)
def test_what_is_no_folder_for_an_experiment_leaves_no_trace(tmp_path, name):
    with pytest.raises(WireError, match=r"must be that of a plain folder") as caught:
        bind_run(tmp_path, 7, name)
    assert list(tmp_path.iterdir()) == []
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "left", ["round-000001-7.safetensors", "privacy-ledger.json", "rounds-done"]
)
def test_an_experiment_of_an_earlier_version_is_refused(tmp_path, left):
    folder = tmp_path / "one" / "client-0"
    folder.mkdir(parents=True)
    bind_run(tmp_path, 7, "two", {"seed": 1})
    (folder / left).touch()
    with pytest.raises(WireError, match=r"'one' left state .* earlier version of"):
        bind_run(tmp_path, 8, "one", {"seed": 1})
    assert bound_runs(tmp_path) == {"two": [7]}


def test_what_the_disk_refuses_is_named_with_its_cure(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DataError, match=r"cannot be used: .*; let this user .* room"):
        write_once(tmp_path / "new" / "key", b"x")
    with pytest.raises(StorageError, match="No space left on device; make room"):
        bind_run(tmp_path / "new", 7, "one")


def test_many_nodes_of_one_state_folder_bind_at_once(tmp_path):
    """And if the server tells them different names, one name wins."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: bind_run(tmp_path, 7, "one"), range(64)))

        def attempt(i):
            try:
                bind_run(tmp_path, 8, f"e{i}")
            except WireError:
                return 0
            return 1

        assert sum(pool.map(attempt, range(64))) == 1
    check_run(tmp_path, 7, "one")


def test_a_file_is_written_once_whole_and_for_its_owner(tmp_path):
    path = tmp_path / "new" / "file"
    with ThreadPoolExecutor(16) as pool:
        writers = pool.map(lambda i: write_once(path, bytes([i]) * 9), range(64))
        found = set(writers)
    assert found == {path.read_bytes()}
    assert len(path.read_bytes()) == 9
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_state_folder_that_is_made_is_for_its_user_alone(tmp_path):
    """Whichever is first: a run, a key made by hand, an account."""
    makers = {
        "run": lambda root: bind_run(root, 7, "one"),
        "sealed": lambda root: begin_folder(root, "one", 0),
        "key": lambda root: write_once(root / "identity" / "client-0.key", b"k"),
        "account": lambda root: Ledger(
            root / "one" / "client-0", data="MUTAG", rows=np.arange(2)
        ).charge_edges(np.arange(2), 1.0),
        "states": lambda root: ClientStore(root, "one", client_id=0).save(1, {}),
    }
    for name, make in makers.items():
        make(tmp_path / name / "state")
        folders = [p for p in (tmp_path / name).rglob("*") if p.is_dir()]
        assert folders
        for folder in folders:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
        for file in (tmp_path / name).rglob("*"):
            if file.is_file():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_every_method_refuses_a_name_that_changes_in_mid_run(run, monkeypatch, method):
    push = InlineGrid.push_messages

    def rename(self, messages):
        messages = list(messages)
        for message in messages:
            header = message.content["header"]
            if header.get("server-round") == 2:
                header["experiment"] = "other"
        return push(self, messages)

    monkeypatch.setattr(InlineGrid, "push_messages", rename)
    with pytest.raises(
        RunFailedError, match=r"clients 0-2: .*, now the server names 'oth"
    ):
        run(method)


def test_an_experiment_keeps_the_config_that_it_began_with(tmp_path):
    bind_run(tmp_path, 7, "one", {"seed": 1, "num-server-rounds": 3})
    bind_run(tmp_path, 8, "one", {"seed": 1, "num-server-rounds": 9})  # a resume
    with pytest.raises(WireError, match="seed was 1 and is now 2; refused"):
        bind_run(tmp_path, 9, "one", {"seed": 2, "num-server-rounds": 9})
    check_run(tmp_path, 8, "one")  # the refused one has not ended it
    bind_config(tmp_path, "two", {"seed": 2})


def test_a_client_whose_folder_of_a_sealed_run_is_gone_is_refused_and_no_other(
    tmp_path,
):
    for client in (0, 1):
        begin_folder(tmp_path, "one", client)
        begin_folder(tmp_path, "one", client)
    gone = tmp_path / "one" / "client-0"
    gone.rmdir()
    for _ in range(2):
        with pytest.raises(WireError, match=r"client 0 in .*'one' is gone .* sqlite3"):
            begin_folder(tmp_path, "one", 0)
        begin_folder(tmp_path, "one", 1)
    begin_folder(tmp_path, "two", 0)
    assert not gone.exists()
    gone.mkdir()  # restored
    begin_folder(tmp_path, "one", 0)
