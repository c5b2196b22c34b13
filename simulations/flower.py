"""Submit a run through ``flwr run``, follow it, and say how it ended.

Flower's own exit code says only whether a run was accepted; here a run counts as
completed when it wrote a summary that says so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.process import announced
from fedgraph_flwr.core.rules import Value, toml_value
from fedgraph_flwr.results.folder import short_id
from fedgraph_flwr.results.reader import SUMMARY, load_summary
from fedgraph_flwr.results.run_file import RunFile

from .bundled import bundled_files

BIN = Path(sys.executable).parent
_POLL_S = 1.0
_SELDOM_S = 30.0
_STOP_S, _LOOK_S = 20.0, 0.1
_LOG_GRACE_S = 5.0
_ANSWER_S = 300.0
_UNKNOWN = (
    "it is not known whether Flower took the run: `flwr ls` lists all that it has"
)
# Flower gives its SuperLink 15 s to start; a busy machine needs several times that.
_NO_START, _MORE_STARTS = "Failed to start local SuperLink", 4
_BOOKKEEPING = ("alembic_version", "sqlite_sequence")  # of a database of Flower
_UNWRITABLE = re.compile(r"\[Errno (13|30)\]")  # EACCES, EROFS, of Flower's own files
_HOME_CURE = "export FLWR_HOME with a folder that can be written"
_START_CURE = (
    f" If there is no such file, {_HOME_CURE}. If it has no error, another program may"
    " have the port: export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT with a free one. Then"
    " repeat the command."
)


def run_flower(
    overrides: Mapping[str, Value], *, num_nodes: int, num_gpus: float = 0.0
) -> Path:
    """Run one experiment on the local SuperLink and return its results folder.

    Parameters
    ----------
    overrides : mapping
        Run-config keys that differ from ``pyproject.toml``; ``results-dir`` is needed
        to find the results.
    num_nodes : int
        SuperNodes to simulate.
    num_gpus : float
        Share of a GPU that each actor gets.

    Raises
    ------
    RunFailedError
        The run was refused, failed, or left no summary.
    """
    results = Path(str(overrides["results-dir"]))
    log: subprocess.Popen[str] | None = None
    try:
        with (
            _held_back(
                "Flower is asked to stop the run, once it has it", _UNKNOWN
            ) as early,
            announced("handing the run to Flower, whose SuperLink may have to start"),
        ):
            run_id = submit(overrides, num_nodes=num_nodes, num_gpus=num_gpus)
            log = subprocess.Popen([str(BIN / "flwr"), "log", str(run_id)], **_apart())
        if early:
            raise KeyboardInterrupt
        status, details = wait(run_id, log)
        with suppress(subprocess.TimeoutExpired):
            log.wait(_LOG_GRACE_S)
    except KeyboardInterrupt:
        if log is None:  # pressed twice
            raise
        sys.stderr.write(f"\nCtrl-C: stopping run {run_id}\n")
        raise KeyboardInterrupt(_stop(run_id, overrides)) from None
    finally:
        if log is not None:
            log.terminate()
            log.wait()
    found = sorted(results.glob(f"*/{SUMMARY}"))
    if resumed := overrides.get("resume"):  # goes on in its old folder
        found = [p for p in [Path(str(resumed)) / SUMMARY] if p.is_file()]
    own = [p for p in found if load_summary(p.parent)["run_id"] == str(run_id)]
    if not own:
        why = details.partition("failed with exception: ")[2] or details or status
        to_go_on = "" if resumed else _how_to_go_on(overrides, run_id)
        raise RunFailedError(f"{why} (see `flwr log {run_id} --show`){to_go_on}")
    folder = own[0].parent
    summary = load_summary(folder)
    if summary["status"] != "completed":
        raise RunFailedError(f"{summary['error']} (results so far: {folder})")
    return folder


def submit(
    overrides: Mapping[str, Value], *, num_nodes: int, num_gpus: float = 0.0
) -> int:
    """Hand a run to the SuperLink, start that if needed, and return the run's id."""
    _stop_strays()
    if here := os.environ.get("FEDGRAPH_DATA"):
        # The SuperLink has the environment of the shell that started it, not ours.
        overrides = {"data-dir": str(Path(here).resolve()), **overrides}
    with (
        bundled_files() as app,
        tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file,
    ):
        file.write(run_config(overrides))
        file.flush()
        resources = f"num-supernodes={num_nodes} client-resources-num-cpus=1"
        resources += f" client-resources-num-gpus={num_gpus}"
        command = ["run", str(app), "--format", "json", "--run-config", file.name]
        command += ["--federation-config", resources]
        done = _flwr(*command)
        for _ in range(_MORE_STARTS):
            if _NO_START not in done:
                break
            _drop_unfinished_database()
            done = _flwr(*command)
    answer = _json(done)
    if not answer.get("success") or "run-id" not in answer:
        why = str(answer.get("error-message", done))
        cure = _START_CURE if _NO_START in why else ""
        if _UNWRITABLE.search(why):
            cure = f"; {_HOME_CURE}, then repeat the command"
        raise RunFailedError(f"flwr run refused the run: {why}{cure}")
    return int(answer["run-id"])


