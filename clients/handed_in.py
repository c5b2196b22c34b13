"""What a client remembers of the sums it was part of, so that no two tell it apart.

Two sums over sets that differ by one client, from one model, differ by that client's
update: training repeats itself to the bit. And two vectors under one pad differ by what
is below it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.words import shortened

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
