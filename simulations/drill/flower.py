"""Runs of ``simulations.drill`` through Flower; one of its processes is killed.

``ray``: ``flwr run`` on a local SuperLink of the drill's own; an actor, the ServerApp's
process or the SuperLink is killed. ``deployment``: a SuperLink and two SuperNodes on
loopback; one of them, a ClientApp or the ServerApp is killed. Then everything is done
as ``docs/deployment.md`` says: restart what was killed, resume.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.results.checkpoints import checkpoint_rounds
from fedgraph_flwr.results.reader import SUMMARY, TIMES, load_summary, read_times
from fedgraph_flwr.rules import Value

from .. import flower
from ..processes import (
    Federation,
    environment,
    free_ports,
    has_loaded,
    is_orphan,
    kill,
)
from .inline import InlineEngine
from .targets import HOSTED, NUM_NODES, Target
from .trials import (
    NO_REASON,
    Moment,
    Outcome,
    Reference,
    measure,
)
from .witness import ledger_faults

_LIMIT_S, _VICTIM_S, _WAIT_S, _POLL_S = 900.0, 60.0, 0.5, 0.02
_REASON = re.compile(r"run failed: (\w+: .*)")
_START_S = 10.0
_SUBMISSIONS, _PAUSE_S = 5, 10.0
_OF_A_SITE = ("state-dir", "data-dir", "cache-dir")  # mean nothing in a run config


class _FlowerEngine(ABC):
    """Common part of the engines: kills at a moment, and says how a run ended.

    Parameters
    ----------
    out : path
        The drill's folder.
    """

    name = ""
    num_rounds = 0
    most_kills = 0
    loses_runs = True
    _COMMANDS: ClassVar[dict[str, str]]
    _TRAINS: ClassVar[str] = "clientapp"

    def __init__(self, out: Path) -> None:
        self._out, self._home = out, out / "flwr"
        self._witness = out / "witness.jsonl"
        self._told: set[str] = set()
        self._environment = environment(self._home, witness=self._witness)

    @property
    def victims(self) -> tuple[str, ...]:
        """Kinds of processes that are killed."""
        return tuple(self._COMMANDS)

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run or resume, and kill ``moment``'s victim."""
        since = time.time()
        run_id = self._patiently(config)
        killed = (
            moment.victim if moment and self._disturb(moment, folder, since) else ""
        )
        if killed in ("serverapp", "superlink"):
            self._clean_up()
            if ended(folder, since) is None:
                return Outcome(status="killed")
        self._await_end(folder, since)
        says = ""
        if ended(folder, since) is None:
            says = self._log(run_id)
            self._clean_up()
        return _outcome(folder, since, says, killed=bool(killed))

    def faults(self, folder: Path) -> list[str]:  # noqa: ARG002
        """Draws that are missing in the ledgers, each reported once."""
        new = [f for f in ledger_faults(self._witness) if f not in self._told]
        self._told |= set(new)
        return new

    def own_reference(self, target: Target, run: Path) -> Reference | None:  # noqa: ARG002
        """Return nothing: noise of a simulation is a function of the seed."""
        return None

    def _patiently(self, config: Mapping[str, Value]) -> str:
        """Submit until Flower takes the run: a busy SuperLink is not ready at once."""
        for left in reversed(range(_SUBMISSIONS)):
            try:
                return self._submit(config)
            except (RunFailedError, subprocess.TimeoutExpired):
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last one returns or raises")

    def _disturb(self, moment: Moment, folder: Path, since: float) -> bool:
        """Wait for the moment and kill; False if the run ended before."""
        begun = newest_round(folder)
        progress = min(moment.share * self.num_rounds, self.num_rounds - begun - 0.1)
        deadline = time.monotonic() + _LIMIT_S
        looked, has_served = 0.0, False
        while newest_round(folder) < begun + int(progress) or not has_served:
            if (now := time.monotonic()) > looked + _WAIT_S:
                looked, serves = now, self._serves()
                if ended(folder, since) is not None or (has_served and not serves):
                    return False
                has_served = serves
            if now > deadline:
                raise RunFailedError(f"a run hangs; see {folder}")
            self._keep()
            time.sleep(_POLL_S)
        time.sleep((progress % 1.0) * last_round_s(folder))
        # One that answers a message must be awaited.
        deadline = time.monotonic() + _VICTIM_S
        while ended(folder, since) is None and time.monotonic() < deadline:
            if found := self._living(moment.victim):
                kill([found[int(moment.share * 1000) % len(found)]])
                return True
            time.sleep(_POLL_S)
        return False

    def _serves(self) -> bool:
        return bool(self._living("serverapp"))

    def _living(self, kind: str) -> list[int]:
        """Find processes of a kind that have not outlived what started them.

        Those that train only once they are at work: for a ClientApp that has not begun
        Flower starts another.
        """
        found = flower.pids(self._home, self._COMMANDS[kind])
        if kind == self._TRAINS:
            found = [pid for pid in found if has_loaded(pid, "libtorch")]
        leads = kind in ("superlink", "supernode", "worker")
        return [pid for pid in found if leads or not is_orphan(pid)]

    def _await_end(self, folder: Path, since: float) -> None:
        """Wait until the ServerApp has ended, even if it has not started yet."""
        deadline = time.monotonic() + _LIMIT_S
        begin, seen = time.monotonic(), False
        while time.monotonic() < deadline:
            serves = self._serves()
            seen = seen or serves or ended(folder, since) is not None
            if not serves and (seen or time.monotonic() > begin + _VICTIM_S):
                return
            self._keep()
            time.sleep(_WAIT_S)
        raise RunFailedError(f"a run hangs; see {folder}")

    @abstractmethod
    def _submit(self, config: Mapping[str, Value]) -> str:
        """Start a run and return its id."""

    @abstractmethod
    def _log(self, run_id: str) -> str:
        """Return what a run's ServerApp has logged."""

    @abstractmethod
    def _keep(self) -> None:
        """Start processes again that a supervisor would start again."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Do what an operator does when the server's side has crashed."""