def run_config(overrides: Mapping[str, Value]) -> str:
    """Return the text of a file for ``flwr run --run-config``."""
    return "".join(f"{k} = {toml_value(v)}\n" for k, v in overrides.items())


def _stop_strays() -> None:
    """Stop a SuperLink whose folder was deleted, as when a clone is made anew.

    Nothing can start in a folder that is no more.
    """
    home = os.environ.get("FLWR_HOME", "")
    for pid in pids(home, "flower-superlink"):
        with suppress(OSError):
            # psutil's ``cwd`` would not tell a folder from a new one of that name.
            if not str(Path(f"/proc/{pid}/cwd").readlink()).endswith(" (deleted)"):
                continue
            sys.stderr.write("stopping the SuperLink of a folder that was deleted\n")
            stop_superlink()
            deadline = time.monotonic() + _STOP_S
            while pid in pids(home) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)


def _drop_unfinished_database() -> None:
    """Delete the database of a SuperLink that does not run, if nothing is in it.

    A start that was killed meanwhile, as Flower does after 15 s, leaves one with which
    no SuperLink starts again.
    """
    home = os.environ.get("FLWR_HOME", "")
    if not home or pids(home, "flower-superlink"):
        return
    place = Path(home).absolute() / "local-superlink" / "state.db"
    with suppress(OSError, sqlite3.Error):
        with closing(sqlite3.connect(f"{place.as_uri()}?mode=rw", uri=True)) as found:
            names = found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in names.fetchall():
                rows = found.execute(f'SELECT 1 FROM "{name}"')
                if name not in _BOOKKEEPING and rows.fetchone():
                    return
        for part in ("-journal", "-wal", "-shm", ""):  # of SQLite; no copy of a user's
            Path(f"{place}{part}").unlink(missing_ok=True)


def wait(run_id: int, log: subprocess.Popen[str] | None = None) -> tuple[str, str]:
    """Wait until a run has finished; return its status and what Flower says of it.

    The status is, e.g., finished:completed; of a failed run Flower keeps the error.
    Until ``log``, a process that follows the run, has ended, Flower is seldom asked.
    """
    while True:
        begin = time.monotonic()
        status, details = _look(run_id)
        if status.startswith("finished"):
            return status, details
        # A question costs a process that imports Flower: seconds on a busy machine.
        pause = max(_POLL_S, 2 * (time.monotonic() - begin))
        if log is not None:
            with suppress(subprocess.TimeoutExpired):
                if log.wait(max(pause, _SELDOM_S)):  # its SuperLink has ended
                    words = "cannot be followed; it is waited for all the same"
                    sys.stderr.write(f"the log of run {run_id} {words}\n")
                log = None
            continue
        time.sleep(pause)


def _look(run_id: int) -> tuple[str, str]:
    runs = _json(_flwr("ls", "--run-id", str(run_id), "--format", "json"))
    row = runs["runs"][0] if runs.get("runs") else {}
    return str(row.get("status", "unknown")), str(row.get("status-details", ""))


