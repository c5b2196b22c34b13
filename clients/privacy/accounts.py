"""Accounts of what a site's privacy has cost: each run's, and over a lifetime.

Every charge is on the disk before what it pays for: edges are read, or an update is
sent. A crash then counts a release that did not happen and never misses one that did.
Nothing is taken back. What is released again, byte for byte, is not charged again; it
is drawn from the disk (views) or from a stream of the same name (updates).

Two notions are counted apart, as their numbers do not compare:

``edge``: epsilon per graph, for one undirected edge of that graph. Draws of a graph add
up; different graphs hold different edges, so a client's total is the maximum.

``client``: (epsilon, delta) of noisy model updates, see
:mod:`clients.privacy.gaussian`.

Draws of a graph add up: those of one run, of all runs, and of all clients that one site
hosts, whatever their ids. In the state folder, beside all experiments, each client has
a file per data set that counts by row of the data set; a row's account is the sum over
all of these files. The same is kept for each experiment alone.

Nothing in a file, not even its name, depends on the graphs: an account that started
afresh with changed files would tell that they changed. Other data under the same name
are therefore counted together, too much rather than too little; a site that really
holds new data starts with a new state folder. Of data that come as a file or folder per
client each has rows of its own. Its account goes by its name and by the client's id: to
change one of the two begins no other.

A site asks several times per client and message. To read every client's file each time
would take a time that grows with the square of their number.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError, PrivacyBudgetError
from fedgraph_flwr.core.files import (
    is_there,
    make_private,
    names_in,
    replacing,
    unwritable,
)
from fedgraph_flwr.core.privacy_settings import PrivacySettings

_CHECKSUM = "sha256"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside ``path``: two processes cannot lose a charge.

    Raises
    ------
    StorageError
        There is no place for it.
    """
    beside = path.with_suffix(".lock")
    try:
        make_private(path.parent)
        lock = beside.open("w")
    except OSError as error:
        raise unwritable(beside, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file; it is on the disk when this returns."""
    text = json.dumps(content)
    with replacing(path) as partial:
        partial.write_text(json.dumps({**content, _CHECKSUM: _digest(text)}))


def parse_record(text: str) -> dict[str, Any]:
    """Make sense of what :func:`write_record` wrote.

    Raises
    ------
    ValueError
        It is no JSON, or not what was written. Records of earlier versions have no
        checksum, and count all the same.
    """
    stored = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError("it holds no table")
    checksum = stored.pop(_CHECKSUM, None)
    if checksum not in (None, _digest(json.dumps(stored))):
        raise ValueError("its checksum is not that of its contents")
    return stored


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Spent = dict[int, float]  # epsilon by row
# Two changes within a tick of the file system's clock may look like one.
_TICK_NS = 100_000_000
_UNITS = 2**1074  # that 1 has; one is the smallest float


class Tally:
    """Epsilon by row, summed over some files of each client.

    Parameters
    ----------
    folder : path
        Holds the folders of clients, ``client-<id>``.
    names : sequence of str
        Of the files that count, in each client's folder.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, names
        self._lock = Lock()
        self._files: dict[str, _File] = {}
        self._sums: defaultdict[int, int] = defaultdict(int)  # by row, in units

    def look(self) -> None:
        """Take in what has changed on the disk.

        Raises
        ------
        DataError
            A file cannot be read.
        """
        folder = str(self._folder)
        try:
            clients = names_in(self._folder, "client-*")
        except OSError as error:
            raise unreadable(self._folder, error) from error
        paths = {f"{folder}/{c}/{name}" for c in clients for name in self._names}
        with self._lock:
            for path in self._files.keys() | paths:
                known = self._files.get(path)
                found = _read_if_changed(path, known) if path in paths else None
                if found is not known:
                    self._exchange(path, known, found)

    def total(self, row: int) -> float:
        """Return what was spent on a row in all files, rounded once."""
        return self._sums.get(row, 0) / _UNITS

    def counts(self, path: Path) -> bool:
        """Whether a file is one of those that are summed, if it is there."""
        return path.name in self._names

    def _exchange(self, path: str, known: _File | None, found: _File | None) -> None:
        before, now = (file.spent if file else {} for file in (known, found))
        for row in before.keys() | now.keys():
            old, new = before.get(row, 0.0), now.get(row, 0.0)
            if old != new:
                self._sums[row] += _exact(new) - _exact(old)
        if found is None:
            del self._files[path]
        else:
            self._files[path] = found


def _exact(epsilon: float) -> int:
    """Return a number in units of the smallest one, so that sums lose nothing."""
    numerator, denominator = epsilon.as_integer_ratio()
    return numerator * (_UNITS // denominator)


@lru_cache(maxsize=16)
def tally(folder: Path, names: tuple[str, ...]) -> Tally:
    """Return the tally that this process keeps of a folder's files."""
    return Tally(folder, names)


def read_spent(path: str) -> Spent:
    """Epsilon by row in one file; none if there is none.

    Raises
    ------
    DataError
        It cannot be read.
    """
    found = _read_if_changed(path, None)
    return dict(found.spent) if found else {}


def unreadable(path: Path, error: Exception) -> DataError:
    """Word the error for a record of privacy that cannot be read."""
    cure = "restore the file from a copy, or delete it and add up by hand"
    if isinstance(error, PermissionError):
        cure = "let this user read and write it"
    return DataError(
        f"privacy record {path} cannot be read: {error!r}; what earlier runs spent is"
        f" unknown, so nothing more is released: {cure}"
    )


@dataclass(frozen=True)
class _File:
    spent: Spent
    mark: tuple[int, ...]  # of the file; empty if a change may leave it as it is


def _read_if_changed(path: str, known: _File | None) -> _File | None:
    """Read a file, unless it is as it was; None if there is none."""
    try:
        # Opened, since other machines' changes of a shared folder are seen then.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mark, changed_at = _mark(descriptor)
            if known is not None and known.mark == mark:
                return known
            is_old = time.time_ns() - changed_at > _TICK_NS
            with open(descriptor, encoding="utf-8", closefd=False) as file:
                stored = parse_record(file.read())["edge"]
        finally:
            os.close(descriptor)
        spent = {int(row): float(epsilon) for row, epsilon in stored.items()}
        if not all(0 <= epsilon < math.inf for epsilon in spent.values()):
            raise ValueError("spent epsilons must be finite and >= 0")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(Path(path), error) from error
    return _File(spent, mark if is_old else ())


def _mark(descriptor: int) -> tuple[tuple[int, ...], int]:
    """Return what tells a file from itself after a change, and when it changed."""
    about = os.fstat(descriptor)
    times = about.st_mtime_ns, about.st_ctime_ns
    return (about.st_ino, about.st_size, *times), max(times)


EpsilonOf = Callable[[Mapping[float, int], float], float]
FOLDER = "privacy-lifetime"  # of the state folder, where experiments have theirs
OF_RUN_FOLDER = "privacy-run"  # of an experiment, where clients have theirs
ROUNDING = 1e-9  # relative: a budget of 0.3 allows three draws of 0.1
_OF_RUN = "privacy.budget-max (privacy.budget-scope = 'lifetime')"
_OF_SITE = "edge-epsilon-max of this site's policy"
_UPDATES = "updates.json"


class EdgeRecord:
    """Epsilon spent on the graphs of a data set, by all clients of a folder.

    Parameters
    ----------
    folder : path
        Of the site: outside all experiments, or of one experiment.
    client : str
        Whose draws these are, "client-<id>"; the others' are read only.
    data : str
        Name of the data set.
    rows : int64 array, shape (num_graphs,)
        Row in the data set of each of the client's graphs in this run. A client that
        holds a graph twice pays for it twice.
    source : str
        Name of the file that ``rows`` are of, where clients have files of their own.
        What the client drew of files of other names counts too: one may have been
        renamed. So does what versions without that counted for the data set.
    budget, site_budget : float
        Largest total of a row, that of the run and that of the site; infinite only
        counts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        client: str,
        data: str,
        rows: IntArray,
        source: str = "",
        budget: float = math.inf,
        site_budget: float = math.inf,
    ) -> None:
        self._folder = folder
        name = f"{data}--{source}" if source else data
        self._names = tuple(_file_name(n) for n in dict.fromkeys((name, data)))
        self.path = folder / client / self._names[0]
        self._renamed = _file_name(f"{data}--").replace(".json", "*.json")
        self._rows = rows
        self._budget, self._whose = min((budget, _OF_RUN), (site_budget, _OF_SITE))

    def totals(self, *parts: IntArray) -> list[float]:
        """Largest epsilon over the graphs at each of some positions, whoever drew."""
        total = self._look()
        return [max(map(total, self._at(p)), default=0.0) for p in parts]

    def own(self, positions: IntArray) -> float:
        """Largest epsilon that the client itself has drawn of these graphs."""
        spent = read_spent(str(self.path))
        return max((spent.get(r, 0.0) for r in self._at(positions)), default=0.0)

    def charge(self, positions: IntArray, epsilon: float) -> None:
        """Add ``epsilon`` to the graphs at ``positions``; to be called before a draw.

        Raises
        ------
        PrivacyBudgetError
            A total would exceed the budget. Nothing is charged then.
        DataError
            A file cannot be read.
        """
        with locked(self._folder / self._names[-1]):
            own, total_of = read_spent(str(self.path)), self._look()
            for row, times in Counter(self._at(positions)).items():
                total = total_of(row) + times * epsilon
                if not total <= self._budget * (1 + ROUNDING):
                    raise PrivacyBudgetError(
                        "this draw would bring the total epsilon over all runs of row"
                        f" {row} to {total:.6g}; {self._whose} allows"
                        f" {self._budget:.6g}. Nothing was read. What the clients of"
                        f" this site spent before stands in {self._folder}; raise the"
                        " budget, or stop here"
                    )
                own[row] = own.get(row, 0.0) + times * epsilon
            write_record(self.path, {"edge": own})

    def _at(self, positions: IntArray) -> list[int]:
        return list(map(int, self._rows[positions]))

    def _look(self) -> Callable[[int], float]:
        """Return the sum of a row over all files that count for this client."""
        counted = tally(self._folder, self._names)
        counted.look()
        place = self.path.parent
        try:
            renamed = [place / name for name in names_in(place, self._renamed)]
        except OSError as error:
            raise unreadable(place, error) from error
        others = [read_spent(str(p)) for p in renamed if not counted.counts(p)]

        def total(row: int) -> float:
            return counted.total(row) + sum(spent.get(row, 0.0) for spent in others)

        return total


class UpdateRecord:
    """Noisy updates that a site has sent in all runs, by noise multiplier.

    Those of all its clients count together, whatever their ids and their data: too much
    rather than too little, as one operator may give the same data another id.

    Parameters
    ----------
    folder : path
        Of the site, outside all experiments.
    budget, delta : float
        Largest epsilon of all of them together at this delta; infinite only counts.
    """

    def __init__(self, folder: Path, *, budget: float, delta: float) -> None:
        self.path = folder / _UPDATES
        self._budget, self._delta = budget, delta

    def charge(self, noise_multiplier: float, epsilon_of: EpsilonOf) -> None:
        """Count one more update; to be called before it is sent.

        Raises
        ------
        PrivacyBudgetError
            The total would exceed the budget. Nothing is charged then.
        DataError
            The file cannot be read.
        """
        with locked(self.path):
            updates = self._read()
            updates[noise_multiplier] = updates.get(noise_multiplier, 0) + 1
            if self._budget < math.inf:
                total = epsilon_of(updates, self._delta)
                if not total <= self._budget * (1 + ROUNDING):
                    raise PrivacyBudgetError(
                        "this update would bring the total epsilon of this site's"
                        f" updates over all runs to {total:.6g}, at delta"
                        f" {self._delta:g}; update-epsilon-max of its policy allows"
                        f" {self._budget:.6g}. Nothing was sent"
                    )
            write_record(self.path, {"updates": updates})

    def _read(self) -> dict[float, int]:
        try:
            if not is_there(self.path):
                return {}
            stored = parse_record(self.path.read_text())["updates"]
            found = {float(s): int(n) for s, n in stored.items()}
            if not all(s > 0 and n >= 0 for s, n in found.items()):
                raise ValueError("multipliers must be > 0, and counts >= 0")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(self.path, error) from error
        return found


def _file_name(data: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]', '_', data)}.json"


EDGE_BUDGET = PrivacySettings.key("budget_max")
UPDATE_BUDGET = PrivacySettings.key("update_budget_max")
FILE = "privacy-ledger.json"


@dataclass(kw_only=True)
class Account:
    """A ledger's content.

    Parameters
    ----------
    edge : float64 array, shape (num_graphs,)
        Epsilon spent on each of the client's graphs.
    num_draws : int
        How many times edges were charged.
    updates : dict of float to int
        How many noisy updates were sent with each noise multiplier.
    client : tuple of float
        (epsilon, delta) of all these updates together.
    releases : tuple of str
        Names of these updates, oldest first.
    """

    edge: NDArray[np.float64]
    num_draws: int = 0
    updates: dict[float, int] = field(default_factory=dict)
    client: tuple[float, float] = (0.0, 0.0)
    releases: tuple[str, ...] = ()


class Ledger:
    """Privacy ledger of one client; every call reads and writes the file anew.

    Parameters
    ----------
    folder : path
        On the client's disk; the same after a restart and after a resume. What other
        runs drew is not counted here.
    num_graphs : int
        Graphs of the client.
    dp_budget_max : float
        Largest total epsilon per graph; infinite allows everything.
    update_budget_max : float
        Largest total epsilon of noisy updates.
    allow : bool
        Whether edges and updates may be charged to the same ledger.
    records : sequence of EdgeRecord
        Are charged with every draw too, before this ledger.
    updates : UpdateRecord, optional
        Is charged with every noisy update too, before this ledger.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_graphs: int,
        dp_budget_max: float = math.inf,
        update_budget_max: float = math.inf,
        allow: bool = False,
        records: Sequence[EdgeRecord] = (),
        updates: UpdateRecord | None = None,
    ) -> None:
        self.path = folder / FILE
        self._num_graphs = num_graphs
        self._edge_budget, self._update_budget = dp_budget_max, update_budget_max
        self._allow = allow
        self._records, self._updates = records, updates

    def read(self) -> Account:
        """Read what has been spent; nothing if there is no file.

        Raises
        ------
        DataError
            The file cannot be read, or is that of another number of graphs.
        """
        try:
            if not is_there(self.path):
                return Account(edge=np.zeros(self._num_graphs))
            stored = parse_record(self.path.read_text())
            account = Account(
                edge=np.array(stored["edge"], np.float64),
                num_draws=int(stored["num_draws"]),
                updates={float(s): int(n) for s, n in stored["updates"].items()},
                client=(float(stored["client"][0]), float(stored["client"][1])),
                # none in files of earlier versions
                releases=tuple(str(name) for name in stored.get("releases", [])),
            )
            if not (account.edge >= 0).all():
                raise ValueError("spent epsilons must be >= 0")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"privacy ledger {self.path} cannot be read: {error!r}; what was spent"
                " is unknown, so nothing more is released: restore the file from a"
                " copy, or start a new experiment and count both"
            ) from error
        if len(account.edge) != self._num_graphs:
            raise DataError(
                f"privacy ledger {self.path} is that of {len(account.edge)} graphs, the"
                f" client holds {self._num_graphs}; use another state folder for other"
                " data"
            )
        return account

    def check_drawn(self, positions: IntArray, epsilon: float) -> None:
        """Refuse to go on with a draw of the graphs at ``positions`` if it is not here.

        Raises
        ------
        DataError
            As :meth:`read`; or less than ``epsilon`` was charged for one of them.
        """
        spent = self.read().edge[positions]
        if (spent < epsilon * (1 - ROUNDING)).any():
            raise DataError(
                f"noisy views of this client are not in the ledger {self.path}, which"
                f" says {spent.min():.6g} was spent on one of the graphs; restore the"
                " ledger from a copy, or start a new experiment and count both"
            )

    def charge_edges(self, positions: IntArray, epsilon: float) -> Account:
        """Add ``epsilon`` to the graphs at ``positions``; to be called before a draw.

        Raises
        ------
        PrivacyBudgetError
            A graph's total, here or over all runs, would exceed a budget, or updates
            were charged before and ``allow`` is not set. Nothing is charged then.
        """
        with locked(self.path):
            account = self.read()
            self._check_notion(bool(account.updates), "edge", "client")
            after = account.edge.copy()
            np.add.at(after, positions, epsilon)  # a graph drawn twice costs twice
            self._check(after[positions], self._edge_budget, EDGE_BUDGET, positions)
            for record in self._records:
                record.charge(positions, epsilon)
            account.edge = after
            account.num_draws += 1
            self._write(account)
        return account

    def charge_update(
        self,
        noise_multiplier: float,
        *,
        delta: float,
        epsilon_of: EpsilonOf,
        release: str,
    ) -> Account:
        """Count one more noisy update; to be called before it leaves the client.

        An update that was counted before is not counted again.

        Parameters
        ----------
        noise_multiplier : float
        delta : float
        epsilon_of : callable
            (number of updates by noise multiplier, delta) -> epsilon of them together,
            e.g. :func:`clients.privacy.gaussian.epsilon_of`.
        release : str
            Name of the update, a digest of its content: the same noise is on every
            update of this name, and on no other.

        Raises
        ------
        PrivacyBudgetError
            The total, here or over all runs, would exceed a budget, or edges were
            charged before and ``allow`` is not set. Nothing is charged then.
        """
        with locked(self.path):
            account = self.read()
            if release in account.releases:
                return account
            self._check_notion(bool(account.num_draws), "client", "edge")
            updates = dict(account.updates)
            updates[noise_multiplier] = updates.get(noise_multiplier, 0) + 1
            epsilon = epsilon_of(updates, delta)
            self._check(np.array([epsilon]), self._update_budget, UPDATE_BUDGET)
            if self._updates is not None:
                self._updates.charge(noise_multiplier, epsilon_of)
            account.updates, account.client = updates, (epsilon, delta)
            account.releases += (release,)
            self._write(account)
        return account

    def _check_notion(self, other_used: bool, this: str, other: str) -> None:
        if other_used and not self._allow:
            raise PrivacyBudgetError(
                f"this client has already made releases under the {other!r} notion of"
                f" privacy; one under {this!r} protects something else, and the two"
                " numbers do not add up. Set privacy.both to true in the run config to"
                " keep both, reported side by side, or use one of them"
            )

    def _check(
        self,
        totals: NDArray[np.float64],
        budget: float,
        name: str,
        positions: IntArray | None = None,
    ) -> None:
        if (totals <= budget * (1 + ROUNDING)).all():  # NaN is refused
            return
        worst = int(np.argmax(totals))
        whose = "" if positions is None else f" of graph {positions[worst]}"
        raise PrivacyBudgetError(
            f"this draw would bring the total epsilon{whose} to {totals[worst]:.6g};"
            f" {name} allows {budget:.6g}. Nothing was read. Raise {name}, draw noise"
            " less often, or stop earlier"
        )

    def _write(self, account: Account) -> None:
        write_record(
            self.path,
            {
                "edge": account.edge.tolist(),
                "num_draws": account.num_draws,
                "updates": {str(s): n for s, n in account.updates.items()},
                "client": list(account.client),
                "releases": account.releases,
            },
        )
