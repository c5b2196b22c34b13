"""Private state of clients on disk, and to which experiment a run binds it.

An experiment's folder has a file of states, one per client, round and run of Flower
that did the round. The server says from which of them a round goes on: the last whose
reply it has. A round whose reply was lost, or that a server which was resumed does not
know, counts for neither side. The server also says which of its checkpoints is the
oldest; every state from which it can be resumed is kept.

The server names the experiment in every message, and a client's keys, pins and private
state lie under that name. Roll call binds the run to the first name it hears; a message
of the same run that names another would find a client without pins or memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.audit_log import FILE as AUDIT_LOG
from fedgraph_flwr.core.config import RESUME_MAY_CHANGE
from fedgraph_flwr.core.database import Database, checksum
from fedgraph_flwr.core.errors import DataError, StorageError, WireError
from fedgraph_flwr.core.files import (
    encode,
    from_home,
    is_kept,
    make_private,
    names_in,
    remove,
    usable,
    write_npz,
)
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.wire import Lives
from fedgraph_flwr.core.words import shortened

from .site_database import EARLIER_ACCOUNTS, SITE_FILE, site_database

if TYPE_CHECKING:
    from torch import Tensor


STATES = "states.sqlite3"  # in an experiment's folder
IDENTITY = "identity"  # folder of the state folder, where experiments have theirs
_OWN = (SITE_FILE, f"{SITE_FILE}-journal", IDENTITY, EARLIER_ACCOUNTS, AUDIT_LOG)
_OF_EARLIER_VERSION = ("round-*.safetensors", "privacy-ledger.json", "rounds-done")
_NAME = re.compile(r"[^./\\\0-\x1f\x7f][^/\\\0-\x1f\x7f]*")
_LONGEST = 255  # bytes, as of names of files
_SCHEMA = """
CREATE TABLE states (
    client INTEGER, round INTEGER, run TEXT, sha256 TEXT NOT NULL,
    tensors BLOB NOT NULL, PRIMARY KEY (client, round, run));
CREATE TABLE begun (
    client INTEGER, round INTEGER, state_round INTEGER NOT NULL, mail TEXT NOT NULL,
    letters TEXT NOT NULL, PRIMARY KEY (client, round));