def read_log(run_id: int) -> str:
    """Return what a run's ServerApp has logged; Flower keeps it."""
    return _flwr("log", str(run_id), "--show")


def stop_superlink() -> list[int]:
    """Stop this project's background SuperLink and what it started; return the pids."""
    home = os.environ.get("FLWR_HOME", "")
    found = {*pids(home, "flower-superlink"), *pids(home, "flwr-simulation")}
    for pid in found:
        with suppress(ProcessLookupError):  # it ended in the meantime
            os.kill(pid, signal.SIGTERM)
    return sorted(found)


def pids(home: Path | str, command: str = "") -> list[int]:
    """Return the ids of processes with this ``FLWR_HOME`` and text in their command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it is another user's, or has ended
            is_meant = command in " ".join(process.cmdline())
            if is_meant and process.environ().get("FLWR_HOME") == str(home):
                found.append(process.pid)
    return sorted(set(found) - {os.getpid()})


def environment() -> dict[str, str]:
    """Environment in which Flower's commands, and what they start, find each other."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}"}


@contextmanager
def _held_back(words: str, twice: str) -> Iterator[list[bool]]:
    """Hold the first Ctrl-C back and say ``words``; a second one ends the wait.

    Yields a list that is empty as long as nobody has pressed Ctrl-C.
    """
    pressed: list[bool] = []

    def hold(*_: object) -> None:
        if pressed:
            raise KeyboardInterrupt(f"; {twice}")
        pressed.append(True)
        sys.stderr.write(f"\nCtrl-C: {words}; a second Ctrl-C does not wait for it\n")

    if threading.current_thread() is not threading.main_thread():
        yield pressed  # Python tells the main thread of signals, and no other
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(run_id: int, overrides: Mapping[str, Value]) -> str:
    """Stop a run, and say how it ended."""
    goes_on = f"run {run_id} may go on; to stop it: flwr stop {run_id}"
    with _held_back(f"still waiting for Flower to stop run {run_id}", goes_on):
        try:
            answer = _json(_flwr("stop", str(run_id), "--format", "json"))
            if answer.get("success"):
                ends = f"so is run {run_id}, which writes its results within half a"
                return f"; {ends} minute{_how_to_go_on(overrides, run_id)}"
            status = _look(run_id)[0]
        except RunFailedError as error:
            return f"; {goes_on} ({error})"
    if status.startswith("finished"):
        results = overrides["results-dir"]
        return f"; run {run_id} had ended before ({status}), results are in {results}"
    return f"; {goes_on} (Flower says: {answer.get('error-message', answer)})"


def _how_to_go_on(overrides: Mapping[str, Value], run_id: int) -> str:
    """Say how to resume a run; "" if it had not begun."""
    new = Path(str(overrides["results-dir"])).glob(f"*-{short_id(run_id)}")
    resumed = overrides.get("resume")
    for folder in [Path(str(resumed))] if resumed else sorted(new):
        if RunFile(folder).checkpoints():
            return f"; to go on: resume={folder}"
    return ""


def _apart() -> dict[str, Any]:
    """Options of a process that Ctrl-C in this terminal does not reach."""
    return {
        "stdin": subprocess.DEVNULL,
        "env": environment(),
        "text": True,
        "start_new_session": True,
    }


def _flwr(*arguments: str) -> str:
    command, pipe = [str(BIN / "flwr"), *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, **_apart()) as process:
        try:
            out, err = process.communicate(timeout=_ANSWER_S)
        finally:
            process.kill()  # if it has not answered
            process.wait()
    return str(out + (err if process.returncode else ""))


def _json(output: str) -> dict[str, Any]:
    begin = output.find("{")
    try:
        value: dict[str, Any] = json.JSONDecoder().raw_decode(output[begin:])[0]
    except (json.JSONDecodeError, IndexError) as error:
        raise RunFailedError(f"flwr answered: {output.strip()[-2000:]}") from error
    return value


def stop() -> int:
    """Stop this project's background SuperLink."""
    sys.stdout.write(f"stopped {stop_superlink() or 'nothing'}\n")
    return 0
