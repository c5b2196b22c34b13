"""What a reported number must carry: hashes, versions, the commit of the code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache

import numpy as np

from strategies.round_report import ClientInfo

from ..core.audit_log import hash_modules
from ..core.data import earth_mover_distance, hash_federation
from ..core.files import project_root
from ..core.wire import NamedArrays

DIRTY = "+dirty"  # end of a commit that does not tell the code


def split_hash(clients: Mapping[int, ClientInfo]) -> str:
    """SHA-256 over the clients' split hashes."""
    return hash_federation({c: i.split_hash for c, i in clients.items()})


def class_table(clients: Mapping[int, ClientInfo]) -> list[list[int]] | None:
    """Graphs per client and class, (num_clients, num_classes).

    None if a site keeps them to itself, or if clients hold different data sets, whose
    classes mean different things.
    """
    infos = [clients[c] for c in sorted(clients)]
    data_sets = {(i.raw_sha256, len(i.class_counts)) for i in infos}
    if len(data_sets) != 1 or not infos[0].class_counts:
        return None
    return [list(i.class_counts) for i in infos]


def partition_distance(clients: Mapping[int, ClientInfo]) -> float | None:
    """Earth mover's distance of the partition; None if classes are not known."""
    table = class_table(clients)
    return None if table is None else earth_mover_distance(np.array(table))


def hash_weights(
    models: Mapping[str, NamedArrays], client_hashes: Mapping[int, str]
) -> str:
    """SHA-256 over the server's models and the hashes of the clients' whole models."""
    digest = hashlib.sha256()
    for model in sorted(models):
        for name in sorted(models[model]):
            digest.update(f"{model}/{name}".encode())
            digest.update(np.ascontiguousarray(models[model][name]).tobytes())
    for client in sorted(client_hashes):
        digest.update(f"{client}:{client_hashes[client]}".encode())
    return digest.hexdigest()


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that compute.

    Not every run needs Ray or RDKit: a package that is not installed is "missing".
    """
    of_ml = ("torch", "torch-geometric", "numpy", "scikit-learn", "rdkit")
    found = dict.fromkeys(("flwr", "ray", *of_ml), "missing")
    for name in found:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def _code() -> str:
    """Hash of the modules that compute, the same in the bundle that Flower carries.

    Plug-ins are left out: the run config has their hashes.
    """
    computes = ("clients", "datasets", "fedgraph_flwr", "strategies")
    return hash_modules(computes, without="fedgraph_flwr/site")


class Origins:
    """What computed a run: the code and the packages, those of each part of it.

    Parts differ if they were changed between a run and its resume.

    Parameters
    ----------
    earlier : iterable of mapping
        :attr:`parts` as a checkpoint has them.
    """

    def __init__(self, earlier: Iterable[Mapping[str, str]] = ()) -> None:
        now = {"code": _code(), **versions()}
        others = [dict(part) for part in earlier if dict(part) != now]
        self.parts = [*others, now]
        # When the run begins: files may change while it goes on.
        self._commit = git_commit()

    @property
    def versions(self) -> dict[str, str]:
        """Versions of packages; of several, all."""
        return {
            name: ", ".join(dict.fromkeys(p[name] for p in self.parts if name in p))
            for name in versions()
        }

    @property
    def git_commit(self) -> str:
        """As :func:`git_commit`; "+dirty" also if the parts differ."""
        is_mixed = len(self.parts) > 1 and not self._commit.endswith(DIRTY)
        return self._commit + DIRTY * is_mixed

    def describe_changes(self) -> str:
        """Say what the last part does not share with the one before; "" for nothing."""
        before, now = ([{}, *self.parts])[-2:]
        if not before:
            return ""
        changed = [k for k in now if before.get(k) != now[k]]
        return ", ".join(
            "the code" if k == "code" else f"{k} {before.get(k)} -> {now[k]}"
            for k in changed
        )


def git_commit() -> str:
    """Commit of the code, with "+dirty" for local changes; "unknown" outside git.

    Plug-ins in ``plugins`` do not count: a run has the hash of those that it uses.
    """
    root = os.environ.get("FEDGRAPH_HOME", str(project_root()))
    try:
        commit = _git(root, "rev-parse", "HEAD")
        status = "status", "--porcelain", "--", ".", ":(exclude)plugins"
        return commit + (DIRTY if _git(root, *status) else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(root: str, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", root, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout.strip()