class RayEngine(_FlowerEngine):
    """``flwr run`` on a SuperLink of the drill's own."""

    name = "ray"
    num_rounds = 24
    most_kills = 3
    _COMMANDS: ClassVar[dict[str, str]] = {
        "actor": "ClientAppActor",
        "serverapp": "flwr-simulation",
        "superlink": "flower-superlink",
    }

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        first = free_ports(2)
        # The SuperLink reads its environment when the first run starts it.
        os.environ.update(
            self._environment,
            FLWR_LOCAL_CONTROL_API_PORT=str(first),
            FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(first + 1),
        )

    def _submit(self, config: Mapping[str, Value]) -> str:
        return str(flower.submit(config, num_nodes=NUM_NODES))

    def _log(self, run_id: str) -> str:
        return flower.read_log(int(run_id))

    def _keep(self) -> None:
        """Do nothing: actors that die are not replaced."""

    def _clean_up(self) -> None:
        self.close()  # make stop

    def close(self) -> None:
        """Stop the SuperLink and what it left behind."""
        kill(flower.pids(self._home))


class DeploymentEngine(_FlowerEngine):
    """A SuperLink and two SuperNodes on loopback; killed ones are started again."""

    name = "deployment"
    num_rounds = 4
    most_kills = 4
    _COMMANDS: ClassVar[dict[str, str]] = {
        "supernode": "flower-supernode",
        "clientapp": "flwr-clientapp",
        "serverapp": "flwr-serverapp",
        "superlink": "flower-superlink",
    }
    _NODE_CONFIG: ClassVar[str] = ""
    _WARM: ClassVar[tuple[int, ...]] = ()

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        places = f'data-path="{out}/molecules" cache-dir="{out}/cache"'
        places += self._NODE_CONFIG
        sites = [f'clients="{hosted}" {places}' for hosted in HOSTED]
        variables = self._environment
        self._federation = Federation(out, variables, sites, warm=self._WARM)

    def own_reference(self, target: Target, run: Path) -> Reference | None:
        """Run undisturbed with the secrets behind this run's noise."""
        if not target.is_private:
            return None
        secrets = {
            path.parent.name: path.read_text()
            for path in self._out.glob(f"site-*/{run.name}/client-*/noise-secret")
        }
        quiet = InlineEngine(self._out, sites=HOSTED, secrets=secrets)
        return measure(quiet, target, run.parent.parent / "undisturbed")

    def _submit(self, config: Mapping[str, Value]) -> str:
        self._federation.start()
        own = {k: v for k, v in config.items() if k not in _OF_A_SITE}
        return self._federation.submit(own)

    def _log(self, run_id: str) -> str:
        return self._federation.log(run_id)

    def _keep(self) -> None:
        self._federation.start()

    def _clean_up(self) -> None:
        """Wait for a ServerApp that outlives its SuperLink: it holds the folder."""
        deadline = time.monotonic() + _VICTIM_S
        while flower.pids(self._home, "flwr-serverapp") and time.monotonic() < deadline:
            time.sleep(_WAIT_S)

    def close(self) -> None:
        """End everything."""
        self._federation.close()


class ResidentEngine(DeploymentEngine):
    """The same with a worker at each site, which trains in the ClientApps' place."""

    name = "resident"
    _COMMANDS: ClassVar[dict[str, str]] = {
        "worker": "fedgraph_flwr.resident_worker",
        **DeploymentEngine._COMMANDS,
    }
    _TRAINS: ClassVar[str] = "worker"
    _NODE_CONFIG: ClassVar[str] = " resident=true"


class WarmEngine(DeploymentEngine):
    """The same with SuperNodes of ours, whose ClientApps are forks of one process.

    To the system a fork has the command of its parent: what is killed as a ClientApp
    may also be the process that forks, or the SuperExec.
    """

    name = "warm"
    _COMMANDS: ClassVar[dict[str, str]] = {
        **DeploymentEngine._COMMANDS,
        "supernode": "supernode.py --insecure",
        "clientapp": "supernode.py --serve",
    }
    _WARM: ClassVar[tuple[int, ...]] = tuple(range(len(HOSTED)))


def newest_round(folder: Path) -> int:
    """Return the round of the newest checkpoint of a trial, 0 without one."""
    newest = sorted((folder / "results").glob("*/"))[-1:]
    return max((t for run in newest for t in checkpoint_rounds(run)), default=0)


def last_round_s(folder: Path) -> float:
    """Return how long the last round of a trial took; a while before there is one."""
    for path in sorted((folder / "results").glob(f"*/{TIMES}"))[-1:]:
        if rows := read_times(path.parent):
            return rows[-1].wall_s
    return _START_S


def ended(folder: Path, since: float) -> Path | None:
    """Return the results folder of a run that has ended since then."""
    for path in (folder / "results").glob(f"*/{SUMMARY}"):
        if path.stat().st_mtime >= since:
            return path.parent
    return None


def _outcome(folder: Path, since: float, log: str, *, killed: bool = False) -> Outcome:
    path = ended(folder, since)
    if path is None:  # it was refused before it began: only the log says why
        found = _REASON.search(" ".join(log.split()))
        says = found.group(1)[:1000] if found else NO_REASON
        return Outcome(status="failed", says=says, killed=killed)
    summary = load_summary(path)
    says = summary["error"] or ""
    return Outcome(status=summary["status"], says=says, killed=killed)
