"""A client's own disk: tensors that must survive the process, never in a message.

One folder per experiment and client holds a file per round, named after the round and
the run of Flower that did it. The server says from which of them a round goes on: the
last whose reply it has. A round whose reply was lost, or that a server which was
resumed does not know, counts for neither side. The server also says which of its
checkpoints is the oldest; every state from which it can be resumed is kept.
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
    from_home,
    names_in,
    read_arrays,
    remove,
    unfinished,
    write_arrays,
    write_npz,
)
from fedgraph_flwr.lives import Lives

from .binding import check_experiment, check_run
from .once import is_kept, usable
from .recent import RecentStates

if TYPE_CHECKING:
    from torch import Tensor

_ALONE = Lives()
recent = RecentStates()
_FILE = re.compile(r"round-(\d+)(?:-(\d+))?\.safetensors")


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/fedgraph-flwr``, or under ``~/.local/state``."""
    xdg = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    cure = "set state-dir to another one: in the run config, or in the node-config"
    return from_home(f"{xdg}/fedgraph-flwr", f"{cure} of a site")


class ClientStore:
    """Private state of one client in one experiment.

    Parameters
    ----------
    root : path
        State folder of the site.
    experiment : str
        Chosen by the server; the same after a resume.
    client_id : int
    lives : Lives, optional
        Runs of Flower whose states these are; by default none, as outside of Flower.
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
        lives: Lives = _ALONE,
        flushes: Flushes | None = None,
    ) -> None:
        check_experiment(experiment)
        self._root, self._lives, self._flushes = root, lives, flushes
        self.experiment, self.client_id = experiment, client_id
        self.folder = root / experiment / f"client-{client_id}"

    def save(
        self,
        server_round: int,
        tensors: dict[str, Tensor],
        *,
        after: int = 0,
        keep_from: int = 0,
    ) -> None:
        """Write the state after ``server_round``.

        Parameters
        ----------
        server_round : int
        tensors : dict of str to tensor
        after : int
            Round whose state this one goes on from, 0 for none. States between the two
            are dropped, as the server heard of none of them; so are those of runs that
            the server has left, if it has no checkpoint of theirs. States of later
            rounds of this run of Flower stay: this message was late, or sent twice.
        keep_from : int
            Round of the server's oldest checkpoint, 0 for none. Of the states up to
            ``after``, the one that goes with it and later ones are kept.

        Raises
        ------
        StorageError
            A file cannot be written, or an old one not deleted.
        WireError
            A later run of Flower goes on with the experiment by now.
        """
        lives, names = self._lives, names_in(self.folder)
        # After the files were listed, so that those of a later run are not among them.
        if lives.run:  # it may be over: this client has trained meanwhile
            check_run(self._root, lives.run, self.experiment)
        named = sorted(tensors.items())  # as a file gives them back
        arrays = {n: np.array(t.detach().cpu().numpy()) for n, t in named}
        path = self._path(server_round, lives.run)
        found = _states(names)
        before = min(after, server_round - 1)
        done = [r for r, run in found if r <= before and run == lives.run_of(r)]
        kept = (r for r in (*done, server_round) if r <= keep_from)
        first_kept = max(kept, default=0)
        older = [self._path(r) for r in done if r < first_kept]
        spare = older[0] if older and first_kept < server_round else None
        others = [*older, *(self.folder / name for name in unfinished(names))]
        for r, run in found:
            counts = run == lives.run_of(r)
            is_needed = r in done if counts else run in lives.spared
            is_later = bool(lives.run) and run == lives.run and r > server_round
            if not is_needed and not is_later and self._path(r, run) != path:
                others.append(self._path(r, run))
        about = self._about(server_round)
        written = write_arrays(path, arrays, about, self._flushes, others, spare)
        if self._flushes:
            recent.keep(path, written, arrays)

    def load(self, server_round: int) -> dict[str, Tensor] | None:
        """State after ``server_round``; None after round 0, before which there is none.

        Raises
        ------
        DataError
            It is gone, or the file cannot be used.
        """
        if not server_round:
            return None
        path = self._path(server_round)
        arrays = recent.take(path)
        if arrays is None:
            arrays = self._read(path, server_round)
        import torch  # here: a message that trains nobody needs none

        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _read(self, path: Path, server_round: int) -> dict[str, NDArray[np.generic]]:
        if not is_kept(path):
            lost = (
                f"private state of client {self.client_id} after round {server_round}"
            )
            raise DataError(
                f"{lost} is gone from {self.folder} ({path.name}): restore that folder,"
                " start a new run, or let the site begin afresh by --node-config"
                " 'fresh-start=true', which the summary will tell"
            )
        arrays, about = read_arrays(
            path, "private state", "restore it from a copy, or start a new run"
        )
        if about != self._about(server_round):
            raise DataError(
                f"private state {path} is that of {about!r}, expected"
                f" {self._about(server_round)}: put every file back where it was, or"
                " start a new run"
            )
        return arrays

    def _about(self, server_round: int) -> str:
        return json.dumps(
            {
                "experiment": self.experiment,
                "client": self.client_id,
                "round": server_round,
                "run": self._lives.run_of(server_round),
            }
        )

    def keep(self, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Write a result that stays at this site, ``<folder>/<name>``, atomically."""
        write_npz(self.folder / name, arrays)

    def keep_of_round(
        self, what: str, server_round: int, arrays: dict[str, NDArray[np.generic]]
    ) -> None:
        """Write a result of a round, ``<what>-<round>.npz``, and drop those of later.

        Rounds that are repeated have left them, and the last one tells of the run.
        """
        self.keep(f"{what}-{server_round:06d}.npz", arrays)
        for name in names_in(self.folder, f"{what}-*.npz"):
            number = name.removeprefix(f"{what}-").removesuffix(".npz")
            if number.isdecimal() and int(number) > server_round:
                remove(self.folder / name)

    def _found(self) -> list[tuple[int, int]]:
        with usable(self.folder):
            return _states(names_in(self.folder))

    def _path(self, server_round: int, run: int | None = None) -> Path:
        """File of a state: of the run whose state counts, unless another is given."""
        run = self._lives.run_of(server_round) if run is None else run
        name = f"round-{server_round:06d}{f'-{run}' if run else ''}.safetensors"
        return self.folder / name

    def rounds(self) -> list[int]:
        """Return the rounds whose state is here, of any run, ascending."""
        return sorted({r for r, _ in self._found()})

    def newest(self, before: int) -> tuple[int, str]:
        """Last round before another whose state is here, of any run; 0 for none.

        Also the name of its file if only runs did it that the server has left, or "".
        """
        found = [s for s in self._found() if s[0] < before]
        if not found:
            return 0, ""
        last, run = found[-1]
        if (last, self._lives.run_of(last)) in found:
            return last, ""
        return last, self._path(last, run).name


def _states(names: Iterable[str]) -> list[tuple[int, int]]:
    """List rounds and runs of states, ascending."""
    found = map(_FILE.fullmatch, names)
    return sorted((int(m.group(1)), int(m.group(2) or 0)) for m in found if m)
