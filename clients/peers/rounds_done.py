"""Record of the rounds a client has done, and of the mail each was done on.

A server may ask for a round again, after a resume or a lost reply. If it could change
what the client mixes, every answer would tell it something of the letters and the data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.files import remove

from ..once import usable, write_once

_FOLDER = "rounds-done"
_FILE = re.compile(r"round-([0-9]{6,})")
_CONTENT = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{64})")


class _Begun(NamedTuple):
    """How a round was begun."""

    state: int  # the round after which the client's state was stored
    told: int  # the last round that the server knew of
    mail: str  # SHA-256


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

    def begin(
        self, server_round: int, mail: str, *, state_round: int, told: int = 0
    ) -> None:
        """Begin a round, before anything is computed.

        Parameters
        ----------
        server_round : int
        mail : str
            SHA-256 of what will be mixed, in hexadecimal digits.
        state_round : int
            Round after which the client's state was stored; 0 before its first.
        told : int
            The last round of this client that the server knows of; 0 for none.

        Raises
        ------
        WireError
            The round was done with other mail, or from another state. Or it is new, and
            it was left out before a later one, or starts from before the state of an
            earlier one: the server would get another branch. Or the server has
            forgotten a round that it knew of before this one: the state may be of a
            branch that it has left.
        DataError
            The record of a round cannot be read or written.
        """
        done, path = self._read(), self._folder / f"round-{server_round:06d}"
        begun_from = max((r.state for r in done.values()), default=0)
        knew = max((r.told for n, r in done.items() if n <= server_round), default=0)
        wrong, what = "", str(self._folder)
        if server_round not in done and done and server_round < max(done):
            wrong = f", which was left out before round {max(done)} was done"
        elif server_round not in done and state_round < begun_from:
            wrong = (
                f" with the state after round {state_round}, but began an earlier one"
                f" with that after round {begun_from}"
            )
        elif told < knew:
            wrong = (
                f" by a server that knows of its round {told}, and before of its round"
                f" {knew}"
            )
            what = f"{what}, and files of states after round {told} beside it,"
        else:
            new = f"{state_round} {told} {mail}".encode()
            begun = self._parse(path, write_once(path, new, is_lasting=True))
            if (begun.state, begun.mail) != (state_round, mail):
                wrong, what = " again, with other mail or state than before", str(path)
        if wrong:
            raise WireError(
                f"asked for round {server_round}{wrong}: refused, as a relay could try"
                " any mail without end. If the server was resumed from an older round,"
                f" and others took part than before, delete {what} to allow it once"
            )

    def _read(self) -> dict[int, _Begun]:
        found = {}
        for server_round in self.rounds():
            path = self._folder / f"round-{server_round:06d}"
            with usable(path):
                found[server_round] = self._parse(path, path.read_bytes())
        return found

    @staticmethod
    def _parse(path: Path, content: bytes) -> _Begun:
        found = _CONTENT.fullmatch(content)
        if not found:
            raise DataError(
                f"{path} is damaged, it does not hold two rounds and a digest; restore"
                " the file, or start a new run",
                public=f"{path.name} in rounds-done is damaged",
            )
        state, told, mail = found.groups()
        return _Begun(int(state), int(told), mail.decode())

    def forget_before(self, server_round: int) -> None:
        """Drop rounds that cannot be asked for again, as no state before them is left.

        ``server_round`` is the oldest whose state is kept.
        """
        for old in self.rounds():
            if old < server_round:
                remove(self._folder / f"round-{old:06d}")
