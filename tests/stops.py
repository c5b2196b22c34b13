"""Runs that are stopped and resumed, and what they leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import toys

from clients.site_database import site_database
from clients.store import STATES
from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import StorageError
from fedgraph_flwr.results.run_file import RunFile
from simulations.contract import Killed, killed_at_checkpoint

ROUNDS = {"num-server-rounds": 5}


def places(root: Path) -> dict[str, str]:
    return {"results-dir": str(root / "results"), "state-dir": str(root / "state")}


def stopped(run, method, root, *, at=3, error=None, **overrides) -> toys.Run:
    """Start a run that ends before checkpoint ``at`` is written."""
    config = {**ROUNDS, **places(root), **overrides}
    expected = StorageError if error else Killed
    with killed_at_checkpoint(at, error), pytest.raises(expected):
        run(method, **config)
    (path,) = (root / "results").iterdir()
    return toys.Run(path, config)


def resumed(run, part: toys.Run, method: str, **overrides) -> toys.Run:
    known = {k: v for k, v in part.overrides.items() if k != "method"}
    return run(method, **{**known, "resume": str(part.path), **overrides})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def damage_checkpoint(path: Path, server_round: int | None = None) -> None:
    """Change a bit of one checkpoint of a run, or of all."""
    with RunFile(path).writing() as writing:
        for number, part, blob in writing.db.execute("SELECT * FROM parts").fetchall():
            if server_round in (None, number):
                writing.db.execute(
                    "UPDATE parts SET arrays = ? WHERE round = ? AND part = ?",
                    (blob[:-1] + bytes([blob[-1] ^ 1]), number, part),
                )


def drop_checkpoints(path: Path, *rounds: int) -> None:
    """Delete checkpoints of a run, all without rounds."""
    file = RunFile(path)
    with file.writing() as writing:
        for number in rounds or file.checkpoints():
            writing.db.execute("DELETE FROM checkpoints WHERE round = ?", (number,))


def list_rounds(path: Path, folder: str) -> list[int]:
    if folder == "checkpoint":
        return RunFile(path).checkpoints()
    names = (p.stem for p in (path / folder).glob("round-*"))
    return sorted(int(n.removeprefix("round-")) for n in names)


def lose_client(state: Path, client: int) -> None:
    """Take from a state folder all that one client has left there."""
    for path in state.glob(f"*/{STATES}"):
        with Database(path, "").transaction() as db:
            for table in ("states", "begun", "trained"):
                db.execute(f"DELETE FROM {table} WHERE client = ?", (client,))
        shutil.rmtree(path.parent / f"client-{client}", ignore_errors=True)
    with site_database(state).transaction() as db:
        for table in ("edges", "draws", "updates"):
            db.execute(f"DELETE FROM {table} WHERE client = ?", (f"client-{client}",))
