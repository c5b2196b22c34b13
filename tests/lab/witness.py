"""The drill's one view of the inside: noise that clients draw, and their accounts."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from clients.privacy import noisy_views, site
from clients.privacy.accounts import Ledger
from clients.site_database import site_database
from fedgraph_flwr.node import introduce

_EPS = 1e-9
_SLACK = 1e-6  # of a sum of charges


def keep_witness(path: Path) -> None:
    """Write a line for each noise when it is drawn, not when it is charged.

    A charge gives credit, and edges drawn without are ``uncharged``. A noisy update
    counts by its digest: a repeated round sends the same bytes at no further cost.
    Lines are in the kernel before the run goes on, so a kill does not lose them.
    """
    lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    account, credit = "", 0.0  # a client's folder, and what it has paid for
    charge_edges, noisy_update = Ledger.charge_edges, site.PrivateSite.noisy_update
    add_noise = noisy_views.add_noise

    def write(path, kind, amount, **more):
        line = {"path": str(path), "kind": kind, "amount": amount, **more}
        os.write(lines, (json.dumps(line) + "\n").encode())

    def edges(self, positions, epsilon):
        nonlocal account, credit
        charged = charge_edges(self, positions, epsilon)
        account = str(self.path.parent.joinpath(*self.whose))
        credit = epsilon * len(positions)
        return charged

    def noise(triangle, epsilon, *args, **kw):
        nonlocal credit
        credit -= epsilon
        more = {} if credit >= -_SLACK else {"uncharged": True}
        write(account, "edges", epsilon, **more)
        return add_noise(triangle, epsilon, *args, **kw)

    def release(self, update, partition, **kw):
        noisy = noisy_update(self, update, partition, **kw)
        digest = hashlib.sha256(b"".join(a.tobytes() for a in noisy)).hexdigest()
        write(self.folder, "update", 1.0, digest=digest)
        return noisy

    Ledger.charge_edges, site.PrivateSite.noisy_update = edges, release
    noisy_views.add_noise = noise


def account_faults(witness: Path) -> list[str]:
    """One line for each account of a client in a run that is below what was drawn."""
    drawn: dict[tuple[str, str], float] = defaultdict(float)
    faults, released = [], set()
    for text in witness.read_text().splitlines() if witness.exists() else []:
        line = json.loads(text)
        if line.get("uncharged"):
            faults.append(f"{line['kind']} without a charge {line['path']}".strip())
        if line.get("digest") in released:
            continue
        released |= {line["digest"]} if "digest" in line else set()
        drawn[line["path"], line["kind"]] += line["amount"]
    for (name, kind), amount in drawn.items():
        if not name:  # is a fault already: drawn before anything was charged
            continue
        client = Path(name)
        key = (client.parent.name, client.name)
        what = "SUM(epsilon) FROM edges" if kind == "edges" else "COUNT(*) FROM updates"
        of_run = f"SELECT {what} WHERE experiment = ? AND client = ?"
        ((spent,),) = site_database(client.parents[1]).rows(of_run, *key) or [(0,)]
        if (spent or 0) < amount * (1 - _EPS):
            faults.append(
                f"{client}: {kind} {spent or 0:g} on record, {amount:g} drawn"
            )
    return list(dict.fromkeys(faults))


def secrets_of(sites: Path, run: str) -> dict[str, str]:
    """Secrets of which the clients of a run draw their noise, by client."""
    found = sites.glob(f"site-*/{run}/client-*/noise-secret")
    return {path.parent.name: path.read_text() for path in found}


def draw_from(secrets: Mapping[str, str]) -> None:
    """Let this process's clients draw noise of these secrets."""

    def given(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "noise-secret").write_text(secrets[folder.name])
        return original(folder)

    original = noisy_views.site_secret
    site.site_secret = introduce.site_secret = given  # each has its own name for it
