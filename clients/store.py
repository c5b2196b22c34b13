"""A client's own disk: tensors that must survive the process, never in a message.

One folder per experiment and client holds a file per round, written atomically. The
last two rounds are kept, so that a round that is repeated (the server resumed from a
checkpoint, or a reply was lost) starts from the state before it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedgraph_flwr.errors import DataError

_KEPT = 2
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
    """

    def __init__(self, root: Path, experiment: str, *, client_id: int) -> None:
        self.folder = root / experiment / f"client-{client_id}"

    def save(self, server_round: int, tensors: dict[str, Tensor]) -> None:
        """Write the state after ``server_round`` and drop all but the last two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._path(server_round)
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        save_file(
            {n: t.detach().cpu().contiguous() for n, t in tensors.items()}, partial
        )
        partial.replace(target)
        done = [r for r in self._rounds() if r <= server_round]
        for old in done[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def load(self, server_round: int) -> dict[str, Tensor] | None:
        """State from before ``server_round``: that of the last round this client did.

        None if there is none. Files of later rounds, left by a run that went further
        before it was resumed, are ignored.

        Raises
        ------
        DataError
            The file cannot be read.
        """
        before = [r for r in self._rounds() if r < server_round]
        if not before:
            return None
        path = self._path(before[-1])
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"private state {path} cannot be read: {error}; delete the file to go"
                " on from the round before"
            ) from error

    def _path(self, server_round: int) -> Path:
        return self.folder / f"round-{server_round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        found = (_FILE.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m.group(1)) for m in found if m)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: list[str]
) -> dict[str, Tensor]:
    """Moments and step counts as named tensors, ``adam/<what>/<parameter>``."""
    parameters = optimizer.param_groups[0]["params"]
    return {
        f"adam/{what}/{name}": value
        for name, parameter in zip(names, parameters, strict=True)
        for what, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: list[str], tensors: dict[str, Tensor]
) -> None:
    """Set the moments that :func:`optimizer_tensors` returned."""
    parameters = optimizer.param_groups[0]["params"]
    for name, parameter in zip(names, parameters, strict=True):
        state = {
            what: tensors[f"adam/{what}/{name}"].to(parameter.device)
            for what in ("step", "exp_avg", "exp_avg_sq")
            if f"adam/{what}/{name}" in tensors
        }
        if state:
            optimizer.state[parameter] = state
