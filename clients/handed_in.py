"""What a client remembers of the sums it was part of, so that no two tell it apart.

Two sums over sets that differ by one client, from one model, differ by that client's
update: training repeats itself to the bit. And two vectors under one pad differ by what
is below it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.secure_aggregation import Vector, follow
from fedgraph_flwr.core.words import shortened

from .site_database import site_database
from .store import states_of

_KEPT = """CREATE TABLE IF NOT EXISTS vectors (
    client INTEGER, round INTEGER, run TEXT, received TEXT NOT NULL,
    vector BLOB NOT NULL, PRIMARY KEY (client, round, run))"""
_HISTORIES = """CREATE TABLE IF NOT EXISTS histories (
    client INTEGER, round INTEGER, run TEXT, received TEXT NOT NULL,
    history TEXT NOT NULL, PRIMARY KEY (client, round, run))"""
_HISTORY = "SELECT history FROM histories WHERE client = ? AND round = ? AND run = ?"
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
        about = self.experiment, self.client, self.server_round
        known = "SELECT members, vector, label FROM sums WHERE"
        of_round = db.execute(
            f"{known} experiment = ? AND client = ? AND round = ?", about
        ).fetchall()
        of_model = db.execute(
            f"{known} client = ? AND received = ?", (self.client, self.received)
        ).fetchall()
        for what, rows, cure in (
            ("round", of_round, "bring all clients back, or start a new run"),
            (
                "model",
                of_model if over_runs else [],
                "start the run from another model, by another seed or init-from",
            ),
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
            (*about, self.label, members, self.received, self.vector),
        )


@dataclass(frozen=True, kw_only=True)
class Update:
    """A client's part of a sum before pads.

    ``received``: SHA-256 of what it trained from, or measured.
    """

    received: str
    vector: Vector


@dataclass(frozen=True)
class KeptUpdates:
    """What clients keep of a round: their history, and updates to be handed in.

    ``is_repeated_alike``: whoever repeats a round has the model that it had.
    """

    root: Path
    experiment: str
    server_round: int
    run: int
    is_repeated_alike: bool = True

    def noting(self) -> AbstractContextManager[sqlite3.Connection]:
        """Give a transaction for :meth:`note`."""
        return states_of(self.root, self.experiment).transaction()

    def note(
        self,
        db: sqlite3.Connection,
        client: int,
        came: str,
        before: tuple[int, int],
        missed: str,
    ) -> None:
        """Note what a client has trained from, after all before.

        Parameters
        ----------
        came : str
            Digest of what it was sent.
        before : tuple of int
            Round, and run of Flower, whose state it went on from.
        missed : str
            Digests of what others trained from meanwhile, in order.

        Raises
        ------
        WireError
            It has trained in this round from another model.
        """
        history = self.followed(db, client, came, before, missed)
        others = db.execute(
            "SELECT received FROM histories WHERE client = ? AND round = ?",
            (client, self.server_round),
        ).fetchall()
        now = (client, self.server_round, str(self.run))
        db.execute(
            "INSERT OR REPLACE INTO histories VALUES (?, ?, ?, ?, ?)",
            (*now, came, history),
        )
        db.execute(_KEPT)  # an update of another past
        where = "client = ? AND round = ? AND run = ?"
        db.execute(f"DELETE FROM vectors WHERE {where}", now)
        if self.is_repeated_alike and any(other != came for (other,) in others):
            raise WireError(
                f"client {client} has trained in round {self.server_round} from another"
                " model: refused, as exact losses of many models show its update; start"
                " a new run"
            )

    def followed(
        self,
        db: sqlite3.Connection,
        client: int,
        came: str,
        before: tuple[int, int],
        missed: str,
    ) -> str:
        """Return the history of a client that trains from this; see :meth:`note`."""
        db.execute(_HISTORIES)
        key = (client, before[0], str(before[1]))
        found = db.execute(_HISTORY, key).fetchall()
        start = found[0][0] if found else f"none of {before[0]}" * bool(before[0])
        return follow(start, [*missed.split(), came])

    def history(self, client: int) -> str:
        """Return what a client had trained from by the end of this round."""
        ((found,),) = states_of(self.root, self.experiment).rows(
            _HISTORY, client, self.server_round, str(self.run)
        )
        return str(found)

    def clear(self, clients: Iterable[int]) -> None:
        """Delete what clients have kept, after the last round."""
        with states_of(self.root, self.experiment).transaction() as db:
            db.execute(_KEPT)
            db.executemany("DELETE FROM vectors WHERE client = ?", zip(clients))

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
                    "DELETE FROM vectors WHERE client = ? AND round < ?",
                    (client, number),
                )
                row = (client, number, str(self.run), update.received)
                db.execute(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?)",
                    (*row, update.vector.tobytes()),
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
            It has kept nothing.
        """
        rows = states_of(self.root, self.experiment).rows(
            "SELECT received, vector FROM vectors WHERE client = ? AND round = ? AND"
            " run = ?",
            *(client, self.server_round, str(self.run)),
        )
        if not rows:
            raise WireError(
                f"client {client} is asked to hand in its update of round"
                f" {self.server_round}, in which it has not trained; both ends must run"
                " the same version of fedgraph_flwr"
            )
        ((received, blob),) = rows
        return Update(received=received, vector=np.frombuffer(blob, np.uint64).copy())
