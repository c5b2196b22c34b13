"""Print fingerprints of keys at this site: ``python -m simulations.fingerprint``.

Operators of neighbouring sites read them to each other over a channel that the relay
does not carry, before a run (``--client 1 --make`` makes the key that outlives runs),
and write them into node-config ``peers``. Without that, each client's own fingerprint
must be the one that its neighbours have pinned for it after the first round; if one
differs, somebody is in between.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clients.sealing import (
    IDENTITY,
    KEY,
    KeyRing,
    fingerprint_of,
    read_site_key,
    site_key_file,
)
from clients.store import bound_runs, default_state_dir
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.errors import ConfigError, DataError
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


def fingerprints(state_dir: Path, run: str = "") -> list[str]:
    """Lines with the fingerprints of every client with a key below ``state_dir``.

    Parameters
    ----------
    state_dir : Path
        As given to the SuperNode.
    run : str
        Name of a run, which is that of its results folder; all if empty, the newest
        first.

    Raises
    ------
    DataError
        There is no such run, or no key.
    """
    own = sorted((state_dir / IDENTITY).glob("client-*.key"), key=lambda p: _id(p.stem))
    runs: dict[str, list[Path]] = {}
    for key in sorted(state_dir.glob(f"*/client-*/{KEY}"), key=_age):
        runs.setdefault(key.parents[1].name, []).append(key.parent)
    if not own or (run and run not in runs):
        where = f"run {run!r} in {state_dir}" if run else str(state_dir)
        raise DataError(
            f"no keys of {where}; give the SuperNode's state-dir with --state-dir, and"
            " start a run whose letters are sealed, or make keys by --client 0 --make"
        )
    lines = []
    for path in own:
        client = _id(path.stem)
        lines.append(f"client {client:<4} {own_fingerprint(state_dir, client)}  (own)")
    known = bound_runs(state_dir)
    for name in [run] if run else runs:
        numbers = ", ".join(map(str, known.get(name, ())))
        lines.append(f"run {name} (Flower's {numbers or 'none'})")
        for folder in sorted(runs[name], key=lambda f: _id(f.name)):
            client = _id(folder.name)
            pinned = KeyRing(folder, client_id=client).pinned
            lines += [
                f"  client {client}: neighbour {c:<4}"
                f" {fingerprint_of(bytes.fromhex(pinned[c])[:32])}  (pinned)"
                for c in sorted(pinned)
            ]
    if strange := sorted(set(runs) - set(known)):
        lines.append(
            f"warning: keys of {', '.join(strange)} belong to no run of Flower's known"
            " here: the server named a second experiment in one run, or they were made"
            " before runs were bound to their experiment; trust no pins of these"
        )
    return lines


def _age(path: Path) -> float:
    """Newest first; names are the server's choice."""
    return -path.stat().st_mtime


def _id(name: str) -> int:
    return int(name.removeprefix("client-"))


@command
def main(argv: list[str] | None = None) -> int:
    """Print them; 2 if there are none."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.fingerprint", description=__doc__
    )
    parser.add_argument("run", nargs="?", default="", help="default: all")
    parser.add_argument("--state-dir", type=Path, default=default_state_dir())
    parser.add_argument("--client", type=int, help="this client's own, before any run")
    parser.add_argument("--make", action="store_true", help="with --client: if missing")
    arguments = parser.parse_args(argv)
    if arguments.make and arguments.client is None:
        raise ConfigError("--make needs --client")
    with blaming(arguments.state_dir):
        if arguments.client is not None:
            lines = [
                own_fingerprint(
                    arguments.state_dir, arguments.client, make=arguments.make
                )
            ]
        else:
            lines = fingerprints(arguments.state_dir, arguments.run)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
