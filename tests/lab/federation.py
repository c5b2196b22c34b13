"""A SuperLink and SuperNodes on loopback, for drills, measurements and tests."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.rules import Value
from simulations import flower
from simulations.bundled import bundled_files

_BIN = Path(sys.executable).parent
_PORTS, _BLOCK, _MOST_HELD = range(20000, 32000), 20, 50
_HOOKS = Path(__file__).parent / "hooks"
_POLL_S, _ASK_S, _START_S, _END_S = 0.5, 5.0, 120.0, 20.0
_SEEK_S = 1.0  # pause of a SuperNode between two questions; Flower's is 3 s
HEARTBEAT_S = 15  # Flower's is 30 s; a dead node is noticed after two
_HELD: deque[int] = deque()  # descriptors of the names of blocks


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive ports that nobody uses.

    The system gives higher ports to connections. A block's name is held until this
    process ends or has asked for 50 others, so no other federation gets the same.
    """
    assert count <= _BLOCK
    blocks = list(_PORTS[::_BLOCK])
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0fedgraph-ports-{first}")
        except OSError:
            holder.close()
            continue
        if all(_is_free(port) for port in range(first, first + count)):
            _HELD.append(holder.detach())
            if len(_HELD) > _MOST_HELD:
                os.close(_HELD.popleft())
            return first
        holder.close()
    raise RunFailedError(f"no {count} free ports in a row found within {_PORTS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Whether somebody answers at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment(home: Path, *, witness: Path | None = None) -> dict[str, str]:
    """Return the environment of Flower's processes, whose ``FLWR_HOME`` is ``home``.

    ``witness`` is a file in which ClientApps write down the noise that they draw.
    """
    home.mkdir(parents=True, exist_ok=True)
    return {
        **flower.environment(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(_SEEK_S / 2),
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": str(_HOOKS),
        "FEDGRAPH_HEARTBEAT_S": str(HEARTBEAT_S),
        "FEDGRAPH_POLL_S": str(_SEEK_S),
        "FEDGRAPH_WITNESS": str(witness or ""),
    }


def parent(pid: int) -> int | None:
    """Return who has started or adopted a process; None if it is gone."""
    with suppress(psutil.Error):
        return psutil.Process(pid).ppid()
    return None


def is_orphan(pid: int) -> bool:
    """Whether a process has outlived the one that started it, or is gone itself."""
    return parent(pid) in (None, 1)


def has_loaded(pid: int, library: str) -> bool:
    """Whether a process has a file of such a name in memory."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def kill(found: Iterable[int]) -> None:
    """Kill with -9 those of the processes that still run."""
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Federation:
    """A SuperLink and its SuperNodes on loopback; started again if they end.

    Parameters
    ----------
    folder : path
        For logs, the SuperLink's database and each site's state, ``site-<number>``.
    environment : mapping
        See :func:`environment`.
    sites : sequence of str
        Node-config of each SuperNode, to which ``state-dir`` is added.
    """

    SPARE_PORTS: ClassVar[int] = 0  # free ones from ``spare_port`` on

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        sites: Sequence[str],
    ) -> None:
        self.folder, self._environment = folder, dict(environment)
        self._home = Path(environment["FLWR_HOME"])
        self._port = free_ports(1 + len(sites) + self.SPARE_PORTS)
        self.spare_port = self._port + 1 + len(sites)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tried: dict[str, float] = {}
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n\n[superlink.site]\n{self.profile()}'
        )
        self._commands = {"superlink": self.superlink_command()}
        for number, config in enumerate(sites):
            given = f'{config} state-dir="{folder}/site-{number}"'
            command = self.site_command(number, self._port + 1 + number, given)
            self._commands[f"site-{number}"] = command

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"127.0.0.1:{self._port}"

    def profile(self) -> str:
        """Entries of Flower's configuration for this SuperLink's Control API."""
        return f'address = "{self.address}"\ninsecure = true\n'

    def superlink_command(self) -> list[str]:
        """Command of the SuperLink, without TLS."""
        host, port = self.address.split(":")
        command = ["flower-superlink", "--insecure", "--host", host, "--port", port]
        command += ["--database", str(self.folder / "superlink.db")]
        return [*command, "--disable-runtime-dependency-installation"]

    def site_command(self, number: int, port: int, node_config: str) -> list[str]:
        """Command of a site's SuperNode, without TLS."""
        command = ["flower-supernode", "--insecure", "--superlink", self.address]
        return [*command, "--port", str(port), "--node-config", node_config]

    def register_keys(self) -> None:
        """Make sites known to a new SuperLink; nothing to do without keys."""

    def __enter__(self) -> Federation:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pid(self, name: str) -> int:
        """Process id of "superlink" or "site-<number>", which leads its group."""
        return self._running[name].pid

    def start(self) -> None:
        """Start what does not run.

        A SuperNode is started once per heartbeat at most: as long as the SuperLink
        takes the killed one to be there, its successor ends at once.
        """
        for name, command in self._commands.items():
            process = self._running.get(name)
            if process is not None and process.poll() is None:
                continue
            now = time.monotonic()
            if name != "superlink" and now < self._tried.get(name, -1) + HEARTBEAT_S:
                continue
            is_first = name not in self._tried
            self._tried[name] = now
            with (self.folder / f"{name}.log").open("a") as log:
                self._running[name] = subprocess.Popen(
                    [str(_BIN / command[0]), *command[1:]],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
            if name == "superlink":
                self._await_port(self._running[name])
                if is_first:
                    self.register_keys()

    def restart(self, *sites: str) -> None:
        """End SuperNodes, which take leave of the SuperLink, and start them again."""
        for name in sites:
            os.killpg(self.pid(name), signal.SIGTERM)
            self._running[name].wait(_END_S)
            del self._tried[name]
        self.start()

    def _await_port(self, superlink: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while not listens(self._port):
            if superlink.poll() is not None or time.monotonic() > deadline:
                raise RunFailedError(f"no SuperLink; see {self.folder}/superlink.log")
            time.sleep(_POLL_S)

    def submit(self, config: Mapping[str, Value]) -> str:
        """Start a run and return its id."""
        file = self.folder / "run.toml"
        file.write_text(flower.run_config(config), encoding="utf-8")
        with bundled_files() as app:
            answer = self._ask("run", str(app), "site", "--run-config", str(file))
        if "run-id" not in answer:
            raise RunFailedError(f"flwr run refused the run: {answer}")
        return str(answer["run-id"])

    def wait(self, run_id: str, *, limit_s: float) -> str:
        """Wait for the end of a run and return its status.

        Flower is asked only while no ServerApp runs: asking takes seconds.
        """
        begin = asked = time.monotonic()
        while (now := time.monotonic()) < begin + limit_s:
            if now > asked + _ASK_S and not flower.pids(self._home, "flwr-serverapp"):
                rows = self._ask("ls", "site", "--run-id", run_id).get("runs") or [{}]
                status = str(rows[0].get("status", "unknown"))
                if status.startswith("finished"):
                    return status
                asked = time.monotonic()
            time.sleep(_POLL_S)
        raise RunFailedError(f"run {run_id} hangs; see {self.folder}")

    def log(self, run_id: str) -> str:
        """Return what a run's ServerApp has logged."""
        done = self.flwr("log", run_id, "site", "--show")
        return done.stdout + done.stderr

    def close(self) -> None:
        """End all processes and their children."""
        for process in reversed(self._running.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        kill(flower.pids(self._home))

    def _ask(self, *arguments: str) -> dict[str, Any]:
        done = self.flwr(*arguments, "--format", "json")
        begin = done.stdout.find("{")
        if begin < 0:
            return {"error": (done.stdout + done.stderr).strip()[-1000:]}
        answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[begin:])[0]
        return answer

    def flwr(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Flower, by default with this federation's settings."""
        return subprocess.run(
            [str(_BIN / "flwr"), *arguments],
            capture_output=True,
            text=True,
            env=env or self._environment,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
