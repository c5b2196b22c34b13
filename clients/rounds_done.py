"""Which rounds a client has done, and on what mail: each is done on one mail alone.

A server may ask for a round again, after a resume or a lost reply. If it could change
what the client mixes, every answer would tell it something of the parcels and the data.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedgraph_flwr.errors import WireError

from .once import write_once

_FOLDER = "rounds-done"
_FILE = re.compile(r"round-(\d+)")


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
        """Rounds that were begun, ascending."""
        if not self._folder.is_dir():
            return []
        found = (_FILE.fullmatch(p.name) for p in self._folder.iterdir())
        return sorted(int(m.group(1)) for m in found if m)

    def begin(self, server_round: int, mail: str) -> None:
        """Begin a round, before anything is computed.

        Parameters
        ----------
        server_round : int
        mail : str
            Digest of what will be mixed.

        Raises
        ------
        WireError
            The round was done with other mail; or it was left out, and a later one
            done: from the state before it the server would get another branch.
        """
        done, path = self.rounds(), self._folder / f"round-{server_round:06d}"
        if done and server_round < done[-1] and server_round not in done:
            raise WireError(
                f"asked for round {server_round}, which was left out before round"
                f" {done[-1]} was done: refused, as a relay could try other mail"
                " without end; resume from the newest checkpoint, or start a new run"
            )
        if write_once(path, mail.encode()) != mail.encode():
            raise WireError(
                f"asked for round {server_round} again, with other mail than before:"
                " refused, as a relay could try any without end. If the server was"
                " resumed from before that round, and other neighbours took part now,"
                f" delete {path} to allow it once"
            )

    def forget_before(self, server_round: int) -> None:
        """Drop rounds that cannot be asked for again, as no state before them is left.

        ``server_round`` is the oldest whose state is kept.
        """
        for old in self.rounds():
            if old < server_round:
                (self._folder / f"round-{old:06d}").unlink(missing_ok=True)
