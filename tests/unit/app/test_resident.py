"""Node-config ``resident``: one process answers all messages of a run at a site."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest
import toys
from flwr.app import Context, Message, RecordDict

import datasets
from datasets import partition
from fedgraph_flwr import resident_worker
from fedgraph_flwr.client_entry import app
from fedgraph_flwr.core.audit_log import CODE
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.wire import pack, unpack
from fedgraph_flwr.node import resident, serve
from fedgraph_flwr.node.resident import (
    Record,
    end,
    identity,
    key_of,
    read_record,
    record_file,
)
from fedgraph_flwr.resolve import defaults

HERE = identity(os.getppid())
pytestmark = pytest.mark.usefixtures("task_identity")


@pytest.fixture(autouse=True)
def same_data(monkeypatch):
    """Load in this process what a worker loads, whatever other tests have left."""
    monkeypatch.setattr(datasets, "load_partition", partition.load_partition)
    serve.kept_data.clear()
    yield
    serve.kept_data.clear()


@pytest.fixture
def node(tmp_path):
    """Node-config of a site with a worker, which is ended with the test."""
    yield {
        "clients": "0",
        "state-dir": str(tmp_path / "state"),
        "data-path": str(tmp_path / "data"),
        "resident": True,
    }
    for place in (tmp_path / "state").glob("resident-*.json"):
        if record := read_record(place):
            end(record)


def context(node, run=1, **config):
    given = {**defaults(), **toys.tiny("fedavg"), "dataset": "synthetic", **config}
    return Context(run, 1, node, RecordDict(), given)


def ask(node, run=1, kind="query", **config):
    """Call the roll, or send another message; return header and parcels."""
    content = pack({}, {"experiment": "e"})
    if kind != "query":
        content = pack({0: toys.Parcel()}, {"experiment": "e", "server-round": 1})
    reply = app(Message(content, 1, kind), context(node, run, **config))
    parcels, header = unpack(reply.content)
    return header, parcels


def worker(node, run=1) -> Record:
    record = read_record(record_file(node, run))
    assert record is not None
    return record


def gone(record: Record, limit_s: float = 20) -> bool:
    deadline = time.monotonic() + limit_s
    while resident.lives(record.process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not resident.lives(record.process)


# What a worker depends on -----------------------------------------------------------


def test_another_worker_for_anything_that_changes(node, tmp_path, monkeypatch):
    code, data = tmp_path / "app", tmp_path / "data"
    for folder in (data, *(code / name for name in CODE), code / "clients/own"):
        folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(resident, "project_root", lambda: code)
    mine = code / "clients/own/mine.py"
    keys = [key_of(context(node), "1 1"), key_of(context(node), "1 2")]
    for path, text in (
        (data / "graphs.csv", "graph\n"),
        (data / "graphs.csv", "graph\n0\n"),
        (data / "nodes.csv", ""),
        (mine, "x = 1\n"),
        (mine, "x = 12\n"),
    ):
        path.write_text(text)
        keys.append(key_of(context(node), "1 1"))
        assert key_of(context(node), "1 1") == keys[-1]
    assert len(set(keys)) == len(keys)
    (mine.parent / "__pycache__").mkdir()
    (mine.parent / "__pycache__/mine.cpython-311.pyc").touch()
    assert key_of(context(node), "1 1") == keys[-1]
    other = {**node, "clients": "0,1"}
    files = {record_file(n, run) for n in (node, other) for run in (1, 2)}
    assert len(files) == 4


def test_a_process_is_told_from_a_later_one_of_its_number():
    own = identity(os.getpid())
    assert resident.lives(own)
    number, started = own.split()
    assert not resident.lives(f"{number} {int(started) + 1}")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    past = identity(ended.pid)
    ended.wait()
    assert not resident.lives(past)
    assert identity(ended.pid) == ""
    assert not resident.lives("")


# How it ends ------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Look often, and do not end this process with that which started it."""
    monkeypatch.setattr(resident_worker, "_LOOK_S", 0.01)
    monkeypatch.setattr(resident_worker, "_watch", lambda *_: None)


