"""Runs of ``simulations.drill`` through Flower, of which one process is killed.

``ray``: ``flwr run`` on a local SuperLink of the drill's own; an actor, the app's
process or the SuperLink is killed. ``deployment``: a SuperLink and two SuperNodes on
loopback; one of them, a ClientApp or the ServerApp is killed. Then everything is done
as ``docs/deployment.md`` says: restart what was killed, resume.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import RunFailedError

from . import flower
from .drill_sites import Sites
from .drill_targets import NUM_ROUNDS
from .drill_trials import NO_REASON, Moment, Outcome, read_summary

_LIMIT_S = 900.0
_POLL_S = 0.02
_ROUND_S = {"ray": 0.05, "deployment": 10.0}
_REASON = re.compile(r"run failed: (\w+: .*)")
_CHECKPOINT = re.compile(r"round-(\d+)\.safetensors")
_COMMANDS = {
    "actor": "ClientAppActor",
    "app": "flwr-simulation",
    "clientapp": "flwr-clientapp",
    "serverapp": "flwr-serverapp",
    "supernode": "flower-supernode",
    "superlink": "flower-superlink",
}
_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row on which nothing listens."""
    for first in range(41000, 60000, count):
        if not any(_listens(port) for port in range(first, first + count)):
            return first
    raise RunFailedError(f"no {count} free ports in a row between 41000 and 60000")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes(home: Path, command: str = "") -> list[int]:
    """Return the ids of processes with this ``FLWR_HOME`` and text in their command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if command in line and f"FLWR_HOME={home}".encode() in environment:
            found.append(int(entry.name))
    return sorted(set(found) - {os.getpid()})


def kill(pids: list[int]) -> None:
    """Kill with -9 whatever of these is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class _FlowerEngine:
    """What both engines do: wait for a moment, tell how a run ended."""

    name = ""
    victims: tuple[str, ...] = ()
    loses_runs = True

    def __init__(self, out: Path) -> None:
        self._home = out / "flwr"
        self._home.mkdir(parents=True, exist_ok=True)

    def faults(self, state: Path, folder: Path) -> list[str]:  # noqa: ARG002
        """Return nothing: only children of the drill itself keep a witness."""
        return []

    def _reach(self, moment: Moment, folder: Path, since: float) -> bool:
        """Wait for the moment; False if the run ended before."""
        begun = newest_round(folder)
        progress = moment.share * (NUM_ROUNDS - begun)
        deadline = time.monotonic() + _LIMIT_S
        while newest_round(folder) < begun + int(progress) or not _is_under_way(
            folder, since
        ):
            if ended(folder, since) is not None:
                return False
            if time.monotonic() > deadline:
                raise RunFailedError(f"a run hangs; see {folder}")
            time.sleep(_POLL_S)
        time.sleep((progress % 1.0) * _ROUND_S[self.name])
        return ended(folder, since) is None


class RayEngine(_FlowerEngine):
    """``flwr run`` on a SuperLink of the drill's own.

    Parameters
    ----------
    out : path
        The drill's folder.
    """

    name = "ray"
    victims: tuple[str, ...] = ("actor", "app", "superlink")

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        first = free_ports(2)
        # The SuperLink reads its environment when the first run starts it.
        os.environ.update(
            _ENVIRONMENT,
            FLWR_HOME=str(self._home),
            FLWR_LOCAL_CONTROL_API_PORT=str(first),
            FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(first + 1),
        )

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run through Flower, and kill ``moment``'s victim."""
        since = time.time()
        run_id = flower.submit(config, num_nodes=2)
        if moment is None or not self._reach(moment, folder, since):
            return self._end(run_id, folder, since)
        found = processes(self._home, _COMMANDS[moment.victim])
        kill(found[:1])
        if moment.victim == "actor":
            return self._end(run_id, folder, since, killed=bool(found))
        self.close()  # what an operator does: make stop
        return Outcome(status="killed" if found else "failed", says=NO_REASON)

    def _end(
        self, run_id: int, folder: Path, since: float, *, killed: bool = False
    ) -> Outcome:
        flower.wait(run_id)
        log = flower.read_log(run_id) if ended(folder, since) is None else ""
        outcome = _outcome(folder, since, log, killed=killed)
        if outcome.says == NO_REASON:
            self.close()  # a SuperLink or Ray that a crash left: make stop
        return outcome

    def close(self) -> None:
        """Stop the SuperLink and what it left behind."""
        kill(processes(self._home))


class DeploymentEngine(_FlowerEngine):
    """A SuperLink and two SuperNodes on loopback; what was killed is started again.

    Parameters
    ----------
    out : path
        The drill's folder.
    """

    name = "deployment"
    victims: tuple[str, ...] = ("supernode", "clientapp", "serverapp", "superlink")

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        environment = {**flower.environment(), **_ENVIRONMENT}
        environment |= {
            "FLWR_HOME": str(self._home),
            "FEDGRAPH_CACHE": str(out / "cache"),
        }
        self._sites = Sites(out, environment, first_port=free_ports(4))

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run on the sites, and kill ``moment``'s victim."""
        since = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        self._sites.start()
        own = {k: v for k, v in config.items() if k not in ("state-dir", "data-dir")}
        run_id = self._sites.submit(own, folder)
        killed = False
        if moment is not None and self._reach(moment, folder, since):
            killed = self._kill(moment.victim)
            if killed and moment.victim == "superlink":
                return Outcome(status="killed")
        self._sites.wait(run_id, limit_s=_LIMIT_S)
        log = self._sites.log(run_id) if ended(folder, since) is None else ""
        return _outcome(folder, since, log, killed=killed)

    def _kill(self, victim: str) -> bool:
        """Kill a process of that kind; one that answers a message must be awaited."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = processes(self._home, _COMMANDS[victim])
            if found:
                kill(found[:1])
                return True
            time.sleep(_POLL_S)
        return False

    def close(self) -> None:
        """End everything."""
        self._sites.close()
        kill(processes(self._home))


def newest_round(folder: Path) -> int:
    """Return the round of the newest checkpoint of a trial, 0 without one."""
    found = [
        _CHECKPOINT.fullmatch(path.name)
        for run in sorted((folder / "results").glob("*"))[-1:]
        for path in (run / "checkpoint").glob("round-*")
    ]
    return max((int(m.group(1)) for m in found if m), default=0)


def ended(folder: Path, since: float) -> Path | None:
    """Return the results folder of a run that has told its end since then."""
    for path in (folder / "results").glob("*/summary.json"):
        if path.stat().st_mtime >= since:
            return path.parent
    return None


def _is_under_way(folder: Path, since: float) -> bool:
    """Whether the app has made its folder, or, if resumed, written to it."""
    files = (folder / "results").glob("*/*.csv")
    return any(path.stat().st_mtime >= since for path in files)


def _outcome(folder: Path, since: float, log: str, *, killed: bool = False) -> Outcome:
    path = ended(folder, since)
    if path is None:  # it was refused before it began: only the log says why
        found = _REASON.search(" ".join(log.split()))
        says = found.group(1)[:1000] if found else NO_REASON
        return Outcome(status="failed", says=says, killed=killed)
    summary = read_summary(path)
    says = summary["error"] or ""
    return Outcome(status=summary["status"], says=says, killed=killed)
