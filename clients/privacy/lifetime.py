"""What the edges of a data set have cost a site, kept on the site's own disk.

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
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import PrivacyBudgetError
from fedgraph_flwr.files import is_there, names_in

from .records import locked, read_record, write_record
from .tally import read_spent, tally, unreadable

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
            stored = read_record(self.path)["updates"]
            found = {float(s): int(n) for s, n in stored.items()}
            if not all(s > 0 and n >= 0 for s, n in found.items()):
                raise ValueError("multipliers must be > 0, and counts >= 0")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(self.path, error) from error
        return found


def _file_name(data: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]', '_', data)}.json"
