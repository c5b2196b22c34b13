"""``fedgraph site fingerprint``: fingerprints of keys at this site.

Operators of neighbouring sites read them to each other over a channel that the relay
does not carry, before a run (``--client 1 --make`` makes the key that outlives runs),
and write them into node-config ``peers``. Without that, each client's own fingerprint
must be the one that its neighbours have pinned for it after the first round; if one
differs, somebody is in between.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clients.sealing import (
    KEY,
    KeyRing,
    fingerprint_of,
    read_site_key,
    site_key_file,
)
from clients.store import IDENTITY, bound_runs, default_state_dir
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results.reader import blaming


def own_fingerprint(state_dir: Path, client_id: int, *, make: bool = False) -> str:
    """Fingerprint of the key of this site's client that outlives runs.

    Raises
    ------
    DataError
        It has none, and ``make`` is not set.
    """
    path = site_key_file(state_dir, client_id)
    if not (make or path.is_file()):
        raise DataError(
            f"client {client_id} has no key in {path.parent}; give the SuperNode's"
            " state-dir with --state-dir, and --make to make one"
        )
    return fingerprint_of(read_site_key(path).public_key().public_bytes_raw())


def fingerprints(state_dir: Path) -> list[str]:
    """Lines with the fingerprints of every client with a key below ``state_dir``.

    Raises
    ------
    DataError
        There is no key.
    """
    own = [_id(path.stem) for path in (state_dir / IDENTITY).glob("client-*.key")]
    keys = sorted(state_dir.glob(f"*/client-*/{KEY}"), key=lambda p: -p.stat().st_mtime)
    runs: dict[str, list[int]] = {}
    for key in keys:
        runs.setdefault(key.parents[1].name, []).append(_id(key.parent.name))
    if not own:
        raise DataError(
            f"no keys of {state_dir}; give the SuperNode's state-dir with --state-dir,"
            " and start a run whose letters are sealed, or make keys by --client 0"
            " --make"
        )
    lines = [
        f"client {c:<4} {own_fingerprint(state_dir, c)}  (own)" for c in sorted(own)
    ]
    for name, clients in runs.items():
        lines.append(f"run {name}")
        for client in sorted(clients):
            folder = state_dir / name / f"client-{client}"
            pinned = KeyRing(folder, client_id=client).pinned
            lines += [
                f"  client {client}: neighbour {c:<4}"
                f" {fingerprint_of(bytes.fromhex(pinned[c])[:32])}  (pinned)"
                for c in sorted(pinned)
            ]
    if strange := sorted(runs.keys() - bound_runs(state_dir).keys()):
        lines.append(
            f"warning: keys of {', '.join(strange)} belong to no run of Flower's known"
            " here: the server named a second experiment in one run; trust no pins of"
            " these"
        )
    return lines


def _id(name: str) -> int:
    return int(name.removeprefix("client-"))


def fingerprint(
    *,
    state_dir: Annotated[
        Path | None, typer.Option(help="The SuperNode's state-dir.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="This client's own, before any run.")
    ] = None,
    make: Annotated[
        bool, typer.Option("--make", help="With --client: make it if it is missing.")
    ] = False,
) -> int:
    """Print fingerprints of the keys by which letters of this site are sealed."""
    folder = state_dir or default_state_dir()
    with blaming(folder):
        if client is None:
            lines = fingerprints(folder)
        else:
            lines = [own_fingerprint(folder, client, make=make)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
