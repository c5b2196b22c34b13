"""Files of SQLite: whole or absent, for their owner, and never held by a reader."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedgraph_flwr.core import database
from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import DataError, StorageError

SCHEMA = "CREATE TABLE kept (name INTEGER PRIMARY KEY, value BLOB)"
ALL = "SELECT name FROM kept ORDER BY name"


@pytest.fixture
def file(tmp_path) -> Database:
    return Database(tmp_path / "a folder" / "what?.sqlite3", SCHEMA)


def add(file: Database, *names: int) -> None:
    with file.transaction() as db:
        db.executemany("INSERT INTO kept VALUES (?, 'x')", [(n,) for n in names])


def test_what_is_not_there_has_no_rows_and_is_not_made(file):
    assert file.rows(ALL) == []
    assert not file.path.parent.exists()


def test_a_transaction_is_there_as_a_whole_or_not_at_all(file):
    add(file, 1)
    with pytest.raises(DataError, match="UNIQUE"):
        add(file, 2, 1)
    assert file.rows(ALL) == [(1,)]


def test_files_are_for_their_owner_alone_or_as_asked(file, tmp_path):
    add(file, 1)
    folder = file.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    open_to_all = Database(tmp_path / "b.sqlite3", SCHEMA, mode=0o644)
    add(open_to_all, 1)
    assert stat.S_IMODE(open_to_all.path.stat().st_mode) == 0o644


def test_many_that_make_the_file_at_once_lose_nothing(file):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: add(file, n), range(48)))
    assert file.rows(ALL) == [(n,) for n in range(48)]
    assert {p.name for p in file.path.parent.iterdir()} <= {
        file.path.name,
        f"{file.path.name}-journal",
    }


def test_a_reader_that_holds_on_to_what_it_read_blocks_no_commit(file, monkeypatch):
    monkeypatch.setattr(database, "_WAIT_S", 0.05)
    add(file, *range(1000))
    reader = iter(file.rows("SELECT * FROM kept"))
    next(reader)
    add(file, 1000)
    assert len(list(reader)) == 999


def test_a_process_that_is_killed_in_a_transaction_leaves_the_one_before(file):
    add(file, 1)
    killed = (
        "import os, signal, sys; from pathlib import Path;"
        "from fedgraph_flwr.core.database import Database;"
        "entered = Database(Path(sys.argv[1]), '').transaction();"
        "db = entered.__enter__(); db.execute('PRAGMA cache_size = 1');"
        "db.executemany('INSERT INTO kept VALUES (?, zeroblob(9000))',"
        " [(n,) for n in range(2, 99)]);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", killed, file.path], check=False)
    journal = file.path.with_name(f"{file.path.name}-journal")
    assert journal.stat().st_size > 0, "it was not amid its writing"
    assert file.rows(ALL) == [(1,)]


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda p: p.write_bytes(b""), DataError, "layout 0, expected 1"),
        (lambda p: p.write_bytes(b"x" * 5000), DataError, "cannot be read.*restore"),
        (lambda p: (p.unlink(), p.mkdir()), StorageError, "cannot be used.*make room"),
        (lambda p: (p.unlink(), p.symlink_to("no")), StorageError, "cannot be used"),
    ],
    ids=["empty", "damaged", "folder", "dangling"],
)
def test_a_file_that_is_none_is_named_and_never_begun_anew(file, spoil, error, words):
    add(file, 1)
    spoil(file.path)
    with pytest.raises(error, match=rf"what\?\.sqlite3 .*{words}"):
        add(file, 2)


def test_a_file_of_another_layout_is_refused(file):
    add(file, 1)
    with pytest.raises(DataError, match=r"layout 1, expected 2.*another version"):
        Database(file.path, SCHEMA, version=2).rows(ALL)


def test_a_lock_that_does_not_end_is_named(file, monkeypatch):
    monkeypatch.setattr(database, "_WAIT_S", 0.05)
    add(file, 1)
    with file.transaction(), pytest.raises(StorageError, match=r"is locked; .* end"):
        add(file, 2)
