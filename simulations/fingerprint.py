"""Print fingerprints of keys at this site: ``python -m simulations.fingerprint``.

Operators of neighbouring sites read them to each other over a channel that the relay
does not carry. Each client's own fingerprint must be the one that its neighbours have
pinned for it; if one differs, somebody is in between.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clients.sealing import KeyRing, fingerprint
from clients.store import default_state_dir
from fedgraph_flwr.errors import DataError, FedGraphError


def fingerprints(state_dir: Path, run: str = "") -> list[str]:
    """Lines with the fingerprints of every client with a key below ``state_dir``.

    Parameters
    ----------
    state_dir : Path
        As given to the SuperNode.
    run : str
        Name of a run, which is that of its results folder; the last one if empty.

    Raises
    ------
    DataError
        There is no such run, or no key.
    """
    keys = sorted(state_dir.glob(f"{run or '*'}/client-*/identity.key"))
    if not keys:
        where = f"run {run!r} in {state_dir}" if run else str(state_dir)
        raise DataError(
            f"no keys of {where}; give the SuperNode's state-dir with --state-dir, and"
            " start a run with spreadgnn.seal = true: clients make keys at roll call"
        )
    run = keys[-1].parents[1].name  # names begin with the time
    lines = [f"run {run}"]
    folders = [k.parent for k in keys if k.parents[1].name == run]
    for folder in sorted(folders, key=lambda f: int(f.name.split("-")[1])):
        client = int(folder.name.split("-")[1])
        ring = KeyRing(folder, client_id=client)
        lines.append(f"client {client:<4} {fingerprint(ring.public_key)}  (own)")
        pinned = ring.pinned
        lines += [
            f"  neighbour {c:<4} {fingerprint(pinned[c])}  (pinned)"
            for c in sorted(pinned)
        ]
    return lines


def main(argv: list[str] | None = None) -> int:
    """Print them; 2 if there are none."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.fingerprint", description=__doc__
    )
    parser.add_argument("run", nargs="?", default="", help="default: the last one")
    parser.add_argument("--state-dir", type=Path, default=default_state_dir())
    arguments = parser.parse_args(argv)
    try:
        lines = fingerprints(arguments.state_dir, arguments.run)
    except FedGraphError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
