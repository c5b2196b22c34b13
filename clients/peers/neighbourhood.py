"""What a client of SpreadGNN knows of the tasks around it: heads and covariances.

Symbols of He et al. 2021, arXiv:2106.02743: S_k, the client's own tasks; T_k, those of
its neighbourhood, itself included; Phi, heads, one row per task; Omega_k, covariance of
the tasks T_k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..losses.task_covariance import TaskCovariance, align, initial, normalise, update
from .letters import Letter

_OMEGA, _PEER = "omega/", "peer/"


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A neighbour's last heads and covariance.

    Parameters
    ----------
    task_ids : tuple of int
        S_j.
    rows : float32 tensor, shape (len(task_ids), hidden_dim)
        Phi_j[S_j].
    covariance : TaskCovariance
        Omega_j over T_j.
    """

    task_ids: tuple[int, ...]
    rows: Tensor
    covariance: TaskCovariance


class Neighbourhood:
    """Heads and covariances around one client.

    Parameters
    ----------
    client_id : int
    own : tuple of int
        S_k, ascending.
    """

    def __init__(self, client_id: int, own: tuple[int, ...]) -> None:
        self._client_id, self._own = client_id, own
        self._rows = torch.tensor(own, dtype=torch.int64)
        self._peers: dict[int, Teacher] = {}
        self._renewed: TaskCovariance | None = None
        self._places: Tensor | None = None  # of own tasks in T_k, once asked for

    @property
    def task_ids(self) -> tuple[int, ...]:
        """T_k, ascending."""
        theirs = (t for peer in self._peers.values() for t in peer.task_ids)
        return tuple(sorted({*self._own, *theirs}))

    def learn(self, letters: Mapping[int, Letter]) -> None:
        """Remember what neighbours sent; what others sent before stays known."""
        self._places = None
        for j, contents in letters.items():
            self._peers[j] = Teacher(
                task_ids=tuple(contents.task_ids.tolist()),
                rows=torch.from_numpy(np.array(contents.head_rows)),
                covariance=TaskCovariance(
                    tuple(contents.omega_task_ids.tolist()),
                    torch.from_numpy(contents.omega.astype(np.float64)),
                ),
            )

    def forget(self, neighbours: Iterable[int]) -> None:
        """Drop what these neighbours sent; they count again once they send again."""
        self._places = None
        for j in neighbours:
            self._peers.pop(j, None)

    def covariance(self) -> TaskCovariance:
        """Omega_k over T_k: I / |T_k| until it was renewed once."""
        if self._renewed is None:
            return initial(self.task_ids)
        if self._renewed.task_ids == self.task_ids:
            return self._renewed
        return TaskCovariance(
            self.task_ids, normalise(align([self._renewed], self.task_ids))
        )

    def stack(self, head: Tensor) -> Tensor:
        """Phi_{N_k}, shape (|T_k|, hidden_dim), all of it constant.

        Own tasks have the client's own row, others the mean of the rows of those
        neighbours that have labels of it.

        Parameters
        ----------
        head : tensor, shape (num_tasks, hidden_dim)
            The client's own.
        """
        rows = []
        for task in self.task_ids:
            if task in self._own:
                rows.append(head[task])
                continue
            found = [
                peer.rows[peer.task_ids.index(task)]
                for _, peer in sorted(self._peers.items())
                if task in peer.task_ids
            ]
            mean = torch.stack(found).double().mean(0)
            rows.append(mean.to(head.device, head.dtype))
        return torch.stack(rows)

    def with_own(self, stacked: Tensor, head: Tensor) -> Tensor:
        """Phi_{N_k} whose own rows are those of ``head``, with their gradient."""
        if self._places is None:
            known = self.task_ids
            self._places = torch.tensor([known.index(t) for t in self._own])
        places, own = (i.to(head.device) for i in (self._places, self._rows))
        return stacked.index_copy(0, places, head.index_select(0, own))

    def renew(self, head: Tensor, *, eta: float) -> None:
        """Omega_k from the neighbourhood's Omegas and Phi_{N_k} (Eq. 11)."""
        known = {j: peer.covariance for j, peer in self._peers.items()}
        known[self._client_id] = self.covariance()
        self._renewed = update(
            [known[j] for j in sorted(known)],
            self.stack(head),
            self.task_ids,
            eta=eta,
        )

    def teachers(self) -> NDArray[np.int64]:
        """Tasks that neighbours sent, as ascending rows (neighbour, task)."""
        pairs = [(j, t) for j, p in sorted(self._peers.items()) for t in p.task_ids]
        return np.array(pairs, np.int64).reshape(-1, 2)

    # Between rounds -----------------------------------------------------------------

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything known, as named tensors for :meth:`from_tensors`."""
        tensors: dict[str, Tensor] = {}
        if self._renewed is not None:
            tensors |= _covariance_tensors(_OMEGA, self._renewed)
        for j, peer in self._peers.items():
            tensors[f"{_PEER}{j}/task_ids"] = torch.tensor(peer.task_ids)
            tensors[f"{_PEER}{j}/rows"] = peer.rows
            tensors |= _covariance_tensors(f"{_PEER}{j}/{_OMEGA}", peer.covariance)
        return tensors

    @classmethod
    def from_tensors(
        cls, client_id: int, own: tuple[int, ...], stored: Mapping[str, Tensor]
    ) -> Neighbourhood:
        """Restore what :meth:`to_tensors` returned, or begin if that is not there."""
        around = cls(client_id, own)
        if f"{_OMEGA}task_ids" in stored:
            around._renewed = _read_covariance(_OMEGA, stored)
        suffix = "/task_ids"
        for name in stored:
            _, _, rest = name.partition(_PEER)
            if not name.startswith(_PEER) or not rest.removesuffix(suffix).isdigit():
                continue
            at = name.removesuffix("task_ids")
            around._peers[int(rest.removesuffix(suffix))] = Teacher(
                task_ids=tuple(stored[name].tolist()),
                rows=stored[f"{at}rows"],
                covariance=_read_covariance(f"{at}{_OMEGA}", stored),
            )
        around._peers = dict(sorted(around._peers.items()))
        return around


def _covariance_tensors(prefix: str, covariance: TaskCovariance) -> dict[str, Tensor]:
    return {
        f"{prefix}task_ids": torch.tensor(covariance.task_ids),
        f"{prefix}values": covariance.omega,
    }


def _read_covariance(prefix: str, stored: Mapping[str, Tensor]) -> TaskCovariance:
    ids = tuple(stored[f"{prefix}task_ids"].tolist())
    return TaskCovariance(ids, stored[f"{prefix}values"])
