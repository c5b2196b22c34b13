"""A client's mail: parcels from its neighbours, and to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.errors import WireError
from fedgraph_flwr.methods.spreadgnn import ALL, FROM, NEIGHBOURS, TO
from fedgraph_flwr.wire import NamedArrays, Scalar

from .parcels import EVERYONE, Address, Contents, read, write
from .sealing import KeyRing

_SEEN = "mail/seen"  # rows of (neighbour, round of its last parcel)


class Mailbox:
    """Reads and writes one client's parcels in one round.

    Parameters
    ----------
    run : str
        Name of the run; parcels of another are refused.
    client_id : int
    folder : path
        The client's private folder, for keys.
    is_sealed : bool
    notes : mapping
        Facts that came with the message: neighbours, their keys and given weights.
    stored : mapping of str to tensor
        What :meth:`state` returned after the round before.
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
    ) -> None:
        self._run, self._client_id = run, client_id
        keys = KeyRing(folder, client_id=client_id)
        if keys.exists and not is_sealed:
            raise WireError(
                f"client {client_id} has keys of this run, whose parcels were sealed,"
                " and is asked to send them open: refused; set spreadgnn.seal = true,"
                " or start a new run"
            )
        self._keys = keys if is_sealed else None
        if NEIGHBOURS not in notes:
            raise WireError(
                f"client {client_id} was not told its neighbours, got {sorted(notes)};"
                " both ends must run the same version of fedgraph_flwr"
            )
        told = json.loads(str(notes[NEIGHBOURS]))
        self.neighbours = sorted(int(j) for j in told)
        given = {int(j): entry["weight"] for j, entry in told.items()}
        self.given = None if None in given.values() else given
        if self._keys:
            self._keys.pin({int(j): str(entry["key"]) for j, entry in told.items()})
        seen = stored.get(_SEEN, torch.zeros(0, 2, dtype=torch.int64)).tolist()
        self._seen = {int(j): int(server_round) for j, server_round in seen}

    def read(self, mail: NamedArrays, server_round: int) -> dict[int, Contents]:
        """Open the parcels that came with the message of ``server_round``, ascending.

        Raises
        ------
        WireError
            A parcel is from no neighbour, or as :func:`clients.parcels.read`.
        """
        known = {f"{FROM}{j}" for j in self.neighbours}
        if strangers := sorted(set(mail) - known):
            raise WireError(
                f"client {self._client_id} got {strangers}, but its neighbours are"
                f" {self.neighbours}; the relay does not follow the topology it told:"
                " do not trust it, or start a new run"
            )
        found: dict[int, Contents] = {}
        for j in self.neighbours:
            if f"{FROM}{j}" not in mail:
                continue
            self._seen[j], found[j] = read(
                mail[f"{FROM}{j}"].tobytes(),
                run=self._run,
                sender=j,
                receiver=self._client_id,
                after_round=self._seen.get(j, 0),
                before_round=server_round,
                lock=self._keys.lock(j) if self._keys else None,
            )
        return found

    def write(self, contents: Contents, server_round: int) -> NamedArrays:
        """Parcels to send: one for all, or if sealed one for each neighbour."""
        receivers = self.neighbours
        if receivers and not self._keys:
            receivers = [EVERYONE]
        parcels: NamedArrays = {}
        for receiver in receivers:
            address = Address(
                run=self._run,
                server_round=server_round,
                sender=self._client_id,
                receiver=receiver,
            )
            lock = self._keys.lock(receiver) if self._keys else None
            to = ALL if receiver == EVERYONE else receiver
            parcel = write(address, contents, lock)
            parcels[f"{TO}{to}"] = np.frombuffer(parcel, np.uint8)
        return parcels

    def state(self) -> dict[str, Tensor]:
        """Return the rounds of the last parcels, to refuse their like."""
        rows = sorted(self._seen.items())
        return {_SEEN: torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)}
