"""What a client remembers of the sums it was part of, so that no two tell it apart.

Two sums over sets that differ by one client, from one model, differ by that client's
update: training repeats itself to the bit. And two vectors under one pad differ by what
is below it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.words import shortened

from .site_database import site_database
from .store import states_of

_KEPT = """CREATE TABLE IF NOT EXISTS updates (
    client INTEGER, round INTEGER, run TEXT, weight INTEGER NOT NULL,
    received TEXT NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (client, round, run))"""
_TABLE = """CREATE TABLE IF NOT EXISTS sums (
    experiment TEXT, client INTEGER, round INTEGER, label BLOB,
    members TEXT NOT NULL, received TEXT NOT NULL, vector TEXT NOT NULL,
    PRIMARY KEY (experiment, client, round, label))"""


@dataclass(frozen=True, kw_only=True)
class HandedIn:
    """One client's part of one sum.

    Parameters
    ----------
    label : bytes
        Of the sum.
    received, vector : str
        SHA-256 of the arrays that it trained from, and of its vector without pads.
    """

    experiment: str
    client: int
    server_round: int
    members: Sequence[int]
    label: bytes
    received: str
    vector: str

    def remember(self, db: sqlite3.Connection, *, over_runs: bool) -> None:
        """Write it into the site's database, unless it contradicts what is there.

        Parameters
        ----------
        over_runs : bool
            A model may have one set in all runs of the state folder, as at a site; in a
            simulation nobody looks on, and sets of clients are tried out.

        Raises
        ------
        WireError
            This round, or this model, was handed in for other clients; or another
            vector under this label.
        """
        db.execute(_TABLE)
        members = json.dumps(list(self.members))
        known = "SELECT members, vector, label FROM sums WHERE client = ?"
        of_round = db.execute(
            f"{known} AND experiment = ? AND round = ?",
            (self.client, self.experiment, self.server_round),
        ).fetchall()
        of_model = db.execute(
            f"{known} AND received = ?", (self.client, self.received)
        ).fetchall()
        for what, rows, cure in (
            ("round", of_round, "bring all clients back, or start a new run"),
            ("model", of_model if over_runs else [], "start the run with another seed"),
        ):
            for before, *_ in rows:
                if before != members:
                    raise WireError(
                        f"client {self.client} has handed in its update of round"
                        f" {self.server_round} or from the same model for clients"
                        f" {shortened(before)}, now it is asked to for {members}:"
                        f" refused, as two sums of one {what} over other clients show"
                        f" single updates; {cure}"
                    )
        if any(label == self.label and v != self.vector for _, v, label in of_round):
            raise WireError(
                f"client {self.client} has handed in another update of round"
                f" {self.server_round} under the same pads: refused, as the two differ"
                " by what pads cover; its data or its machine's arithmetic changed:"
                " restore them, or start a new run"
            )
        db.execute(
            "INSERT OR IGNORE INTO sums VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                self.experiment,
                self.client,
                self.server_round,
                self.label,
                members,
                self.received,
                self.vector,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Update:
    """A client's update before pads: its weight, and numbers by name as one vector.

    ``received``: SHA-256 of what it trained from.
    """

    weight: int
    received: str
    numbers: NDArray[np.float64]


@dataclass(frozen=True)
class KeptUpdates:
    """Updates of a round that wait on the disk until it is known who has trained."""

    root: Path
    experiment: str
    server_round: int
    run: int

    def write(self, updates: Mapping[int, Update]) -> dict[int, NDArray[np.int64]]:
        """Keep updates, drop those of earlier rounds; say for whom they were handed in.

        That is nobody, unless the round is repeated after its hand-in.
        """
        found: dict[int, NDArray[np.int64]] = {}
        number = self.server_round
        with states_of(self.root, self.experiment).transaction() as db:
            db.execute(_KEPT)
            for client, update in updates.items():
                db.execute(
                    "DELETE FROM updates WHERE client = ? AND round < ?",
                    (client, number),
                )
                row = (client, number, str(self.run), update.weight, update.received)
                blob = update.numbers.tobytes()
                db.execute(
                    "INSERT OR REPLACE INTO updates VALUES (?, ?, ?, ?, ?, ?)",
                    (*row, blob),
                )
        with site_database(self.root).transaction() as db:
            db.execute(_TABLE)
            for client in updates:
                rows = db.execute(
                    "SELECT members FROM sums WHERE experiment = ? AND client = ?"
                    " AND round = ?",
                    (self.experiment, client, number),
                ).fetchall()
                ids = json.loads(rows[0][0]) if rows else []
                found[client] = np.array(ids, np.int64)
        return found

    def read(self, client: int) -> Update:
        """Read what a client has kept in this round of this run.

        Raises
        ------
        WireError
            Nothing.
        """
        rows = states_of(self.root, self.experiment).rows(
            "SELECT weight, received, numbers FROM updates WHERE client = ? AND round"
            " = ? AND run = ?",
            *(client, self.server_round, str(self.run)),
        )
        if not rows:
            raise WireError(
                f"client {client} is asked to hand in its update of round"
                f" {self.server_round}, in which it has not trained; both ends must run"
                " the same version of fedgraph_flwr"
            )
        ((weight, received, blob),) = rows
        numbers = np.frombuffer(blob, np.float64)
        return Update(weight=weight, received=received, numbers=numbers)
