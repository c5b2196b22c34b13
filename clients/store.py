"""A client's own disk: tensors that must survive the process, never in a message.

One folder per experiment and client holds a file per round. The server says which of
its checkpoints is the oldest; every state from which it can be resumed is kept, so that
a round that is repeated (the server was resumed, or a reply was lost) starts from the
state before it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.files import (
    Flushes,
    names_in,
    read_arrays,
    unfinished,
    write_arrays,
    write_npz,
)

from .binding import check_experiment
from .recent import RecentStates

if TYPE_CHECKING:
    from torch import Tensor

recent = RecentStates()
_FILE = re.compile(r"round-(\d+)\.safetensors")


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/fedgraph-flwr``, or under ``~/.local/state``."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "fedgraph-flwr"


class ClientStore:
    """Private state of one client in one experiment.

    Parameters
    ----------
    root : path
        State folder of the site.
    experiment : str
        Chosen by the server; the same after a resume.
    client_id : int
    flushes : Flushes, optional
        Of the message that is answered; without it each state is flushed as it is
        written, and read from its file.

    Raises
    ------
    WireError
        As :func:`~clients.binding.check_experiment`.
    """

    def __init__(
        self,
        root: Path,
        experiment: str,
        *,
        client_id: int,
        flushes: Flushes | None = None,
    ) -> None:
        check_experiment(experiment)
        self._flushes = flushes
        self.experiment, self.client_id = experiment, client_id
        self.folder = root / experiment / f"client-{client_id}"

    def save(
        self, server_round: int, tensors: dict[str, Tensor], *, keep_from: int = 0
    ) -> None:
        """Write the state after ``server_round``.

        Parameters
        ----------
        server_round : int
        tensors : dict of str to tensor
        keep_from : int
            Round of the server's oldest checkpoint, 0 for none. The state that goes
            with it, and all later ones, are kept; older ones are dropped. So are states
            of rounds after this one, left by a run that went further before it was
            resumed.

        Raises
        ------
        StorageError
            A file cannot be written, or an old one not deleted.
        """
        arrays = {n: np.array(t.detach().cpu().numpy()) for n, t in tensors.items()}
        names = names_in(self.folder)
        done = {*_rounds(names), server_round}
        base = max((r for r in done if r <= min(keep_from, server_round)), default=0)
        older = [self._path(r) for r in sorted(done) if r < base]
        spare = older[0] if older and base < server_round else None
        others = [*older, *(self._path(r) for r in done if r > server_round)]
        others += [self.folder / name for name in unfinished(names)]
        path, about = self._path(server_round), self._about(server_round)
        written = write_arrays(path, arrays, about, self._flushes, others, spare)
        if self._flushes:
            recent.keep(path, written, arrays)

    def load(self, server_round: int, last_round: int = 0) -> dict[str, Tensor] | None:
        """State from before ``server_round``: that of the last round this client did.

        None if there is none. Files of later rounds, left by a run that went further
        before it was resumed, are ignored.

        Parameters
        ----------
        server_round : int
        last_round : int
            The last round of this client that the server knows of; 0 if there is none.

        Raises
        ------
        DataError
            The state of ``last_round`` is gone, or the file cannot be used.
        """
        before = [r for r in self.rounds() if r < server_round]
        if last_round and (not before or before[-1] < last_round):
            lost = f"private state of client {self.client_id} after round {last_round}"
            raise DataError(
                f"{lost} is gone from {self.folder}: restore that folder, start a new"
                " run, or let the site begin afresh by --node-config"
                " 'fresh-start=true', which the summary will tell",
                public=f"{lost} is gone: its site must restore it, or allow a fresh"
                " start",
            )
        if not before:
            return None
        import torch  # here: a message that trains nobody needs none

        if (arrays := recent.take(self._path(before[-1]))) is not None:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        arrays, about = read_arrays(
            self._path(before[-1]),
            "private state",
            "restore it from a copy, or start a new run",
        )
        if about != self._about(before[-1]):
            raise DataError(
                f"private state {self._path(before[-1])} is that of {about!r}, expected"
                f" {self._about(before[-1])}: put every file back where it was, or"
                " start a new run",
                public=f"private state {self._path(before[-1]).name} of client"
                f" {self.client_id} is that of another client, round or run",
            )
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _about(self, server_round: int) -> str:
        return json.dumps(
            {
                "experiment": self.experiment,
                "client": self.client_id,
                "round": server_round,
            }
        )

    def keep(self, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Write a result that stays at this site, ``<folder>/<name>``, atomically."""
        write_npz(self.folder / name, arrays)

    def _path(self, server_round: int) -> Path:
        return self.folder / f"round-{server_round:06d}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds whose state is here, ascending."""
        return _rounds(names_in(self.folder))


def _rounds(names: Iterable[str]) -> list[int]:
    found = map(_FILE.fullmatch, names)
    return sorted(int(m.group(1)) for m in found if m)
