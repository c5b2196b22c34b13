"""What a client's edges have cost in all runs together, kept on the client's own disk.

Runs draw noise of their own, so the epsilons of a graph add up over runs. One file per
client and data set, in the state folder and beside all experiments, counts by row of
the data set. Nothing in it, not even its name, depends on the graphs: an account that
started afresh with changed files would tell that they changed. Other data under the
same name are therefore counted together, too much rather than too little; a site that
really holds new data starts with a new state folder.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import DataError, PrivacyBudgetError

from .records import locked, write_record

FOLDER = "privacy-lifetime"  # of the state folder, where experiments have theirs
_ROUNDING = 1e-9
_OF_RUN = "privacy.budget-max (privacy.budget-scope = 'lifetime')"
_OF_SITE = "edge-budget-max of this site's node-config"


class Lifetime:
    """Epsilon spent on a client's graphs in every run of a state folder.

    Parameters
    ----------
    folder : path
        The client's, outside all experiments.
    data : str
        Name of the data set.
    rows : int64 array, shape (num_graphs,)
        Row in the data set of each of the client's graphs in this run. A client that
        holds a graph twice pays for it twice.
    budget, site_budget : float
        Largest total of a row, that of the run and that of the site; infinite only
        counts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: str,
        rows: IntArray,
        budget: float = math.inf,
        site_budget: float = math.inf,
    ) -> None:
        self.path = folder / f"{re.sub(r'[^A-Za-z0-9.-]', '_', data)}.json"
        self._rows = rows
        self._budget, self._whose = min((budget, _OF_RUN), (site_budget, _OF_SITE))

    def total(self, positions: IntArray | None = None) -> float:
        """Largest epsilon over these of the client's graphs of this run; over all."""
        spent = self._read()
        rows = self._rows if positions is None else self._rows[positions]
        return max((spent.get(int(row), 0.0) for row in rows), default=0.0)

    def charge(self, positions: IntArray, epsilon: float) -> None:
        """Add ``epsilon`` to the graphs at ``positions``; to be called before a draw.

        Raises
        ------
        PrivacyBudgetError
            A total would exceed the budget. Nothing is charged then.
        DataError
            The file cannot be read.
        """
        with locked(self.path):
            spent = self._read()
            for row in self._rows[positions].tolist():
                spent[row] = spent.get(row, 0.0) + epsilon
                if not spent[row] <= self._budget * (1 + _ROUNDING):
                    raise PrivacyBudgetError(
                        "this draw would bring the total epsilon over all runs of row"
                        f" {row} to {spent[row]:.6g}; {self._whose} allows"
                        f" {self._budget:.6g}. Nothing was read. What earlier runs"
                        f" spent stands in {self.path}; raise the budget, or stop here"
                    )
            write_record(self.path, {"edge": spent})

    def _read(self) -> dict[int, float]:
        if not self.path.exists():
            return {}
        try:
            stored = json.loads(self.path.read_text())["edge"]
            spent = {int(row): float(epsilon) for row, epsilon in stored.items()}
            if not all(epsilon >= 0 for epsilon in spent.values()):
                raise ValueError("spent epsilons must be >= 0")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"privacy record {self.path} cannot be read: {error!r}; what earlier"
                " runs spent is unknown, so nothing more is released: restore the file"
                " from a copy, or delete it and add up by hand"
            ) from error
        return spent
