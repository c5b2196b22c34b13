"""Record of the rounds a client has done, and of the mail each was done on.

A server may ask for a round again, after a resume. If it could change
what the client mixes, every answer would tell it something of the letters and the data.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.files import remove

from ..once import usable, write_once

_FOLDER = "rounds-done"
_FILE = re.compile(r"round-([0-9]{6,})")
_CONTENT = re.compile(rb"([0-9]{1,9}) [0-9a-f]{64}")


class RoundsDone:
    """Memory of one client in one run.

    Parameters
    ----------
    folder : path
        The client's private folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER

    def rounds(self) -> list[int]:
        """List the rounds that were begun, ascending."""
        if not self._folder.is_dir():
            return []
        found = (_FILE.fullmatch(p.name) for p in self._folder.iterdir())
        return sorted(int(m.group(1)) for m in found if m)

    def begin(self, server_round: int, mail: str, *, state_round: int) -> None:
        """Begin a round, before anything is computed.

        Parameters
        ----------
        server_round : int
        mail : str
            SHA-256 of what will be mixed, in hexadecimal digits.
        state_round : int
            Round after which the client's state was stored; 0 before its first.

        Raises
        ------
        WireError
            The round was done with other mail, or from another state. Or it is new, and
            it was left out before a later one, or starts from before the state of an
            earlier one: the server would get another branch.
        DataError
            The record of a round cannot be read or written.
        """
        done, path = self.rounds(), self._folder / f"round-{server_round:06d}"
        begun_from = max((self._state_round(r) for r in done), default=0)
        wrong, place = "", self._folder
        if server_round not in done and done and server_round < done[-1]:
            wrong = f", which was left out before round {done[-1]} was done"
        elif server_round not in done and state_round < begun_from:
            wrong = (
                f" with the state after round {state_round}, but began an earlier one"
                f" with that after round {begun_from}"
            )
        else:
            what = f"{state_round} {mail}".encode()
            if write_once(path, what, is_lasting=True) != what:
                wrong, place = " again, with other mail or state than before", path
        if wrong:
            raise WireError(
                f"asked for round {server_round}{wrong}: refused, as a relay could try"
                " any mail without end. If the server was resumed from an older round,"
                f" and others took part than before, delete {place} to allow it once"
            )

    def _state_round(self, server_round: int) -> int:
        path = self._folder / f"round-{server_round:06d}"
        with usable(path):
            found = _CONTENT.fullmatch(path.read_bytes())
        if not found:
            raise DataError(
                f"{path} is damaged, it does not hold a round and a digest; restore the"
                " file, or start a new run",
                public=f"{path.name} in rounds-done is damaged",
            )
        return int(found.group(1))

    def forget_before(self, server_round: int) -> None:
        """Drop rounds that cannot be asked for again, as no state before them is left.

        ``server_round`` is the oldest whose state is kept.
        """
        for old in self.rounds():
            if old < server_round:
                remove(self._folder / f"round-{old:06d}")
