"""A SuperLink and SuperNodes as real processes on loopback, for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import Value
from fedgraph_flwr.results.provenance import project_root
from simulations import flower

BIN = Path(sys.executable).parent


def clean_environment(tmp_path: Path) -> dict[str, str]:
    """Environment of Flower's processes: a home of their own, no installations."""
    home = tmp_path / "flwr"
    home.mkdir()
    return {
        **flower.environment(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


@contextmanager
def process(
    command: list[str], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the virtual environment; ended with all its children."""
    with log.open("w") as out:
        started = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=log.parent,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):  # a test may have killed it
                os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


@contextmanager
def federation(
    tmp_path: Path,
    env: dict[str, str],
    ports: tuple[int, int],
    sites: Sequence[str],
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """SuperLink on ``ports[0]``, SuperNodes beside it, and an entry called "site".

    ``sites``: node-config of each, to which ``state-dir`` is added.
    """
    address = f"127.0.0.1:{ports[0]}"
    (Path(env["FLWR_HOME"]) / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n\n[superlink.site]\naddress = "{address}"\n'
        "insecure = true\n"
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1"]
    link += ["--port", str(ports[0]), "--disable-runtime-dependency-installation"]
    with process(link, tmp_path / "superlink.log", env), ExitStack() as stack:
        _wait_for(ports[0])
        nodes = []
        for number, config in enumerate(sites):
            state = tmp_path / f"state-{number}"
            command = ["flower-supernode", "--insecure", "--superlink", address]
            command += ["--port", str(ports[1] + number), "--node-config"]
            command += [f'{config} state-dir="{state}"']
            log = tmp_path / f"node{number}.log"
            nodes.append(stack.enter_context(process(command, log, env)))
        yield nodes


def _wait_for(port: int) -> None:
    """Wait until something listens on a port of this machine."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"nothing listens on port {port}")


def flwr(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Answer of a ``flwr`` command."""
    done = subprocess.run(
        [str(BIN / "flwr"), *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    begin = done.stdout.find("{")
    assert begin >= 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[begin:])[0]
    return answer


def submit(
    tmp_path: Path, env: dict[str, str], config: Mapping[str, Value]
) -> tuple[str, Path]:
    """Start a run: its id, and the folder below which its results will be."""
    results = tmp_path / f"deployed-{len(list(tmp_path.glob('deployed-*')))}"
    file = tmp_path / "run.toml"
    given = {**config, "results-dir": str(results)}
    file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in given.items()))
    root = str(project_root())
    answer = flwr(env, "run", root, "site", "--run-config", str(file))
    assert "run-id" in answer, answer
    return str(answer["run-id"]), results


def wait(
    tmp_path: Path, env: dict[str, str], run_id: str, results: Path, *, limit_s: int
) -> tuple[str, Path]:
    """Wait for the end of a run: Flower's status and the results folder."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        (run,) = flwr(env, "ls", "site", "--run-id", run_id)["runs"]
        if run["status"].startswith("finished"):
            break
        time.sleep(2)
    logs = "\n".join(p.read_text()[-3000:] for p in tmp_path.glob("*.log"))
    assert results.is_dir(), f"{run['status']}\n{logs}"
    (folder,) = results.iterdir()
    return run["status"], folder


def log_of(env: dict[str, str], run_id: str) -> str:
    """Log of a run's ServerApp, which Flower keeps apart from the SuperLink's."""
    done = subprocess.run(
        [str(BIN / "flwr"), "log", run_id, "site", "--show"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout + done.stderr


def summary_of(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a results folder."""
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return loaded
