"""Runs of ``simulations.drill`` in child processes, which are killed with -9.

Children are forked from a server that has imported everything and computed nothing, so
that an attempt costs its run alone. A child keeps a witness of each noise it draws.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from clients.privacy import noisy_views
from clients.privacy.ledger import Ledger
from clients.privacy.lifetime import FOLDER as LIFETIME
from clients.privacy.site import PrivateSite
from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import FedGraphError, RunFailedError

from .drill_trials import Moment, Outcome
from .inline import run_inline

_LIMIT_S = 300.0
_EPS = 1e-9
_SLACK = 1e-6  # of a sum of charges
_PRELOAD = ("simulations.drill_inline", "torch_geometric", "networkx", "rdkit.Chem")


class InlineEngine:
    """Attempts in one process each.

    Parameters
    ----------
    num_nodes : int
        Nodes in that process: a message, and a moment to be killed, each.
    """

    name = "inline"
    victims: tuple[str, ...] = ("process",)
    loses_runs = False

    def __init__(self, *, num_nodes: int = 4) -> None:
        self._num_nodes = num_nodes
        self._context = _warm_context()
        first = self._context.Process(target=int)  # type: ignore[attr-defined]
        first.start()  # and with it the server, which imports for seconds
        first.join()

    def close(self) -> None:
        """Nothing runs on."""

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run, and kill the process at ``moment``.

        Raises
        ------
        RunFailedError
            The run hangs.
        """
        folder.mkdir(parents=True, exist_ok=True)
        told = folder / "outcome.json"
        told.unlink(missing_ok=True)
        at_file = moment.at_file if moment else None
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_attempt, args=(dict(config), self._num_nodes, folder, at_file)
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

    def faults(self, state: Path, folder: Path) -> list[str]:
        """Draws that are missing in the ledgers; see :func:`ledger_faults`."""
        return ledger_faults(state, folder / "witness.jsonl")


def _warm_context() -> BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    return context


def _attempt(
    config: dict[str, Value],
    num_nodes: int,
    folder: Path,
    at_file: tuple[int, str] | None,
) -> None:
    """Run in the child; tell how it ended, if it gets that far."""
    # Flower installs handlers of its own, which a forked child must not share.
    with (folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    files = _count_renames(at_file)
    _keep_witness(folder / "witness.jsonl")
    try:
        run_inline(config, num_nodes=num_nodes)
    except FedGraphError as error:
        found: dict[str, Any] = {
            "status": "failed",
            "says": f"{type(error).__name__}: {error}",
        }
    else:
        found = {"status": "completed", "files": files[0]}
    (folder / "outcome.json").write_text(json.dumps(found))


def _count_renames(at_file: tuple[int, str] | None) -> list[int]:
    """Count files put in place; die before or after the one that is wanted.

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


def _keep_witness(path: Path) -> None:
    """Write a line for each noise drawn, when it is drawn and not when it is charged.

    A charge gives credit; noise that is drawn without is told as ``uncharged``. Of
    noisy updates what counts is what may leave, told by its digest: a round that is
    repeated sends the same bytes again, at no further cost. Lines are in the kernel
    before the run goes on, so that a kill does not lose them.
    """
    lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    state: dict[str, Any] = {"path": "", "credit": 0.0}
    charge_edges, noisy_update = Ledger.charge_edges, PrivateSite.noisy_update
    drawing: Any = noisy_views  # a module, whose name is put in place of a function
    add_noise = drawing.add_noise

    def tell(path: str, kind: str, amount: float, **more: Any) -> None:
        line = {"path": path, "kind": kind, "amount": amount, **more}
        os.write(lines, (json.dumps(line) + "\n").encode())

    def edges(self: Ledger, positions: Any, epsilon: float) -> Any:
        account = charge_edges(self, positions, epsilon)
        state["path"], state["credit"] = str(self.path), epsilon * len(positions)
        return account

    def noise(triangle: Any, epsilon: float, *args: Any, **kw: Any) -> Any:
        state["credit"] -= epsilon
        more = {} if state["credit"] >= -_SLACK else {"uncharged": True}
        tell(state["path"], "edges", epsilon, **more)
        return add_noise(triangle, epsilon, *args, **kw)

    def release(self: PrivateSite, update: Any, partition: Any, **kw: Any) -> Any:
        noisy = noisy_update(self, update, partition, **kw)
        digest = hashlib.sha256(b"".join(a.tobytes() for a in noisy)).hexdigest()
        tell(str(self.ledger(partition).path), "update", 1.0, digest=digest)
        return noisy

    Ledger.charge_edges = edges  # type: ignore[method-assign]
    PrivateSite.noisy_update = release  # type: ignore[method-assign]
    drawing.add_noise = noise


def ledger_faults(state: Path, witness: Path) -> list[str]:
    """Compare what was drawn with the ledgers of runs and with those of all runs.

    Returns
    -------
    list of str
        One line for each ledger that says less than was drawn; empty if all is well.
    """
    drawn: dict[tuple[str, str], float] = defaultdict(float)
    faults = []
    released: set[str] = set()
    for text in witness.read_text().splitlines() if witness.exists() else []:
        line = json.loads(text)
        if line.get("uncharged"):
            faults.append(
                f"{line['kind']} drawn without a charge {line['path']}".strip()
            )
        if line.get("digest") in released:
            continue
        released |= {line["digest"]} if "digest" in line else set()
        drawn[line["path"], line["kind"]] += line["amount"]
    over_runs: dict[str, float] = defaultdict(float)
    for (name, kind), amount in drawn.items():
        if not name:  # told already: drawn before anything was charged
            continue
        path = Path(name)
        stored = json.loads(path.read_text()) if path.exists() else {}
        counts = stored.get("updates", {}).values()
        told = sum(stored.get("edge", [])) if kind == "edges" else sum(counts)
        if told < amount * (1 - _EPS):
            faults.append(f"{path}: {kind} {told:g} on record, {amount:g} drawn")
        if kind == "edges":
            over_runs[path.parent.name] += amount
    for client, amount in over_runs.items():
        files = (state / LIFETIME / client).glob("*.json")
        told = sum(sum(json.loads(f.read_text())["edge"].values()) for f in files)
        if told < amount * (1 - _EPS):
            faults.append(f"{LIFETIME}/{client}: {told:g}, {amount:g} drawn")
    return list(dict.fromkeys(faults))
