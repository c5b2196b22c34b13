"""SQLite files that several processes share, and that a crash leaves whole.

They have a rollback journal and full synchronisation: a commit outlives a power cut,
and locks work on shared disks, where a write-ahead log would not. A read returns all
its rows and leaves nothing open, so that no reader holds up a commit.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DataError, StorageError
from .files import is_there, make_folder, sync

_WAIT_S = 60.0  # for another process that writes
_OWNER_ALONE = 0o600
_PRAGMAS = (
    "journal_mode = TRUNCATE",
    "synchronous = FULL",
    "cache_size = -65536",  # KiB: a commit is written in one go
    "secure_delete = OFF",  # as of files that are deleted
)


# Connections that nobody uses, with the state of their files when they were last used.
_IDLE: dict[tuple[int, Path], tuple[sqlite3.Connection, tuple[int, ...]]] = {}
_MOST_IDLE = 8


def checksum(about: str, content: bytes) -> str:
    """SHA-256 of what a row says and of its bytes."""
    digest = hashlib.sha256(about.encode())
    digest.update(content)
    return digest.hexdigest()


def _state_of(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _begins_empty(_: sqlite3.Connection) -> None:
    """Leave a new file without rows."""


@dataclass(frozen=True)
class Database:
    """One file, whose connection a process keeps from call to call.

    Parameters
    ----------
    schema : str
        Statements that make the tables.
    version : int
        Of the schema, from 1. A file of another version is refused.
    mode : int
        Permissions of the file.
    page_bytes : int
        Size of a page: large ones suit long values.
    fill : callable
        Writes the first rows. A file is there with these, or not at all.
    """

    path: Path
    schema: str
    version: int = 1
    mode: int = _OWNER_ALONE
    page_bytes: int = 4096
    fill: Callable[[sqlite3.Connection], None] = _begins_empty

    def rows(self, query: str, *values: object) -> list[Any]:
        """Return all rows of a query; none if there is no file.

        Raises
        ------
        DataError
            The file is damaged, or of another version.
        StorageError
            It cannot be read.
        """
        with self._worded():
            if not is_there(self.path):
                return []
            with self._connected() as found:
                return found.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give a connection; all that it does is on the disk afterwards, or nothing.

        No other process writes meanwhile. The file is made if it is missing.

        Raises
        ------
        DataError, StorageError
            As :meth:`rows`; or it cannot be written.
        """
        with self._worded():
            if not is_there(self.path):
                self._make()
            with self._connected() as found:
                found.execute("BEGIN IMMEDIATE")
                try:
                    yield found
                    found.execute("COMMIT")
                finally:
                    if found.in_transaction:
                        found.execute("ROLLBACK")

    def command(self, statement: str) -> str:
        """Command by which an operator changes the file; names in it are quoted."""
        return shlex.join(["sqlite3", str(self.path), statement])

    def _make(self) -> None:
        """Make the file beside its place, then link it there: it is never half made."""
        folder, name = self.path.parent, self.path.name
        make_folder(folder, is_private=self.mode == _OWNER_ALONE)
        partial = folder / f".{name}.{secrets.token_hex(8)}"
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.mode))
            with closing(self._open(partial)) as made:
                made.executescript(
                    f"BEGIN; {self.schema}; PRAGMA user_version = {self.version};"
                )
                self.fill(made)
                made.execute("COMMIT")
            os.link(partial, self.path)
            sync(folder)
        except FileExistsError:  # another process was first
            pass
        finally:
            for path in (partial, partial.with_name(f"{partial.name}-journal")):
                path.unlink(missing_ok=True)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give this process's idle connection, or a new one, to one user at a time.

        A file that was replaced or changed by somebody else is opened anew. A forked
        process leaves the connections of its parent alone.
        """
        key = os.getpid(), self.path.absolute()
        found, state = _IDLE.pop(key, (None, None))
        if found is None or state != _state_of(self.path):
            if found is not None:
                found.close()
            found = self._open(self.path)
        try:
            (layout,) = found.execute("PRAGMA user_version").fetchone()
            if layout != self.version:
                raise DataError(
                    f"{self.path} has layout {layout}, expected {self.version}: it is"
                    " damaged, or another version of fedgraph_flwr wrote it; restore it"
                    " from a copy, go on with that version, or start a new run"
                )
            yield found
            own = [k for k in tuple(_IDLE) if k[0] == key[0]]
            if len(own) >= _MOST_IDLE:
                _IDLE.pop(own[0], None)
            _IDLE[key] = found, _state_of(self.path)
        except BaseException:
            found.close()
            raise

    def _open(self, path: Path) -> sqlite3.Connection:
        found = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            _WAIT_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        for pragma in (*_PRAGMAS, f"page_size = {self.page_bytes}"):
            found.execute(f"PRAGMA {pragma}")
        return found

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Raise errors of this application for those of SQLite and of the system."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StorageError(
                f"{self.path} cannot be used: {error}; make room on that disk, let this"
                " user read and write the file and its folder, or end what locks it,"
                " then resume the run or repeat the command"
            ) from error
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path} cannot be read: {error}; restore it from a copy, or start"
                " a new run"
            ) from error
