"""Account of what a site's privacy has cost: in each run, and over a lifetime.

Every charge is on the disk before what it pays for: edges are read, or an update is
sent. A crash then counts a release that did not happen and never misses one that did.
Nothing is taken back. What is released again, byte for byte, is not charged again.

Three notions are counted apart, as their numbers do not compare:

``edge``: epsilon per graph, for one undirected edge of that graph. Draws of a graph add
up; different graphs hold different edges, so a client's total is the maximum.

``client``: (epsilon, delta) of noisy model updates, see
:mod:`clients.privacy.gaussian`.

``graph``: (epsilon, delta) of one training graph by the steps that were trained with
noise, see :mod:`clients.privacy.per_graph`.

Each charge is a row of one table of the site's file, by run, client, data set and row
of the data set; totals are sums over that table.

Nothing there depends on the graphs: an account that started afresh with changed files
would tell that they changed. Other data under the same name are therefore counted
together, too much rather than too little; a site with new data starts with a new state
folder. Of data that come as a file per client each has rows of its own. Its account
goes by its name and by the client's id: to change one of the two begins no other.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError, PrivacyBudgetError
from fedgraph_flwr.core.privacy_settings import PrivacySettings

from ..site_database import INSERT_EDGES, STEPS, data_name, site_database
from .gaussian import epsilon_of_steps

EpsilonOf = Callable[[Mapping[float, int], float], float]
Steps = dict[tuple[float, float], int]  # by share of a batch and noise multiplier
ROUNDING = 1e-9  # relative: a budget of 0.3 allows three draws of 0.1
EDGE_BUDGET = PrivacySettings.key("budget_max")
UPDATE_BUDGET = PrivacySettings.key("update_budget_max")
GRAPH_BUDGET = PrivacySettings.key("graph_budget_max")
_OF_RUN = "privacy.budget-max (privacy.budget-scope = 'lifetime')"
_OF_SITE = "edge-epsilon-max of this site's policy"
_OF_ALL_UPDATES = "update-epsilon-max of this site's policy"
_OF_ALL_STEPS = "graph-epsilon-max of this site's policy"
_Rows = Callable[..., list[Any]]  # of a query and its values


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Largest totals; infinite only counts.

    Parameters
    ----------
    edge, update : float
        Epsilon of a graph, and of all noisy updates, by one client in one run.
    lifetime, site : float
        Epsilon of a row over all runs and all clients of the site: what the run allows,
        and what the site's policy allows.
    graph : float
        Epsilon of a training graph of one client in one run.
    site_update, site_graph, site_delta : float
        Epsilon of all updates, and of a training graph by all noisy steps, of the site
        over all runs, at this delta, whatever the ids of its clients.
    both : bool
        Whether several notions may be charged to the same client.
    """

    edge: float = math.inf
    update: float = math.inf
    graph: float = math.inf
    lifetime: float = math.inf
    site: float = math.inf
    site_update: float = math.inf
    site_graph: float = math.inf
    site_delta: float = 1e-5
    both: bool = False


@dataclass(kw_only=True)
class Account:
    """What one client has spent in one run.

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
    steps, all_steps : dict of (float, float) to int
        Noisy steps in this run, and of this client on these data in all runs.
    """

    edge: NDArray[np.float64]
    num_draws: int = 0
    updates: dict[float, int] = field(default_factory=dict)
    client: tuple[float, float] = (0.0, 0.0)
    steps: Steps = field(default_factory=dict)
    all_steps: Steps = field(default_factory=dict)


class Total(NamedTuple):
    """Largest epsilon of some graphs, whoever drew them, or drawn by the client."""

    in_run: float
    over_runs: float
    own: float


