"""Record of the rounds a client has done, and of the mail each was done on.

A server may ask for a round again, after a resume. If it could change
what the client mixes, every answer would tell it something of the letters and the data.
So a round has one mail, to train or to evaluate, and a letter has one round. States
cannot remember that: an evaluation leaves none, and a repeated round drops later ones.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.core.errors import DataError, WireError
from fedgraph_flwr.core.files import make_private, names_in, remove, usable, write_once

_FOLDER = "rounds-done"
_FILE = re.compile(r"round-([0-9]{6,})")
_TRAINED = re.compile(r"trained-([0-9]{6,})")  # whose state a repeated round drops
_LETTER = rb" ([0-9]{1,9}):([0-9]{1,9})"  # sender, and the newest round of its letters
_CONTENT = re.compile(rb"([0-9]{1,9}) [0-9a-f]{64}((?:" + _LETTER + rb")*)")


class RoundsDone:
    """Memory of one client in one run.

    Parameters
    ----------
    folder : path
        The client's private folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process of this client read letters meanwhile.

        A relay may send several messages, which a SuperNode answers side by side.
        """
        path = self._folder / "lock"
        with usable(path):
            make_private(self._folder)
            lock = path.open("w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def rounds(self) -> list[int]:
        """List the rounds that were begun, ascending."""
        return self._numbers(_FILE)

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        with usable(self._folder):
            names = names_in(self._folder)
        found = map(pattern.fullmatch, names)
        return sorted(int(m.group(1)) for m in found if m)

    def read_before(self, server_round: int) -> dict[int, int]:
        """Round of the newest letter of each sender that earlier rounds have read.

        Later rounds do not count: ``server_round`` may be repeated with its mail.

        Raises
        ------
        DataError
            The record of a round cannot be read.
        """
        earlier = [r for r in self.rounds() if r < server_round]
        return self._record(earlier[-1])[1] if earlier else {}

    def note_trained(self, server_round: int) -> None:
        """Remember that a round was trained, before its state is dropped."""
        path = self._folder / f"trained-{server_round:06d}"
        write_once(path, b"", is_lasting=True)

    def begin(
        self,
        server_round: int,
        mail: str,
        *,
        state_round: int,
        read: Mapping[int, int],
    ) -> None:
        """Begin a round, before anything is computed.

        Parameters
        ----------
        server_round : int
        mail : str
            SHA-256 of what will be mixed, in hexadecimal digits.
        state_round : int
            Round after which the client's state was stored; 0 before its first.
        read : mapping of int to int
            Round of the newest letter of each sender that was ever read, this mail's
            among them.

        Raises
        ------
        WireError
            The round was done with other mail, or from another state. Or it is new, and
            it was left out before a later one, or starts from before the newest state
            that there was: the server would get another branch.
        DataError
            The record of a round cannot be read or written.
        """
        done, path = self.rounds(), self._folder / f"round-{server_round:06d}"
        begun_from = (self._record(r)[0] for r in done)
        # A site may delete a round's record, to have it done on other mail.
        dropped = (r for r in self._numbers(_TRAINED) if r in done)
        trained = max((*begun_from, *dropped), default=0)
        wrong, place = "", self._folder
        if server_round not in done and done and server_round < done[-1]:
            wrong = f", which was left out before round {done[-1]} was done"
        elif server_round not in done and state_round < trained:
            wrong = (
                f" with the state after round {state_round}, but round {trained} was"
                " trained before and not repeated"
            )
        else:
            letters = "".join(f" {j}:{sent}" for j, sent in sorted(read.items()))
            what = f"{state_round} {mail}{letters}".encode()
            if write_once(path, what, is_lasting=True) != what:
                wrong, place = " again, with other mail or state than before", path
        if wrong:
            raise WireError(
                f"asked for round {server_round}{wrong}: refused, as a relay could try"
                " any mail without end. If the server was resumed from an older round,"
                f" and others took part than before, delete {place} to allow it once"
            )

    def _record(self, server_round: int) -> tuple[int, dict[int, int]]:
        """Round of the state that a round began from, and ``read`` as of then."""
        path = self._folder / f"round-{server_round:06d}"
        with usable(path):
            found = _CONTENT.fullmatch(path.read_bytes())
        if not found:
            raise DataError(
                f"{path} is damaged, it does not hold a round and a digest; restore the"
                " file, or start a new run"
            )
        letters = re.findall(_LETTER, found.group(2))
        return int(found.group(1)), {int(j): int(sent) for j, sent in letters}

    def forget_before(self, server_round: int) -> None:
        """Drop rounds that cannot be asked for again, as no state before them is left.

        ``server_round`` is the oldest whose state is kept.
        """
        for pattern, kind in ((_FILE, "round"), (_TRAINED, "trained")):
            for old in self._numbers(pattern):
                if old < server_round:
                    remove(self._folder / f"{kind}-{old:06d}")
