"""A run's record in one file: the rows of its rounds, and checkpoints to go on from.

A round is one transaction. A resume drops what it repeats in the transaction of the
first round that it completes. The CSV files beside it are exports.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.numpy import load

from ..core.database import Database, checksum
from ..core.errors import DataError
from ..core.files import encode, unwritable, write_text
from ..core.wire import NamedArrays
from .reader import LEDGER, ROUNDS, TIMES, RoundTimes

FILE, FAILURES = "run.sqlite3", "failures.csv"
# Tables by the names of the CSV files that they are exported to.
COLUMNS: Mapping[str, Sequence[str]] = {
    ROUNDS: ("round", "client", "split", "point", "metric", "value", "num_examples"),
    LEDGER: ("round", "client", "direction", "record", "bytes"),
    TIMES: RoundTimes._fields,
    FAILURES: ("round", "client", "reason"),
}
Rows = Mapping[str, Iterable[Sequence[Any]]]
_KEPT = 2  # checkpoints
_PART = 2**28  # bytes of one value; SQLite takes at most 10^9
_PAGE = 2**14
_SCHEMA = "".join(
    f"CREATE TABLE {name.removesuffix('.csv')} (at INTEGER NOT NULL,"
    f" {', '.join(columns)});"
    for name, columns in COLUMNS.items()
)
_SCHEMA += """
CREATE TABLE checkpoints (
    round INTEGER PRIMARY KEY, facts TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE parts (
    round INTEGER, part INTEGER, arrays BLOB NOT NULL, PRIMARY KEY (round, part));
"""


class RunFile:
    """``run.sqlite3`` of a run's folder.

    Each row has the round ``at`` which it was reported: a model that a client received
    in round t is measured then, and is that of round t - 1.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / FILE
        self._database = Database(self.path, _SCHEMA, page_bytes=_PAGE)
        self._exported: dict[str, int] = {}  # row up to which a CSV file goes

    def begin(self) -> None:
        """Make the file, and the CSV files with their headers.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        with self._database.transaction():
            pass
        self.export()

    @contextmanager
    def writing(self, *, after: int | None = None) -> Iterator[Writing]:
        """Write what is given meanwhile as one transaction.

        Parameters
        ----------
        after : int, optional
            A resume repeats the rounds after this one: they are dropped first.

        Raises
        ------
        StorageError
            The disk is full, or the folder read-only.
        """
        with self._database.transaction() as db:
            if after is not None:
                for name in COLUMNS:
                    db.execute(f"DELETE FROM {_table(name)} WHERE at > ?", (after,))
                for table in ("checkpoints", "parts"):
                    db.execute(f"DELETE FROM {table} WHERE round > ?", (after,))
            yield Writing(db)
        if after is not None:
            self._exported.clear()

    def export(self) -> None:
        """Bring the CSV files up to date.

        Raises
        ------
        StorageError
            One cannot be written.
        """
        for name, columns in COLUMNS.items():
            done = self._exported.get(name)
            query = f"SELECT rowid, {', '.join(columns)} FROM {_table(name)}"
            found = self._database.rows(
                f"{query} WHERE rowid > ? ORDER BY rowid", done or 0
            )
            text = io.StringIO(newline="")
            rows = ([] if done is not None else [columns]) + [row[1:] for row in found]
            csv.writer(text).writerows(rows)
            path = self._folder / name
            if done is None:
                write_text(path, text.getvalue())
            elif found:
                try:
                    with path.open("a", encoding="utf-8", newline="") as file:
                        file.write(text.getvalue())
                except OSError as error:
                    raise unwritable(path, error) from error
            self._exported[name] = found[-1][0] if found else done or 0

    def rows(self, name: str, *, until: int) -> list[Sequence[Any]]:
        """Rows of a table that were reported at most in a round, in their order."""
        columns = ", ".join(COLUMNS[name])
        query = f"SELECT {columns} FROM {_table(name)} WHERE at <= ? ORDER BY rowid"
        return self._database.rows(query, until)

    def last_round(self) -> int:
        """Last round whose model was measured; 0 for none."""
        query = f"SELECT max(round) FROM {_table(ROUNDS)}"
        return max((last or 0 for (last,) in self._database.rows(query)), default=0)

    def checkpoints(self) -> list[int]:
        """List rounds that have a checkpoint, ascending; none without a file."""
        query = "SELECT round FROM checkpoints ORDER BY round"
        return [number for (number,) in self._database.rows(query)]

    def facts(self, server_round: int) -> dict[str, Any]:
        """Facts of a checkpoint, which nobody compares with its checksum here."""
        ((facts,),) = self._database.rows(
            "SELECT facts FROM checkpoints WHERE round = ?", server_round
        )
        return dict(json.loads(facts))

    def read(self, server_round: int, cure: str) -> tuple[NamedArrays, dict[str, Any]]:
        """Read a checkpoint; ``cure`` says what to do about a damaged one.

        Raises
        ------
        DataError
            It is damaged.
        """
        ((facts, digest),) = self._database.rows(
            "SELECT facts, digest FROM checkpoints WHERE round = ?", server_round
        )
        parts = self._database.rows(
            "SELECT arrays FROM parts WHERE round = ? ORDER BY part", server_round
        )
        content = b"".join(part for (part,) in parts)
        if digest != checksum(facts, content):
            raise DataError(
                f"the checkpoint after round {server_round} in {self.path} is damaged:"
                f" its checksum is not that of its contents; {cure}"
            )
        return dict(load(content)), json.loads(facts)

    def command_to_drop(self, server_round: int) -> str:
        """Command by which an operator deletes a checkpoint."""
        return self._database.command(
            f"DELETE FROM checkpoints WHERE round = {server_round}"
        )


class Writing:
    """What one transaction writes."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def add(self, at: int, rows: Rows) -> None:
        """Add rows that were reported at a round, by table."""
        for name, found in rows.items():
            marks = ", ".join("?" * (1 + len(COLUMNS[name])))
            self.db.executemany(
                f"INSERT INTO {_table(name)} VALUES ({marks})",
                ((at, *row) for row in found),
            )

    def checkpoint(
        self, server_round: int, arrays: NamedArrays, facts: Mapping[str, Any]
    ) -> int:
        """Write a checkpoint, keep the last two, and return the older one's round."""
        content, text = encode(arrays), json.dumps(facts)
        self.db.execute("DELETE FROM parts WHERE round = ?", (server_round,))
        self.db.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)",
            (server_round, text, checksum(text, content)),
        )
        self.db.executemany(
            "INSERT INTO parts VALUES (?, ?, ?)",
            (
                (server_round, k, content[k : k + _PART])
                for k in range(0, len(content), _PART)
            ),
        )
        query = "SELECT round FROM checkpoints ORDER BY round DESC LIMIT ?"
        oldest = min(r for (r,) in self.db.execute(query, (_KEPT,)))
        for table in ("checkpoints", "parts"):
            self.db.execute(f"DELETE FROM {table} WHERE round < ?", (oldest,))
        return int(oldest)


def _table(name: str) -> str:
    return name.removesuffix(".csv")
