"""Runs of ``simulations.drill`` in child processes, which are killed with -9.

Children are forked from a server that has imported everything and computed nothing, so
that an attempt costs its run alone. A child keeps a witness of each noise it draws.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clients.privacy import noisy_views, site
from fedgraph_flwr import introduction
from fedgraph_flwr.errors import FedGraphError, RunFailedError
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.rules import Value

from ..forks import warm_context
from ..inline import run_inline
from .failing import Failures, draw_failures, failures_of, let_fail
from .targets import NUM_CLIENTS, NUM_NODES, NUM_ROUNDS, Target
from .trials import Moment, Outcome, Reference, measure
from .witness import keep_witness, ledger_faults

_LIMIT_S = 300.0


class InlineEngine:
    """Attempts in one process each.

    Parameters
    ----------
    out : path
        The drill's folder, which this engine leaves to its attempts.
    sites : sequence of str, optional
        Clients that each node of that process hosts, as a site with folders of its own;
        else two simulated nodes.
    secrets : mapping, optional
        What sites draw noise of, by the name of a client's folder.
    failures : mapping, optional
        Who fails when, in each attempt.
    failing : float
        Share of rounds in which a client fails, drawn anew for each attempt.
    rng : Random, optional
        Draws them.
    """

    name = "inline"
    victims: tuple[str, ...] = ("process",)
    num_rounds = NUM_ROUNDS
    most_kills = 2
    loses_runs = False

    def __init__(
        self,
        out: Path,  # noqa: ARG002
        *,
        sites: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
        failures: Failures | None = None,
        failing: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        self._sites, self._secrets = sites, dict(secrets or {})
        self._failures, self._failing = dict(failures or {}), failing
        self._rng = rng or random.Random(0)
        self._context = warm_context(__name__)
        first = self._context.Process(target=int)
        first.start()  # and with it the server, which imports for seconds
        first.join()

    def close(self) -> None:
        """Do nothing: no process is left."""

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run, and kill the process at ``moment``.

        Raises
        ------
        RunFailedError
            The run hangs.
        """
        failures = self._failures | draw_failures(
            self._rng, self._failing, num_rounds=NUM_ROUNDS, num_clients=NUM_CLIENTS
        )
        folder.mkdir(parents=True, exist_ok=True)
        told = folder / "outcome.json"
        told.unlink(missing_ok=True)
        at_file = moment.at_file if moment else None
        nodes = [_site(hosted, config) for hosted in self._sites]
        process = self._context.Process(
            target=_attempt,
            args=(dict(config), nodes, self._secrets, folder, at_file, failures),
        )
        process.start()
        if moment is not None and moment.at_file is None:
            process.join(moment.at_s)
            process.kill()
        process.join(_LIMIT_S)
        if process.is_alive():
            process.kill()
            raise RunFailedError(f"an attempt hangs; see {folder / 'log.txt'}")
        if process.exitcode == -signal.SIGKILL:
            return Outcome(status="killed")
        if not told.is_file():
            code = process.exitcode
            return Outcome(status="failed", says=f"exit {code}, see {folder}/log.txt")
        return Outcome(**json.loads(told.read_text()))

    def faults(self, folder: Path) -> list[str]:
        """Draws that are missing in the ledgers; see :func:`ledger_faults`."""
        return ledger_faults(folder / "witness.jsonl")

    def own_reference(self, target: Target, run: Path) -> Reference | None:
        """Run undisturbed with the failures of this run, if there may be any.

        Noise of a simulation is a function of the seed.
        """
        if not (self._failures or self._failing):
            return None
        quiet = InlineEngine(run, failures=failures_of(load_summary(run)))
        return measure(quiet, target, run.parents[1] / "undisturbed")


def _attempt(
    config: dict[str, Value],
    nodes: list[dict[str, str]],
    secrets: Mapping[str, str],
    folder: Path,
    at_file: tuple[int, str] | None,
    failures: Failures,
) -> None:
    """Run in the child; report how it ended, if it gets that far."""
    # Flower installs handlers of its own, which a forked child must not share.
    with (folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    import torch  # here: the drill itself needs none, its server has imported it

    for unseed in (random.seed, np.random.seed, torch.seed):
        unseed()  # children of one server would draw alike what no seed decides
    files = _count_renames(at_file)
    keep_witness(folder / "witness.jsonl")
    if failures:
        let_fail(failures)
    if secrets:
        _give(secrets)
    try:
        run_inline(config, num_nodes=NUM_NODES, node_configs=nodes or None)
    except FedGraphError as error:
        found: dict[str, Any] = {
            "status": "failed",
            "says": f"{type(error).__name__}: {error}",
        }
    else:
        found = {"status": "completed", "files": files[0]}
    (folder / "outcome.json").write_text(json.dumps(found))


def _count_renames(at_file: tuple[int, str] | None) -> list[int]:
    """Count files put in place; end before or after the chosen one.

    Everything that must survive is written under another name first: these are the
    moments at which the disk's content changes.
    """
    counted = [0]
    replace = os.replace

    def counting(*args: Any, **kw: Any) -> None:
        counted[0] += 1
        if at_file == (counted[0], "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args, **kw)
        if at_file == (counted[0], "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = counting
    return counted


def _site(hosted: str, config: Mapping[str, Value]) -> dict[str, str]:
    """Node-config of a site whose folders are those of the run."""
    places = {
        "state-dir": "state-dir",
        "cache-dir": "cache-dir",
        "data-path": "data-dir",
    }
    return {"clients": hosted} | {
        key: str(config[of_run]) for key, of_run in places.items() if of_run in config
    }


def _give(secrets: Mapping[str, str]) -> None:
    """Let clients draw noise with the secrets of the run that is compared."""
    found: Any
    for found in (site, introduction):  # which have the function under its name
        found.site_secret = lambda folder: _secret(folder, secrets[folder.name])


def _secret(folder: Path, secret: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "noise-secret").write_text(secret)
    return noisy_views.site_secret(folder)