class Ledger:
    """Account of one client in one run, and of its data over all runs of the site.

    Parameters
    ----------
    folder : path
        ``<state-dir>/<experiment>/client-<id>``.
    data : str
        Name of the data set.
    rows : int64 array, shape (num_graphs,)
        Row in the data set of each of the client's graphs in this run. A client that
        holds a graph twice pays for it twice.
    source : str
        Name of the file that ``rows`` are of, if clients have files of their own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: str,
        rows: IntArray,
        source: str = "",
        budgets: Budgets = Budgets(),
    ) -> None:
        self._database = site_database(folder.parents[1])
        self.path = self._database.path
        self.whose = (folder.parent.name, folder.name)  # experiment and client
        self._data, self._source = data_name(data), data_name(source)
        self._rows, self._budgets = rows, budgets

    # Reading ------------------------------------------------------------------------

    def read(self) -> Account:
        """Read what the client has spent in this run.

        Raises
        ------
        DataError, StorageError
            The file cannot be read, or the account is that of another number of graphs.
        """
        return self._account(self._database.rows)

    def totals(self, *parts: IntArray) -> list[Total]:
        """Largest epsilon over the graphs at each of some positions."""
        of_run, of_all, own = (defaultdict[int, float](float) for _ in range(3))
        query = "SELECT row, experiment = ?, client = ? AND source = ?, sum(epsilon)"
        experiment, client = self.whose
        found = self._by_row(
            self._database.rows,
            np.concatenate([self._rows[part] for part in parts]),
            f"{query} FROM edges",
            (experiment, client, self._source),
        )
        for row, is_of_run, is_own, epsilon in found:
            of_all[row] += epsilon
            of_run[row] += epsilon * is_of_run
            own[row] += epsilon * is_own

        def largest(spent: Mapping[int, float], part: IntArray) -> float:
            rows = self._rows[part].tolist()
            return max((spent.get(row, 0.0) for row in rows), default=0.0)

        return [Total(*(largest(of, p) for of in (of_run, of_all, own))) for p in parts]

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

    def _account(self, rows: _Rows) -> Account:
        whose = "experiment = ? AND client = ?"
        drawn = rows(f"SELECT num_graphs, times FROM draws WHERE {whose}", *self.whose)
        ((num_graphs, times),) = drawn or [(len(self._rows), 0)]
        if num_graphs != len(self._rows):
            raise DataError(
                f"privacy ledger {self.path} has {num_graphs} graphs of"
                f" {self.whose[1]} in run {self.whose[0]!r}, the client holds"
                f" {len(self._rows)}; use another state folder for other data"
            )
        account = Account(edge=np.zeros(num_graphs), num_draws=times)
        query = f"SELECT position, sum(epsilon) FROM edges WHERE {whose} GROUP BY 1"
        for position, epsilon in rows(query, *self.whose):
            account.edge[position] = epsilon
        query = f"SELECT noise, epsilon, delta FROM updates WHERE {whose}"
        for noise, epsilon, delta in rows(f"{query} ORDER BY number", *self.whose):
            account.updates[noise] = account.updates.get(noise, 0) + 1
            account.client = (epsilon, delta)
        account.steps = self._steps(rows, whose, *self.whose)
        of_client = self.whose[1], self._data, self._source
        account.all_steps = self._steps(
            rows, "client = ? AND data = ? AND source = ?", *of_client
        )
        return account

    def _steps(self, rows: _Rows, whose: str, *values: object) -> Steps:
        if not rows("SELECT 1 FROM sqlite_master WHERE name = 'steps'"):
            return {}
        query = f"SELECT q, noise, sum(times) FROM steps WHERE {whose} GROUP BY 1, 2"
        return {(q, noise): times for q, noise, times in rows(query, *values)}

    def _by_row(
        self, rows: _Rows, held: IntArray, query: str, values: tuple[object, ...]
    ) -> list[Any]:
        """Ask for the charges that count, by rows of the data set among ``held``.

        They are those of the client's data by anyone, and of the client by other names
        of its file.
        """
        counts = "data = ? AND (source IN (?, '') OR client = ?)"
        among = "row IN (SELECT value FROM json_each(?))"
        these = json.dumps(np.unique(held).tolist())
        return rows(
            f"{query} WHERE {counts} AND {among} GROUP BY 1, 2, 3",
            *values,
            *(self._data, self._source, self.whose[1], these),
        )

    # Charging -----------------------------------------------------------------------

    def charge_edges(self, positions: IntArray, epsilon: float) -> Account:
        """Add ``epsilon`` to the graphs at ``positions``; to be called before a draw.

        Raises
        ------
        PrivacyBudgetError
            A graph's total, here or over all runs, would exceed a budget, or updates
            were charged before and both are not allowed. Nothing is charged then.
        """
        with self._database.transaction() as db:
            rows = _rows_of(db)
            account = self._account(rows)
            self._check_notion(account, "edge")
            np.add.at(account.edge, positions, epsilon)  # a graph drawn twice pays so
            for position in np.unique(positions).tolist():
                what = f"epsilon of graph {position}"
                total = float(account.edge[position])
                _check(what, total, self._budgets.edge, EDGE_BUDGET)
            self._check_rows(rows, positions, epsilon)
            account.num_draws += 1
            key = (*self.whose, self._data, self._source)
            held = self._rows.tolist()
            db.executemany(
                INSERT_EDGES, [(*key, held[p], p, epsilon) for p in positions.tolist()]
            )
            db.execute(
                "INSERT OR REPLACE INTO draws VALUES (?, ?, ?, ?)",
                (*self.whose, len(held), account.num_draws),
            )
        return account

    def _check_rows(self, rows: _Rows, positions: IntArray, epsilon: float) -> None:
        budgets = self._budgets
        budget, whose = min((budgets.lifetime, _OF_RUN), (budgets.site, _OF_SITE))
        query, held = "SELECT row, 0, 0, sum(epsilon) FROM edges", self._rows[positions]
        found = self._by_row(rows, held, query, ())
        spent = {row: epsilon for row, _, _, epsilon in found}
        for row, times in Counter(held.tolist()).items():
            what = f"epsilon over all runs of row {row}"
            _check(what, spent.get(row, 0.0) + times * epsilon, budget, whose)

    def charge_update(
        self,
        noise_multiplier: float,
        *,
        delta: float,
        epsilon_of: EpsilonOf,
        release: str,
    ) -> Account:
        """Count one more noisy update; to be called before it leaves the client.

        Parameters
        ----------
        epsilon_of : callable
            (number of updates by noise multiplier, delta) -> epsilon of them together,
            e.g. :func:`clients.privacy.gaussian.epsilon_of`.
        release : str
            Name of the update, by its content. One that was counted is not counted
            again.

        Raises
        ------
        PrivacyBudgetError
            The total, here or over all runs, would exceed a budget, or edges were
            charged before and both are not allowed. Nothing is charged then.
        """
        with self._database.transaction() as db:
            rows, budgets = _rows_of(db), self._budgets
            account = self._account(rows)
            known = "SELECT 1 FROM updates WHERE experiment = ? AND client = ?"
            if rows(f'{known} AND "release" = ?', *self.whose, release):
                return account
            self._check_notion(account, "client")
            updates = account.updates
            updates[noise_multiplier] = updates.get(noise_multiplier, 0) + 1
            account.client = (epsilon_of(updates, delta), delta)
            _check("epsilon", account.client[0], budgets.update, UPDATE_BUDGET)
            if budgets.site_update < math.inf:
                query = "SELECT noise, COUNT(*) FROM updates GROUP BY 1"
                every = Counter({noise_multiplier: 1}) + Counter(dict(rows(query)))
                total = epsilon_of(every, budgets.site_delta)
                what = "epsilon of all updates of this site over all runs"
                _check(what, total, budgets.site_update, _OF_ALL_UPDATES)
            db.execute(
                'INSERT INTO updates (experiment, client, "release", noise, epsilon,'
                " delta) VALUES (?, ?, ?, ?, ?, ?)",
                (*self.whose, release, noise_multiplier, *account.client),
            )
        return account

    def charge_steps(
        self,
        q: float,
        noise_multiplier: float,
        times: int,
        *,
        delta: float,
        release: str,
    ) -> None:
        """Count the noisy steps of a round; to be called before the first of them.

        Parameters
        ----------
        q : float
            Probability with which a step takes a training graph.
        release : str
            Name of the round, by its content. One that was counted is not counted
            again.

        Raises
        ------
        PrivacyBudgetError
            As :meth:`charge_update`.
        """
        with self._database.transaction() as db:
            db.execute(STEPS)
            rows, budgets, key = _rows_of(db), self._budgets, (q, noise_multiplier)
            known = "SELECT 1 FROM steps WHERE experiment = ? AND client = ?"
            if rows(f'{known} AND "release" = ?', *self.whose, release):
                return
            account = self._account(rows)
            self._check_notion(account, "graph")
            more = Counter({key: times})
            if budgets.graph < math.inf:
                total = epsilon_of_steps(more + Counter(account.steps), delta)
                what = "epsilon of a training graph"
                _check(what, total, budgets.graph, GRAPH_BUDGET)
            if budgets.site_graph < math.inf:
                every = more + Counter(self._steps(rows, "true"))
                total = epsilon_of_steps(every, budgets.site_delta)
                what = "epsilon of a training graph over all runs of this site"
                _check(what, total, budgets.site_graph, _OF_ALL_STEPS)
            db.execute(
                "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*self.whose, release, self._data, self._source, *key, times),
            )

    def _check_notion(self, account: Account, this: str) -> None:
        used = {
            "edge": account.num_draws,
            "client": account.updates,
            "graph": account.steps,
        }
        others = [notion for notion in used if used[notion] and notion != this]
        if others and not self._budgets.both:
            raise PrivacyBudgetError(
                f"this client has already made releases under the {others[0]!r} notion"
                f" of privacy; one under {this!r} protects something else, and the two"
                " numbers do not add up. Set privacy.both to true in the run config to"
                " keep both, reported side by side, or use one of them"
            )


def _check(what: str, total: float, budget: float, name: str) -> None:
    if not total <= budget * (1 + ROUNDING):  # NaN is refused
        raise PrivacyBudgetError(
            f"this draw would bring the total {what} to {total:.6g}; {name} allows"
            f" {budget:.6g}. Nothing was read, and nothing leaves. Raise {name}, draw"
            " noise less often, or stop earlier"
        )


def _rows_of(db: sqlite3.Connection) -> _Rows:
    return lambda query, *values: db.execute(query, values).fetchall()
