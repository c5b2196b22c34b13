"""Record of the rounds a client has done, and of the mail each was done on.

A server may ask for a round again, after a resume. If it could change
what the client mixes, every answer would tell it something of the letters and the data.
So a round has one mail, to train or to evaluate, and a letter has one round. The record
is in the file of the states, which cannot remember that themselves.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from fedgraph_flwr.core.errors import WireError

from .store import ClientStore


def begun_before(store: ClientStore, server_round: int) -> int:
    """Last round before another that was begun; 0 for none."""
    query = "SELECT max(round) FROM begun WHERE client = ? AND round < ?"
    ((last,),) = store.database.rows(query, store.client_id, server_round) or [(0,)]
    return last or 0


class RoundsDone:
    """Memory of one client in one run.

    Parameters
    ----------
    db : sqlite3.Connection
        In a transaction of the store's database, so that no other message of this
        client reads letters meanwhile.
    """

    def __init__(self, db: sqlite3.Connection, store: ClientStore) -> None:
        self._db, self._client = db, store.client_id
        self._database = store.database

    def read_before(self, server_round: int) -> dict[int, int]:
        """Round of the newest letter of each sender that earlier rounds have read.

        Later rounds do not count: ``server_round`` may be repeated with its mail.
        """
        query = "SELECT letters FROM begun WHERE client = ? AND round < ?"
        found = self._db.execute(
            f"{query} ORDER BY round DESC LIMIT 1", (self._client, server_round)
        ).fetchone()
        return {int(j): sent for j, sent in json.loads(found[0])} if found else {}

    def note_trained(self, server_round: int) -> None:
        """Remember that a round was trained, before its state is dropped."""
        values = (self._client, server_round)
        self._db.execute("INSERT OR IGNORE INTO trained VALUES (?, ?)", values)

    def begin(
        self,
        server_round: int,
        mail: str,
        *,
        state_round: int,
        read: Mapping[int, int],
    ) -> None:
        """Begin a round, before anything is computed.

        Parameters
        ----------
        mail : str
            SHA-256 of what will be mixed, in hexadecimal digits.
        state_round : int
            Round after which the client's state was stored; 0 before its first.
        read : mapping of int to int
            Round of the newest letter of each sender that was ever read, this mail's
            among them.

        Raises
        ------
        WireError
            The round was done with other mail, or from another state. Or it is new, and
            it was left out before a later one, or starts from before the newest state
            that there was: the server would get another branch.
        """
        query = "SELECT round, state_round, mail, letters FROM begun WHERE client = ?"
        done = {r: tuple(of) for r, *of in self._db.execute(query, (self._client,))}
        # A site may delete a round's record, to have it done on other mail.
        query = "SELECT round FROM trained WHERE client = ?"
        dropped = (r for (r,) in self._db.execute(query, (self._client,)) if r in done)
        trained = max((*(of[0] for of in done.values()), *dropped), default=0)
        now = (state_round, mail, json.dumps(sorted(read.items())))
        if server_round in done:
            what = " again, with other mail or state than before"
            wrong = "" if done[server_round] == now else what
        elif server_round < max(done, default=0):
            wrong = f", which was left out before round {max(done)} was done"
        elif state_round < trained:
            wrong = (
                f" with the state after round {state_round}, but round {trained} was"
                " trained before and not repeated"
            )
        else:
            wrong = ""
        if wrong:
            these = f"client = {self._client} AND round >= {server_round}"
            command = self._database.command(f"DELETE FROM begun WHERE {these}")
            raise WireError(
                f"asked for round {server_round}{wrong}: refused, as a relay could try"
                " any mail without end. If the server was resumed from an older round,"
                f" and others took part than before, run {command} to allow it once"
            )
        self._db.execute(
            "INSERT OR IGNORE INTO begun VALUES (?, ?, ?, ?, ?)",
            (self._client, server_round, *now),
        )

    def forget_before(self, server_round: int) -> None:
        """Drop rounds that cannot be asked for again, as no state before them is left.

        ``server_round`` is the oldest whose state is kept.
        """
        for table in ("begun", "trained"):
            self._db.execute(
                f"DELETE FROM {table} WHERE client = ? AND round < ?",
                (self._client, server_round),
            )
