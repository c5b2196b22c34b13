"""A client's mail with its neighbours: what came, what is written, and to whom.

Symbols of He et al. 2021, arXiv:2106.02743: S_k, the client's own tasks; T_k, those of
its neighbourhood, itself included; Phi, heads, one row per task; Omega_k, covariance of
the tasks T_k.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.wire import NamedArrays, Scalar
from fedgraph_flwr.methods.spreadgnn import (
    ALL,
    FROM,
    NEIGHBOURS,
    PATIENCE,
    TO,
    mixing_rounds,
)

from .letters import EVERYONE, Address, Letter, read, write
from .spreadgnn_rounds import RoundsDone
from .task_covariance import TaskCovariance, align, initial, normalise, update

_SEEN = "mail/seen"  # rows of (neighbour, round of its last letter)
_SILENT = "mail/silent"  # neighbours whose silence was said
_ROUND = "mail/round"  # after which the state was stored


class Mailbox:
    """Reads and writes one client's letters in one round.

    Parameters
    ----------
    run : str
        Name of the run; letters of another are not used.
    folder : path
        The client's private folder, for keys.
    notes : mapping
        Facts that came with the message: neighbours and their keys.
    stored : mapping of str to tensor
        What :meth:`state` returned after the round before.
    trusted : mapping of int to str, optional
        As of :meth:`KeyRing.pin`.
    """

    def __init__(
        self,
        run: str,
        client_id: int,
        folder: Path,
        *,
        is_sealed: bool,
        notes: Mapping[str, Scalar],
        stored: Mapping[str, Tensor],
        trusted: Mapping[int, str] | None = None,
    ) -> None:
        from .sealing import KeyRing  # here: what predicts needs no cryptography

        self._run, self._client_id = run, client_id
        keys = KeyRing(folder, client_id=client_id)
        if keys.exists and not is_sealed:
            raise WireError(
                f"client {client_id} has keys of this run, whose letters were sealed,"
                " and is asked to send them open: refused; set spreadgnn.seal = true,"
                " or start a new run"
            )
        self._keys = keys if is_sealed else None
        if NEIGHBOURS not in notes:
            raise WireError(
                f"client {client_id} was not told its neighbours, got {sorted(notes)};"
                " both ends must run the same version of fedgraph_flwr"
            )
        entries = _by_client(client_id, str(notes[NEIGHBOURS]))
        self.neighbours = sorted(entries)
        if self._keys:
            known_keys = {j: entry.get("key", "") for j, entry in entries.items()}
            self._keys.pin(known_keys, trusted)
        seen = stored.get(_SEEN, torch.zeros(0, 2, dtype=torch.int64)).tolist()
        self._seen = {int(j): int(server_round) for j, server_round in seen}
        self._round = int(stored.get(_ROUND, torch.zeros(())))
        self._said = stored.get(_SILENT, torch.zeros(0, dtype=torch.int64)).tolist()
        self.unusable: list[int] = []  # whose letters of this round were left out

    def read(
        self,
        mail: NamedArrays,
        server_round: int,
        check: Callable[[int, Letter], None],
        done: RoundsDone,
    ) -> dict[int, Letter]:
        """Open the letters that came with the message of ``server_round``, ascending.

        A letter that cannot be used counts as missing, and so does one of a round that
        was read before: a relay that hands it out gains no more than by keeping it.

        Parameters
        ----------
        mail : dict of str to array
        check : callable
            Raises WireError if it cannot use the contents of a neighbour.
        done : RoundsDone
            What was read in which round.

        Raises
        ------
        WireError
            A letter is from no neighbour; or as :meth:`RoundsDone.begin`: the round
            was done before, with other mail.
        """
        known = {f"{FROM}{j}" for j in self.neighbours}
        if strangers := sorted(set(mail) - known):
            raise WireError(
                f"client {self._client_id} got {strangers}, but its neighbours are"
                f" {self.neighbours}; the relay does not follow the topology it told:"
                " do not trust it, or start a new run"
            )
        # Also in rounds that failed, were evaluated alone, or whose state is dropped.
        for j, sent in done.read_before(server_round).items():
            self._seen[j] = max(sent, self._seen.get(j, 0))
        found: dict[int, Letter] = {}
        digest = hashlib.sha256()
        for j in self.neighbours:
            if f"{FROM}{j}" not in mail:
                continue
            try:
                sent, plain = self._open(j, mail[f"{FROM}{j}"].tobytes(), server_round)
                if sent <= self._seen.get(j, 0):
                    continue
                contents = Letter.decode(j, plain)
                check(j, contents)
            except WireError as error:
                self.unusable.append(j)
                log(
                    WARNING,
                    "round %d: client %d goes on without this mail: %s",
                    server_round,
                    self._client_id,
                    error,
                )
                continue
            found[j], self._seen[j] = contents, sent
            digest.update(f"{j} {sent} {hashlib.sha256(plain).hexdigest()}".encode())
        done.begin(
            server_round,
            digest.hexdigest(),
            state_round=self._round,
            read=self._seen,
        )
        self._round = server_round
        return found

    def _open(self, sender: int, letter: bytes, server_round: int) -> tuple[int, bytes]:
        return read(
            letter,
            run=self._run,
            sender=sender,
            receiver=self._client_id,
            before_round=server_round,
            lock=self._keys.lock(sender) if self._keys else None,
        )

    def silent(self, server_round: int, period: int) -> dict[int, int]:
        """Neighbours without usable mail for long: mixing rounds since the last.

        It is said once, until there is mail of them again.
        """
        now = mixing_rounds(server_round, period)
        since = {
            j: now - mixing_rounds(self._seen.get(j, 0) + 1, period)
            for j in self.neighbours
        }
        found = {j: count for j, count in since.items() if count >= PATIENCE}
        if new := sorted(set(found) - set(self._said)):
            log(
                WARNING,
                "round %d: client %d has had no usable mail of client(s) %s in %d"
                " mixing rounds: they are lost, or the relay keeps their mail back; it"
                " learns from them no more until they write again",
                server_round,
                self._client_id,
                ", ".join(map(str, new)),
                PATIENCE,
            )
        self._said = sorted(found)
        return found

    def write(self, contents: Letter, server_round: int) -> NamedArrays:
        """Letters to send: one for all, or if sealed one for each neighbour."""
        receivers = self.neighbours
        if receivers and not self._keys:
            receivers = [EVERYONE]
        letters: NamedArrays = {}
        for receiver in receivers:
            address = Address(
                run=self._run,
                server_round=server_round,
                sender=self._client_id,
                receiver=receiver,
            )
            lock = self._keys.lock(receiver) if self._keys else None
            to = ALL if receiver == EVERYONE else receiver
            letter = write(address, contents, lock)
            letters[f"{TO}{to}"] = np.frombuffer(letter, np.uint8)
        return letters

    def state(self) -> dict[str, Tensor]:
        """Return the round, rounds of the last letters, and silences reported."""
        rows = sorted(self._seen.items())
        return {
            _ROUND: torch.tensor(self._round),
            _SEEN: torch.tensor(rows, dtype=torch.int64).reshape(-1, 2),
            _SILENT: torch.tensor(self._said, dtype=torch.int64),
        }


def _by_client(client_id: int, text: str) -> dict[int, dict[str, Any]]:
    """Read what the server says of the neighbours, by client."""
    try:
        entries = json.loads(text)
        found = {int(j): entry for j, entry in entries.items()}
        fits = list(map(str, found)) == list(entries) and all(
            isinstance(entry.get("key", ""), str) for entry in found.values()
        )
    except (AttributeError, RecursionError, TypeError, ValueError):
        fits = False
    if not fits or client_id in found:
        raise WireError(
            f"client {client_id} was told the neighbours {text[:200]}, expected"
            " numbers of other clients, each once, with a key; do not trust that"
            " server"
        )
    return found


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

    ``own`` is S_k, ascending.
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
