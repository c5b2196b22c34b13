"""A record of the noise that clients draw, to compare with their privacy ledgers."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from clients.privacy import noisy_views
from clients.privacy.ledger import Ledger
from clients.privacy.lifetime import FOLDER as LIFETIME
from clients.privacy.site import PrivateSite

_EPS = 1e-9
_SLACK = 1e-6  # of a sum of charges


def keep_witness(path: Path) -> None:
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


def ledger_faults(witness: Path) -> list[str]:
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
    over_runs: dict[Path, float] = defaultdict(float)
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
            over_runs[path.parents[2] / LIFETIME / path.parent.name] += amount
    for account, amount in over_runs.items():
        files = account.glob("*.json")
        told = sum(sum(json.loads(f.read_text())["edge"].values()) for f in files)
        if told < amount * (1 - _EPS):
            faults.append(f"{account}: {told:g} on record, {amount:g} drawn")
    return list(dict.fromkeys(faults))
