"""Submit a run through ``flwr run``, follow it, and tell how it ended.

Flower's own exit code says only whether a run was accepted; here a run counts as
completed when it wrote a summary that says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.results.folder import short_id
from fedgraph_flwr.results.provenance import project_root
from fedgraph_flwr.terminal import announced

_BIN = Path(sys.executable).parent
_POLL_S = 1.0
_LOG_GRACE_S = 5.0
# Flower gives its SuperLink 15 s to start; a busy machine needs several times that.
_SLOW_START, _MORE_STARTS = "Failed to start local SuperLink", 4


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
    with announced("handing the run to Flower, whose SuperLink may have to start"):
        run_id = submit(overrides, num_nodes=num_nodes, num_gpus=num_gpus)
    follow = [str(_BIN / "flwr"), "log", str(run_id)]
    with subprocess.Popen(follow, stdin=subprocess.DEVNULL, env=environment()) as log:
        try:
            status, details = wait(run_id)
        except KeyboardInterrupt:
            _flwr("stop", str(run_id))
            raise KeyboardInterrupt(_how_to_go_on(results, run_id)) from None
        finally:
            try:
                log.wait(_LOG_GRACE_S)
            except subprocess.TimeoutExpired:
                log.terminate()
    found = sorted(results.glob("*/summary.json"))
    if resumed := overrides.get("resume"):  # goes on in its old folder
        found = [p for p in [Path(str(resumed)) / "summary.json"] if p.is_file()]
    folder = next((p.parent for p in found if _belongs(p, run_id)), None)
    if folder is None:
        why = details.partition("failed with exception: ")[2] or details or status
        raise RunFailedError(f"{why} (see `flwr log {run_id} --show`)")
    summary = json.loads((folder / "summary.json").read_text())
    if summary["status"] != "completed":
        raise RunFailedError(f"{summary['error']} (results so far: {folder})")
    return folder


def submit(
    overrides: Mapping[str, Value], *, num_nodes: int, num_gpus: float = 0.0
) -> int:
    """Hand a run to the SuperLink, which starts if it must, and return its id."""
    if here := os.environ.get("FEDGRAPH_DATA"):
        # The SuperLink has the environment of the shell that started it, not ours.
        overrides = {"data-dir": str(Path(here).resolve()), **overrides}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.writelines(f"{k} = {json.dumps(v)}\n" for k, v in overrides.items())
        file.flush()
        command = [
            "run",
            str(project_root()),
            "--format",
            "json",
            "--run-config",
            file.name,
            "--federation-config",
            f"num-supernodes={num_nodes} client-resources-num-cpus=1"
            f" client-resources-num-gpus={num_gpus}",
        ]
        done = _flwr(*command)
        for _ in range(_MORE_STARTS):
            if _SLOW_START not in done:
                break
            done = _flwr(*command)
    answer = _json(done)
    if not answer.get("success") or "run-id" not in answer:
        raise RunFailedError(
            f"flwr run refused the run: {answer.get('error-message', done)}"
        )
    return int(answer["run-id"])


def wait(run_id: int) -> tuple[str, str]:
    """Wait until a run has finished; return its status and what Flower says of it.

    The status is, e.g., finished:completed; of a failed run Flower keeps the error.
    """
    while True:
        begin = time.monotonic()
        runs = _json(_flwr("ls", "--run-id", str(run_id), "--format", "json"))
        row = runs["runs"][0] if runs.get("runs") else {}
        status = str(row.get("status", "unknown"))
        if status.startswith("finished"):
            return status, str(row.get("status-details", ""))
        # A question costs a process that imports Flower: seconds on a busy machine.
        time.sleep(max(_POLL_S, 2 * (time.monotonic() - begin)))


def read_log(run_id: int) -> str:
    """Return what a run's ServerApp has logged; Flower keeps it."""
    return _flwr("log", str(run_id), "--show")


def stop_superlink() -> list[int]:
    """Stop this project's background SuperLink and what it started; return the pids."""
    home = os.environ.get("FLWR_HOME", "")
    stopped = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
            environment = (entry / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        is_flower = any(
            "flower-superlink" in c or "flwr-simulation" in c for c in command
        )
        if is_flower and f"FLWR_HOME={home}" in environment:
            os.kill(int(entry.name), signal.SIGTERM)
            stopped.append(int(entry.name))
    return stopped


def environment() -> dict[str, str]:
    """Environment in which Flower's commands, and what they start, find each other."""
    return {**os.environ, "PATH": f"{_BIN}:{os.environ.get('PATH', '')}"}


def _how_to_go_on(results: Path, run_id: int) -> str:
    """Say that Flower's run was stopped too, and how to resume it if it had begun."""
    begun = sorted(results.glob(f"*-{short_id(run_id)}/checkpoint/*"))
    resume = f"; to go on: --set resume={begun[0].parent.parent}" if begun else ""
    return f"; so is run {run_id}{resume}"


def _flwr(*arguments: str) -> str:
    done = subprocess.run(
        [str(_BIN / "flwr"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment(),
        timeout=300,
    )
    return done.stdout + (done.stderr if done.returncode else "")


def _json(output: str) -> dict[str, Any]:
    begin = output.find("{")
    try:
        value: dict[str, Any] = json.JSONDecoder().raw_decode(output[begin:])[0]
    except (json.JSONDecodeError, IndexError) as error:
        raise RunFailedError(f"flwr answered: {output.strip()[-2000:]}") from error
    return value


def _belongs(summary: Path, run_id: int) -> bool:
    return bool(json.loads(summary.read_text())["run_id"] == str(run_id))


if __name__ == "__main__":
    if sys.argv[1:] != ["stop"]:
        raise SystemExit("usage: python -m simulations.flower stop")
    sys.stdout.write(f"stopped {stop_superlink() or 'nothing'}\n")