@pytest.mark.usefixtures("quick")
def test_it_ends_when_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(resident_worker, "IDLE_S", 0.05)
    said = resident_worker.serve(tmp_path / "record", "key", HERE)
    assert said.startswith("nothing was asked for")
    assert not (tmp_path / "record").exists()


@pytest.mark.slow
def test_it_ends_with_its_supernode(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as parent:
        record = resident._start(tmp_path / "record", "key", identity(parent.pid))
        assert resident.lives(record.process)
        parent.kill()
    assert gone(record)
    assert not Path(record.address).parent.exists()


# Messages ---------------------------------------------------------------------------


@pytest.mark.slow
def test_one_process_answers_all_messages_of_a_run(node):
    _, parcels = ask(node)
    (alone,) = ask({**node, "resident": False})[1].values()
    assert (parcels[0].error, parcels[0].facts) == ("", alone.facts)
    first = worker(node)
    ask(node)
    assert worker(node) == first
    with pytest.raises(RunFailedError, match=r"."):
        ask(node, kind="query.unknown")
    assert worker(node) == first
    check_only_this_user_reaches(first, record_file(node, 1))
    assert ask(node)[1][0].error == ""  # goes on
    # Runs, and sites that share a state folder, have a worker each, side by side.
    beside = {**node, "clients": "1"}
    assert ask(beside)[1][1].error == ""
    ask(node, run=2)
    others = [worker(beside), worker(node, run=2)]
    assert len({r.process for r in (first, *others)}) == 3
    ask(node)
    assert worker(node) == first
    assert resident.lives(first.process)
    data = Path(node["data-path"])
    data.touch()
    ask(node)
    assert worker(node) != first
    assert gone(first)


def check_only_this_user_reaches(record: Record, file: Path) -> None:
    """Neither other users nor those who do not know the secret."""
    for path in (file, Path(record.address).parent):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(record.address, authkey=secrets.token_bytes(32))
    stranger = Client(record.address, authkey=bytes.fromhex(record.secret))
    stranger.recv()
    stranger.send("no message")
    stranger.close()


@pytest.mark.slow
def test_one_that_was_killed_or_hangs_is_followed_by_another(node, monkeypatch):
    ask(node)
    first = worker(node)
    os.kill(int(first.process.split()[0]), signal.SIGKILL)
    assert ask(node)[1][0].error == ""
    second = worker(node)
    assert second != first
    assert not Path(first.address).parent.exists()

    connect = resident._connect

    def connect_and_kill(record):
        connection = connect(record)
        os.kill(int(record.process.split()[0]), signal.SIGKILL)
        return connection

    monkeypatch.setattr(resident, "_connect", connect_and_kill)
    with pytest.raises(RunFailedError, match="resident worker ended while it answered"):
        ask(node)
    monkeypatch.undo()
    with subprocess.Popen(["sleep", "60"]) as hangs:
        replace(second, process=identity(hangs.pid)).write(record_file(node, 1))
        assert ask(node)[1][0].error == ""
        assert hangs.wait(20) != 0
    assert worker(node).address != second.address


@pytest.mark.parametrize("place", ["state", "state/.resident.lock"])
def test_a_folder_that_cannot_be_used_is_told_with_the_cure_in_the_log_alone(
    node, tmp_path, place, caplog
):
    """The server hears the text of what is raised here."""
    if place == "state":
        (tmp_path / place).touch()
    else:
        (tmp_path / place).mkdir(parents=True)
    with pytest.raises(RunFailedError, match="worker cannot be used; its") as caught:
        ask(node)
    assert str(tmp_path) not in str(caught.value)
    (said,) = [m for m in caplog.messages if "cannot be used" in m]
    assert "make the folder writable" in said
    assert "Traceback" not in said
