"""What a client's releases have cost so far, kept on the client's own disk.

Every charge is on the disk before what it pays for: edges are read, or an update is
sent. A crash then counts a release that did not happen and never misses one that did.
Nothing is taken back. What is released again, byte for byte, is not charged again; it
is drawn from the disk (views) or from a stream of the same name (updates).

Two notions are counted apart, as their numbers do not compare:

``edge``: epsilon per graph, for one undirected edge of that graph. Draws of a graph add
up; different graphs hold different edges, so a client's total is the maximum.

``client``: (epsilon, delta) of noisy model updates, see
:mod:`clients.privacy.gaussian`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import ConfigError, DataError, PrivacyBudgetError
from fedgraph_flwr.files import is_there
from fedgraph_flwr.privacy import PrivacySettings

from .lifetime import ROUNDING, EdgeRecord, EpsilonOf, UpdateRecord
from .records import locked, read_record, write_record

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
            stored = read_record(self.path)
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
        ConfigError
            ``epsilon`` is not a number > 0: nothing is ever taken back.
        PrivacyBudgetError
            A graph's total, here or over all runs, would exceed a budget, or updates
            were charged before and ``allow`` is not set. Nothing is charged then.
        """
        if not epsilon > 0:
            raise ConfigError(
                f"epsilon of edge noise must be a number > 0, got {epsilon!r}; set it"
                " in the run config"
            )
        with self._locked() as account:
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
        with self._locked() as account:
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

    @contextmanager
    def _locked(self) -> Iterator[Account]:
        """Read under a lock."""
        with locked(self.path):
            yield self.read()

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