CREATE TABLE trained (client INTEGER, round INTEGER, PRIMARY KEY (client, round));
"""


def check_experiment(experiment: str) -> None:
    """Refuse a name that is not that of a folder for an experiment.

    A path would reach other experiments' state, or a fresh privacy record.

    Raises
    ------
    WireError
        It is a path, too long for a folder or empty, has control characters, or is that
        of a folder or file of the site's own.
    """
    # Operators read names in lists: a line break in one would forge a line there.
    is_plain = _NAME.fullmatch(experiment) is not None and experiment.isprintable()
    is_short = len(experiment.encode(errors="replace")) <= _LONGEST
    # Some file systems do not tell capitals from small letters.
    if not is_plain or not is_short or experiment.casefold() in _OWN:
        raise WireError(
            "the name of an experiment must be that of a plain folder, of at most"
            f" {_LONGEST} bytes, and none of {', '.join(map(repr, _OWN))}, got"
            f" {shortened(repr(experiment))} from the server; both ends must run the"
            " same version of fedgraph_flwr"
        )


def bind_run(
    root: Path,
    run_id: int,
    experiment: str,
    config: Mapping[str, Value] | None = None,
) -> None:
    """Bind a run at roll call; it ends what an earlier run did under the same name.

    Parameters
    ----------
    root : path
        State folder of the site.
    run_id : int
        Flower's.
    experiment : str
        Named by the server. A resumed run is a new one of Flower's with the old name.
    config : mapping, optional
        The run's; a run with another than the experiment's ends no earlier one.

    Raises
    ------
    WireError
        As :func:`check_run`, :func:`check_experiment` and :func:`bind_config`.
    """
    check_experiment(experiment)
    site = site_database(root)
    if not site.rows("SELECT 1 FROM runs WHERE run = ?", str(run_id)):
        if config is not None:
            bind_config(root, experiment, config)
        with site.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO runs (run, experiment) VALUES (?, ?)",
                (str(run_id), experiment),
            )
    check_run(root, run_id, experiment)


def begin_folder(root: Path, experiment: str, client: int) -> None:
    """Begin a client's folder of an experiment with sealed letters, once.

    The experiment's name is what keys are signed for: whoever has stolen a neighbour's
    key of it would open the new letters. What tells that a folder was begun lies
    outside of it.

    Raises
    ------
    WireError
        The client has begun it, and the folder is not there.
    """
    folder = root / experiment / f"client-{client}"
    site, what = site_database(root), f"{folder.name} is sealed"
    query = "SELECT number FROM notes WHERE experiment = ? AND what = ?"
    begun = site.rows(query, experiment, what)
    if begun and not is_kept(folder):
        again = f"DELETE FROM notes WHERE number = {begun[0][0]}"
        gone = f"the folder of client {client} in experiment {experiment!r} is gone"
        raise WireError(
            f"{gone} ({folder}), with the keys that it knew: refused, as a stolen key"
            " of a neighbour would open new letters; restore it, or start a new run. If"
            f" the client is to begin again, run {site.command(again)}"
        )
    with usable(folder):
        make_private(folder)
    _note_once(site, experiment, what, "")


def _note_once(site: Database, experiment: str, what: str, content: str) -> str:
    """Write a note of an experiment unless there is one; return what it says now."""
    query = "SELECT content FROM notes WHERE experiment = ? AND what = ?"
    if not (found := site.rows(query, experiment, what)):
        with site.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO notes (experiment, what, content)"
                " VALUES (?, ?, ?)",
                (experiment, what, content),
            )
            found = db.execute(query, (experiment, what)).fetchall()
    return str(found[0][0])


def is_known(root: Path, experiment: str) -> bool:
    """Whether a run of this experiment has been bound at this site."""
    query = "SELECT 1 FROM runs WHERE experiment = ?"
    return bool(site_database(root).rows(query, experiment))


def check_run(root: Path, run_id: int, experiment: str) -> None:
    """Refuse a message that names another experiment than its run is bound to.

    Raises
    ------
    WireError
        There was no roll call; it named another experiment; or a later run has taken
        this one's place.
    """
    site = site_database(root)
    found = site.rows(
        "SELECT experiment, (SELECT run FROM runs AS later WHERE later.experiment ="
        " runs.experiment ORDER BY number DESC LIMIT 1) FROM runs WHERE run = ?",
        str(run_id),
    )
    if not found:
        raise WireError(
            f"Flower run {run_id} is not known at this site ({site.path}): there was no"
            " roll call, or state-dir has changed; restore it, or resume"
        )
    ((bound, latest),) = found
    if bound != experiment:
        raise WireError(
            f"Flower run {run_id} is experiment {bound!r} at this site, now the server"
            f" names {experiment!r}: refused, as keys and memory of one experiment do"
            " not hold in another; do not trust that server"
        )
    if latest != str(run_id):
        raise WireError(
            f"Flower run {latest} goes on with experiment {experiment!r}:"
            f" run {run_id} is over at this site; stop it"
        )


def bind_config(root: Path, experiment: str, config: Mapping[str, Value]) -> None:
    """Bind an experiment to the run config that it began with, as a resume does.

    With another one a later run would use keys, private state and noise of this one
    for something else: repeat a round with other weights, or send in the open what was
    trained on sealed letters.

    Raises
    ------
    WireError
        A key has changed that no resume may change; or the experiment's folder is of an
        earlier version, or would be deleted by a dry run that did not make it.
    """
    now = {k: v for k, v in config.items() if k not in RESUME_MAY_CHANGE}
    site = site_database(root)
    known = "SELECT 1 FROM notes WHERE experiment = ? AND what = 'config'"
    if not site.rows(known, experiment):
        _check_unbound(root / experiment, is_dry=bool(now.get("dry-run")))
    text = json.dumps(now, sort_keys=True)
    before = json.loads(_note_once(site, experiment, "config", text))
    if before == now:
        return
    keys = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
    changed = [f"{k} was {before.get(k)!r} and is now {now.get(k)!r}" for k in keys]
    raise WireError(
        f"experiment {experiment!r} began at this site with another run config:"
        f" {', '.join(changed)}; refused, as keys, memory and noise of one config do"
        " not hold with another: start a new run"
    )


def _check_unbound(folder: Path, *, is_dry: bool) -> None:
    """Refuse to begin an experiment in a folder that another version has left."""
    old = (p for what in _OF_EARLIER_VERSION for p in folder.glob(f"client-*/{what}"))
    if any(old) or (is_dry and is_kept(folder)):
        raise WireError(
            f"experiment {folder.name!r} left state at this site under an earlier"
            f" version of fedgraph_flwr ({folder}), which this version cannot continue,"
            " and a dry run would delete: refused; end the run with that version, or"
            " start a new run under another name"
        )


def bind_data(folder: Path, client_id: int, identity: str) -> None:
    """Bind a client of an experiment to the data that it drew noise for.

    A round that is asked again has the noise that it had: on edges or labels that were
    changed meanwhile it would show the change. A server need not tell what the data
    were.

    Parameters
    ----------
    folder : path
        Of the client in the experiment.
    identity : str
        Fingerprint of its data, which no guess can be checked by.

    Raises
    ------
    DataError
        They are others than at first.
    """
    site, what = site_database(folder.parents[1]), f"data of {folder.name}"
    if _note_once(site, folder.parent.name, what, identity) != identity:
        raise DataError(
            f"data of client {client_id} are not those with which it began this"
            " experiment, and equal noise on both would show what has changed: restore"
            f" the data, or start a new run ({site.path} tells them apart)"
        )


def forget(
    root: Path,
    run_id: int,
    experiment: str,
    config: Mapping[str, Value],
    clients: Iterable[int],
) -> None:
    """Delete what clients of a dry run have left in a state folder.

    The last of them also deletes to what the run was bound.

    Raises
    ------
    WireError
        As :func:`check_run` and :func:`bind_config`: what another run has left, or what
        did not begin as a dry run, is never deleted.
    DataError, StorageError
        Something cannot be deleted.
    """
    check_run(root, run_id, experiment)
    bind_config(root, experiment, config)
    folder, states = root / experiment, states_of(root, experiment)
    if is_kept(states.path):
        with states.transaction() as db:
            for client in clients:
                db.execute("DELETE FROM states WHERE client = ?", (client,))
    with usable(folder):
        for client in clients:
            if is_kept(folder / f"client-{client}"):
                shutil.rmtree(folder / f"client-{client}")
        if names_in(folder, "client-*") or states.rows("SELECT 1 FROM states"):
            return  # clients of other nodes, which have the same state folder
        if is_kept(folder):
            shutil.rmtree(folder)
    with site_database(root).transaction() as db:
        for table in ("runs", "notes"):
            db.execute(f"DELETE FROM {table} WHERE experiment = ?", (experiment,))


def bound_runs(root: Path) -> dict[str, list[int]]:
    """List Flower's runs by the experiment they are bound to, each ascending."""
    found: dict[str, list[int]] = {}
    for experiment, run in site_database(root).rows("SELECT experiment, run FROM runs"):
        found.setdefault(experiment, []).append(int(run))
    return {name: sorted(runs) for name, runs in found.items()}


