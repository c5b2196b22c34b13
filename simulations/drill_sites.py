"""A SuperLink and SuperNodes on loopback, started again when they are gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.results.provenance import project_root

_BIN = Path(sys.executable).parent
_HOSTED = ("0,1", "2,3")
_POLL_S, _RETRY_S, _START_S = 2.0, 30.0, 120.0


class Sites:
    """The processes of a federation.

    Parameters
    ----------
    out : path
        For logs, state, molecules, the SuperLink's database.
    environment : mapping
        With ``FLWR_HOME``.
    first_port : int
        Of the SuperLink; the SuperNodes have the next ones.
    """

    def __init__(
        self, out: Path, environment: Mapping[str, str], *, first_port: int
    ) -> None:
        self._out, self._environment = out, dict(environment)
        self._port = first_port
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tried: dict[str, float] = {}
        address = f"127.0.0.1:{first_port}"
        (Path(environment["FLWR_HOME"]) / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n\n[superlink.site]\naddress = "{address}"'
            "\ninsecure = true\n"
        )
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1"]
        link += ["--port", str(first_port), "--database", str(out / "superlink.db")]
        link += ["--disable-runtime-dependency-installation"]
        self._commands = {"superlink": link}
        for number, clients in enumerate(_HOSTED):
            places = f'state-dir="{out}/site-{number}" data-path="{out}/molecules"'
            command = ["flower-supernode", "--insecure", "--superlink", address]
            command += ["--port", str(first_port + 1 + number), "--node-config"]
            command += [f'clients="{clients}" {places}']
            self._commands[f"site-{number}"] = command

    def start(self) -> None:
        """Start what does not run; a SuperNode not more often than every 30 s."""
        for name, command in self._commands.items():
            process = self._running.get(name)
            if process is not None and process.poll() is None:
                continue
            pause = _RETRY_S - (time.monotonic() - self._tried.get(name, -_RETRY_S))
            if name != "superlink" and pause > 0:
                continue
            self._tried[name] = time.monotonic()
            with (self._out / f"{name}.log").open("a") as log:
                self._running[name] = subprocess.Popen(
                    [str(_BIN / command[0]), *command[1:]],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    cwd=self._out,
                    start_new_session=True,
                )
            if name == "superlink":
                self._await_port()

    def _await_port(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        raise RunFailedError(f"the SuperLink did not start; see {self._out}")

    def submit(self, config: Mapping[str, Value], folder: Path) -> str:
        """Start a run and return its id."""
        file = folder / "run.toml"
        file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
        root = str(project_root())
        answer = self._flwr("run", root, "site", "--run-config", str(file))
        if "run-id" not in answer:
            raise RunFailedError(f"flwr run refused the run: {answer}")
        return str(answer["run-id"])

    def wait(self, run_id: str, *, limit_s: float) -> str:
        """Wait for the end of a run, keep its sites running, return its status."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            answer = self._flwr("ls", "site", "--run-id", run_id)
            status = str((answer.get("runs") or [{"status": "unknown"}])[0]["status"])
            if status.startswith("finished"):
                return status
            self.start()
            time.sleep(_POLL_S)
        raise RunFailedError(f"run {run_id} hangs; see {self._out}")

    def log(self, run_id: str) -> str:
        """Return what a run's ServerApp has logged."""
        done = self._call("log", run_id, "site", "--show")
        return done.stdout + done.stderr

    def close(self) -> None:
        """End all processes and their children."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        done = self._call(*arguments, "--format", "json")
        begin = done.stdout.find("{")
        if begin < 0:
            return {"error": (done.stdout + done.stderr).strip()[-1000:]}
        answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[begin:])[0]
        return answer

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(_BIN / "flwr"), *arguments],
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
