"""Node-config ``resident``: one process answers all messages of a run at a site."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest
import toys
from flwr.app import Context, Message, RecordDict
from small import small_run

import datasets
from datasets import partition
from fedgraph_flwr import resident_worker
from fedgraph_flwr.client_entry import app
from fedgraph_flwr.core.audit_log import CODE
from fedgraph_flwr.core.errors import RunFailedError, StorageError
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
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline

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
    data = tmp_path / "data"
    data.mkdir()
    (data / "graphs.csv").write_text("graph\n")
    keys = [key_of(context(node), "1 1")]
    assert key_of(context(node), "1 1") == keys[0]
    keys.append(key_of(context(node), "1 2"))
    (data / "graphs.csv").write_text("graph\n0\n")
    keys.append(key_of(context(node), "1 1"))
    (data / "nodes.csv").touch()
    keys.append(key_of(context(node), "1 1"))
    code = tmp_path / "app"
    for name in CODE:
        (code / name).mkdir(parents=True)
    monkeypatch.setattr(resident, "project_root", lambda: code)
    keys.append(key_of(context(node), "1 1"))
    (code / "clients/own").mkdir()
    (code / "clients/own/mine.py").write_text("x = 1\n")
    keys.append(key_of(context(node), "1 1"))
    (code / "clients/own/mine.py").write_text("x = 12\n")
    keys.append(key_of(context(node), "1 1"))
    assert len(set(keys)) == len(keys)
    (code / "clients/own/__pycache__").mkdir()
    (code / "clients/own/__pycache__/mine.cpython-311.pyc").touch()
    assert key_of(context(node), "1 1") == keys[-1]
    other = {**node, "clients": "0,1"}
    files = {record_file(n, run) for n in (node, other) for run in (1, 2)}
    assert len(files) == 4


def test_data_behind_a_link_are_data(node, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "MUTAG").symlink_to(tmp_path / "elsewhere")
    file = tmp_path / "elsewhere" / "MUTAG_A.txt"
    file.write_text("1, 2\n")
    before = key_of(context(node), "1 1")
    file.write_text("1, 2\n2, 1\n")
    assert key_of(context(node), "1 1") != before


def test_one_file_is_data_too(node, tmp_path):
    file = tmp_path / "0.csv"
    file.write_text("a\n")
    node["data-path"] = str(file)
    before = key_of(context(node), "")
    file.write_text("b, and more\n")
    assert key_of(context(node), "") != before


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


def test_a_value_that_is_neither_true_nor_false_is_refused(node, caplog):
    header, parcels = ask({**node, "resident": "yes"})
    assert header["error"].startswith("ConfigError: see docs/configuration.md")
    assert "node-config resident must be true or false, got 'yes'" in caplog.text
    assert parcels == {}


def test_a_record_that_cannot_be_read_is_none(tmp_path):
    for text in ("", "{", "[]", '{"key": "a"}', '{"other": 1}'):
        (tmp_path / "record").write_text(text)
        assert read_record(tmp_path / "record") is None


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


@pytest.mark.usefixtures("quick")
def test_it_ends_when_another_has_taken_its_place(tmp_path, monkeypatch):
    write = Record.write
    monkeypatch.setattr(
        Record, "write", lambda self, root: write(replace(self, key="other"), root)
    )
    said = resident_worker.serve(tmp_path / "record", "key", HERE)
    assert said == "another one has taken its place"


def test_sockets_of_killed_workers_are_cleared_and_others_left(tmp_path, monkeypatch):
    monkeypatch.setattr(resident_worker, "gettempdir", lambda: str(tmp_path))
    killed, listening, strange, new, link = (
        tmp_path / f"{resident.SOCKETS}{name}" for name in ("a", "b", "c", "d", "e")
    )
    outside = tmp_path / "outside"
    for folder in (killed, listening, strange, new, outside):
        folder.mkdir()
    link.symlink_to(outside)  # as a stranger could leave one where all may write
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(listening / "socket"))
        theirs.listen()
        for folder in (killed, new, outside):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(str(folder / "socket"))
        for folder in (killed, listening, strange, outside):
            os.utime(folder, (0, 0))
        resident_worker.clear_sockets()
    assert sorted(tmp_path.iterdir()) == sorted(
        [listening, strange, new, link, outside]
    )
    assert (outside / "socket").exists()


@pytest.mark.usefixtures("quick")
def test_a_handshake_that_fails_does_not_keep_others_out(tmp_path):
    place = tmp_path / "record"
    worker = threading.Thread(
        target=resident_worker.serve, args=(place, "key", HERE), daemon=True
    )
    worker.start()
    resident._await(place.exists, 10)
    record = read_record(place)
    too_long = (10_000).to_bytes(4, "big")  # an OSError in multiprocessing
    for said in (too_long, b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10)
            stranger.connect(record.address)
            assert stranger.recv(4096)  # the worker's challenge
            stranger.sendall(said)
    with Client(record.address, authkey=bytes.fromhex(record.secret)) as other:
        assert other.poll(10)
    place.unlink()
    worker.join(10)
    assert not worker.is_alive()


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


@pytest.mark.slow
def test_one_that_cannot_start_is_said_so(node, monkeypatch):
    monkeypatch.setattr(resident, "_WORKER", "fedgraph_flwr.no_such_module")
    with pytest.raises(RunFailedError, match="resident worker ended as it started"):
        ask(node)


def test_a_folder_for_sockets_that_does_not_do_is_told_with_the_cure(
    tmp_path, monkeypatch
):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(StorageError, match=r"long.*too long; start.*TMPDIR"):
        resident_worker.serve(tmp_path / "record", "key", HERE)
    assert not list(folder.iterdir())

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"No such file.*; start.*TMPDIR"):
        resident_worker.serve(tmp_path / "record", "key", HERE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spreadgnn-sealed", "fclg"])  # more in tests/e2e
def test_a_run_gives_the_same_bytes(tmp_path, method):
    target = small_run(method, tmp_path, 3)
    own = {k: v for k, v in target.items() if not k.endswith("-dir")}
    found = []
    for is_on in (False, True):
        root = tmp_path / str(is_on)
        sites = [
            {
                "clients": clients,
                "state-dir": str(root / clients),
                "data-path": str(tmp_path / "molecules"),
                "cache-dir": str(tmp_path / "cache"),
                "resident": is_on,
            }
            for clients in ("0,1", "2,3")
        ]
        config = {**own, "results-dir": str(root / "results")}
        run = run_inline(config, num_nodes=1, node_configs=sites)
        found.append(load_summary(run)["weights_sha256"])
        logs = [root / site["clients"] / "audit.jsonl" for site in sites]
        answers = [json.loads(x) for log in logs for x in log.read_text().splitlines()]
        assert sum(x["event"] == "answered" for x in answers) > 8
        for site in sites:
            record = next(
                map(read_record, Path(str(site["state-dir"])).glob("resident-*.json")),
                None,
            )
            assert (record is not None) == is_on
            if record:
                end(record)
    assert found[0] == found[1]