_ALONE = Lives()
_MOST_BYTES = 10**9  # that SQLite takes as one value
_PAGE = 2**16  # bytes
_MOST_HELD = 2**28  # bytes of states that wait for the end of a message, or are recent
# Last states that this process wrote, by file and client: what it is, hash, tensors.
_recent: dict[tuple[Path, int], tuple[str, str, bytes]] = {}


def states_of(root: Path, experiment: str) -> Database:
    """Database of an experiment's states, of all clients of the state folder."""
    return Database(root / experiment / STATES, _SCHEMA, page_bytes=_PAGE)


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/fedgraph-flwr``, or under ``~/.local/state``."""
    xdg = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    cure = "set state-dir to another one: in the run config, or in the node-config"
    return from_home(f"{xdg}/fedgraph-flwr", f"{cure} of a site")


@dataclass(frozen=True, kw_only=True)
class _State:
    """A state that is to be written, and what the server says of others."""

    store: ClientStore
    server_round: int
    after: int
    keep_from: int
    tensors: bytes


def clear_recent() -> None:
    """Forget the states that this process wrote last; they are on the disk."""
    _recent.clear()


class Unsaved:
    """States that one message has made, to be on the disk before its reply leaves."""

    def __init__(self) -> None:
        self._due: list[_State] = []
        self.clients: set[int] = set()

    def add(self, state: _State) -> None:
        """Let a state wait for :meth:`commit`, unless too much waits."""
        self._due.append(state)
        self.clients.add(state.store.client_id)
        if sum(len(s.tensors) for s in self._due) > _MOST_HELD:
            self.commit()

    def commit(self) -> None:
        """Write all states, or none.

        Raises
        ------
        DataError, StorageError
            The file cannot be used.
        WireError
            A later run of Flower goes on with the experiment by now.
        """
        if not self._due:
            return
        database = self._due[0].store.database
        with database.transaction() as db:
            # Now, so that states of a later run are not among those that go.
            for store in {s.store.lives.run: s.store for s in self._due}.values():
                store.check_run()
            digests = [_write(db, state) for state in self._due]
        if sum(len(tensors) for _, _, tensors in _recent.values()) > _MOST_HELD:
            _recent.clear()
        for s, digest in zip(self._due, digests, strict=True):
            about = s.store.about(s.server_round, s.store.lives.run)
            _recent[database.path, s.store.client_id] = about, digest, s.tensors
        self._due.clear()


def _write(db: sqlite3.Connection, state: _State) -> str:
    """Write a state, delete those that no server needs any more, return its hash."""
    store, server_round = state.store, state.server_round
    lives, client = store.lives, store.client_id
    query = "SELECT round, run FROM states WHERE client = ? ORDER BY round"
    found = [(r, int(run)) for r, run in db.execute(query, (client,))]
    # First, so that it takes pages that were free before, of which no copy is needed.
    digest = checksum(store.about(server_round, lives.run), state.tensors)
    size = len(state.tensors)
    written = db.execute(
        "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, zeroblob(?))",
        (client, server_round, str(lives.run), digest, size),
    )
    assert written.lastrowid is not None
    with db.blobopen("states", "tensors", written.lastrowid) as blob:
        blob.write(state.tensors)  # two copies less than as a value
    before = min(state.after, server_round - 1)
    done = [r for r, run in found if r <= before and run == lives.run_of(r)]
    first = max((r for r in (*done, server_round) if r <= state.keep_from), default=0)
    for r, run in found:
        counts = run == lives.run_of(r)
        is_needed = (r in done and r >= first) if counts else run in lives.spared
        is_later = bool(lives.run) and run == lives.run and r > server_round
        is_new = (r, run) == (server_round, lives.run)
        if not is_needed and not is_later and not is_new:
            db.execute(
                "DELETE FROM states WHERE client = ? AND round = ? AND run = ?",
                (client, r, str(run)),
            )
    return digest


class ClientStore:
    """Private state of one client in one experiment.

    Parameters
    ----------
    root : path
        State folder of the site.
    experiment : str
        To which the run is bound; the same after a resume.
    lives : Lives, optional
        Runs of Flower whose states these are; by default none, as outside of Flower.
    unsaved : Unsaved, optional
        Of the message that is answered; without it each state is written at once.
    """

    def __init__(
        self,
        root: Path,
        experiment: str,
        *,
        client_id: int,
        lives: Lives = _ALONE,
        unsaved: Unsaved | None = None,
    ) -> None:
        self._root, self.lives, self._unsaved = root, lives, unsaved
        self.experiment, self.client_id = experiment, client_id
        self.folder = root / experiment / f"client-{client_id}"
        self.database = states_of(root, experiment)

    def save(
        self,
        server_round: int,
        tensors: dict[str, Tensor],
        *,
        after: int = 0,
        keep_from: int = 0,
    ) -> None:
        """Write the state after ``server_round``.

        Parameters
        ----------
        after : int
            Round whose state this one goes on from, 0 for none. States between the two
            are dropped, as the server heard of none of them; so are those of runs that
            the server has left, if it has no checkpoint of theirs. States of later
            rounds of this run of Flower stay: this message was late, or sent twice.
        keep_from : int
            Round of the server's oldest checkpoint, 0 for none. Of the states up to
            ``after``, the one that goes with it and later ones are kept.

        Raises
        ------
        StorageError
            It cannot be written, or is too large.
        DataError, WireError
            As :meth:`Unsaved.commit`.
        """
        encoded = encode({n: t.detach().cpu().numpy() for n, t in tensors.items()})
        if len(encoded) > _MOST_BYTES:
            raise StorageError(
                f"private state of client {self.client_id} has {len(encoded)} bytes, at"
                f" most {_MOST_BYTES} can be kept; choose a smaller model, or an"
                " optimizer that remembers less"
            )
        state = _State(
            store=self,
            server_round=server_round,
            after=after,
            keep_from=keep_from,
            tensors=encoded,
        )
        unsaved = self._unsaved or Unsaved()
        unsaved.add(state)
        if unsaved is not self._unsaved:
            unsaved.commit()

    def check_run(self) -> None:
        """Refuse to store for a run that is over: the client has trained meanwhile."""
        if self.lives.run:
            check_run(self._root, self.lives.run, self.experiment)

    def load(self, server_round: int) -> dict[str, Tensor] | None:
        """State after ``server_round``; None after round 0, before which there is none.

        Raises
        ------
        DataError
            It is gone, or damaged.
        """
        if not server_round:
            return None
        from safetensors.torch import load  # here: a message that trains nobody

        run = self.lives.run_of(server_round)
        key = self.client_id, server_round, str(run)
        about = self.about(server_round, run)
        where = "FROM states WHERE client = ? AND round = ? AND run = ?"
        recent = _recent.get((self.database.path, self.client_id))
        if recent and recent[0] == about:
            found = self.database.rows(f"SELECT sha256 {where}", *key)
            if found == [recent[1:2]]:
                return load(recent[2])
        found = self.database.rows(f"SELECT sha256, tensors {where}", *key)
        what = f"private state of client {self.client_id} after round {server_round}"
        if not found:
            raise DataError(
                f"{what} is gone from {self.database.path} (run {run}): restore that"
                " file, start a new run, or let the site begin afresh by --node-config"
                " 'fresh-start=true', which the summary will tell"
            )
        ((sha256, tensors),) = found
        if sha256 != checksum(about, tensors):
            raise DataError(
                f"{what} in {self.database.path} has another checksum than its"
                " contents: it is damaged, or that of another run; restore the file"
                " from a copy, or start a new run"
            )
        return load(tensors)

    def about(self, server_round: int, run: int) -> str:
        """Say what a state is; its checksum is of this, too."""
        return json.dumps([self.experiment, self.client_id, server_round, run])

    def keep(self, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Write a result that stays at this site, ``<folder>/<name>``, atomically."""
        write_npz(self.folder / name, arrays)

    def keep_of_round(
        self, what: str, server_round: int, arrays: dict[str, NDArray[np.generic]]
    ) -> None:
        """Write a result of a round, ``<what>-<round>.npz``, and drop those of later.

        Rounds that are repeated have left them, and the last one tells of the run.
        """
        self.keep(f"{what}-{server_round:06d}.npz", arrays)
        for name in names_in(self.folder, f"{what}-*.npz"):
            number = name.removeprefix(f"{what}-").removesuffix(".npz")
            if number.isdecimal() and int(number) > server_round:
                remove(self.folder / name)

    def rounds(self) -> list[int]:
        """Return the rounds whose state is here, of any run, ascending."""
        query = "SELECT DISTINCT round FROM states WHERE client = ? ORDER BY round"
        return [r for (r,) in self.database.rows(query, self.client_id)]

    def newest(self, before: int) -> tuple[int, bool]:
        """Last round before another whose state is here, of any run; 0 for none.

        Also whether only runs did it that the server has left.
        """
        query = "SELECT round, run FROM states WHERE client = ? AND round < ?"
        found = self.database.rows(query, self.client_id, before)
        last = max((r for r, _ in found), default=0)
        return last, bool(last) and (last, str(self.lives.run_of(last))) not in found
