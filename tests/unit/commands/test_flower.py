"""Ctrl-C on a run under Flower: what goes on is said, at whatever moment it comes."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import threading
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.results.folder import short_id
from fedgraph_flwr.results.run_file import RunFile
from simulations import flower

# Answers as Flower's command line does; what it was asked is in `asked`.
COMMAND = """#!/bin/bash
cd "{folder}"
echo "$1" >> asked
case "$1" in
    run) touch handing; [ -e quick ] || sleep 0.6; echo '{done}';;
    log) touch followed; [ ! -e cut ] || exit 1; [ -e quick ] || sleep 9;;
    stop) touch stopping; cat stop-answer;;
    ls) echo "{{\\"runs\\": [{{\\"status\\": \\"$(cat status)\\"}}]}}";;
esac
"""
DONE = '{"success": true, "run-id": 7}'
ENDS = "so is run 7, which writes its results within half a minute"
LATE = '{"success": false, "error-message": "Run 7 is already finished"}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which a stand-in for Flower's command line works."""
    command = tmp_path / "flwr"
    command.write_text(COMMAND.format(folder=tmp_path, done=DONE))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "status").write_text("running")
    (tmp_path / "stop-answer").write_text(DONE)
    monkeypatch.setattr(flower, "BIN", tmp_path)
    # A shell that starts tests in the background has Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def press(folder: Path, *moments: str) -> None:
    """Send Ctrl-C as soon as the files of these names are there, one after another."""

    def wait_and_press() -> None:
        for name in moments:
            deadline = time.monotonic() + 30
            while not (folder / name).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    threading.Thread(target=wait_and_press, daemon=True).start()


def begun(run: Path) -> Path:
    """Results folder of a run that has a checkpoint."""
    run.mkdir(parents=True)
    with RunFile(run).writing() as writing:
        writing.checkpoint(1, {}, {})
    return run


def stopped(folder: Path, **overrides: str) -> str:
    given = {"results-dir": str(folder / "results"), **overrides}
    with pytest.raises(KeyboardInterrupt) as stop:
        flower.run_flower(given, num_nodes=2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return str(stop.value)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


def test_flower_is_handed_any_text():
    """A path with an emoji was refused as no TOML."""
    given = {"results-dir": "/tmp/ä 😀 \x7f \\", "seed": 3, "dry-run": True}
    assert tomllib.loads(flower.run_config(given)) == given


TABLES = "CREATE TABLE alembic_version (v); CREATE TABLE run (id);"


@pytest.mark.parametrize(
    ("is_running", "rows", "stays"),
    [
        (False, "INSERT INTO alembic_version VALUES ('31da64063282')", False),
        (False, "INSERT INTO run VALUES (7)", True),
        (True, "", True),
    ],
)
def test_a_database_that_a_killed_superlink_began_is_deleted(
    folder, monkeypatch, is_running, rows, stays
):
    """With it no SuperLink started again: each found its first table to be there."""
    monkeypatch.setenv("FLWR_HOME", str(folder / "home"))
    place = folder / "home" / "local-superlink" / "state.db"
    place.parent.mkdir(parents=True)
    with closing(sqlite3.connect(place)) as database:
        database.executescript(TABLES + rows)
    copy = Path(f"{place}.bak")
    copy.write_text("runs of a user")
    (folder / "home/local-superlink/state.db-wal").touch()
    asked = []

    def start(*_: str) -> str:
        asked.append(place.exists())
        return DONE if len(asked) > 2 else "Failed to start local SuperLink"

    monkeypatch.setattr(flower, "_flwr", start)
    sleeper = ["bash", "-c", "exec -a flower-superlink sleep 60"]
    with subprocess.Popen(sleeper if is_running else ["true"]) as superlink:
        assert flower.submit({}, num_nodes=1) == 7
        superlink.kill()
    assert asked == [True, stays, stays]
    assert copy.exists()
    assert stays or [*place.parent.iterdir()] == [copy]


def test_a_superlink_that_does_not_start_is_told_with_the_cure(folder, monkeypatch):
    said = "Failed to start local SuperLink: it exited with code 1. See logs at x.log."
    monkeypatch.setattr(flower, "_flwr", lambda *_: f'{{"error-message": "{said}"}}')
    cure = "export FLWR_HOME .* export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT with a free"
    with pytest.raises(RunFailedError, match=f"refused the run: {said} .*{cure}"):
        flower.submit({}, num_nodes=1)


def test_before_flower_has_the_run_it_is_stopped_once_it_has_it(folder, capfd):
    press(folder, "handing")
    assert stopped(folder) == f"; {ENDS}"
    assert asked(folder)[0] == "run"
    assert "stop" in asked(folder)  # following the log may begin after it
    assert "Flower is asked to stop the run, once it has it" in capfd.readouterr().err


def test_a_second_one_does_not_wait_and_says_how_to_find_out(folder):
    press(folder, "handing", "handing")
    assert "not known whether Flower took the run: `flwr ls`" in stopped(folder)
    assert asked(folder) == ["run"]


def test_in_the_middle_the_run_is_stopped_and_can_be_resumed(folder):
    (folder / "quick").touch()
    kept = begun(folder / "results" / f"20260101T000000Z-gcfl-{short_id(7)}")
    press(folder, "followed")
    assert stopped(folder) == f"; {ENDS}; to go on: resume={kept}"
    assert "stop" in asked(folder)


def test_a_run_that_flower_has_lost_is_told_with_the_cure(folder, capfd):
    """As after the end of its SuperLink, with which its log cannot be followed."""
    for name in ("quick", "cut"):
        (folder / name).touch()
    kept = begun(folder / "results" / f"20260101T000000Z-gcfl-{short_id(7)}")
    lost = 'finished:failed", "status-details": "No heartbeat'
    threading.Timer(1, (folder / "status").write_text, [lost]).start()
    words = f"^No heartbeat .see `flwr log 7 --show`.; to go on: resume={kept}$"
    with pytest.raises(RunFailedError, match=words):
        flower.run_flower({"results-dir": str(folder / "results")}, num_nodes=2)
    told = capfd.readouterr().err
    assert told.count("the log of run 7 cannot be followed; it is waited for") == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("finished:completed", "run 7 had ended before (finished:completed), results"),
        ("running", "run 7 may go on; to stop it: flwr stop 7 (Flower says: Run 7 is"),
    ],
)
def test_what_flower_does_not_stop_is_told(folder, status, said):
    (folder / "quick").touch()
    (folder / "stop-answer").write_text(LATE)
    press(folder, "followed")
    # Flower knows the end of the run later than Ctrl-C comes.
    command = folder / "flwr"
    command.write_text(
        command.read_text().replace("stop) ", f'stop) echo "{status}" > status; ')
    )
    assert said in stopped(folder)
