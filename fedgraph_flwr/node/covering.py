"""Covers updates with pads, after the gate: the last that is done before they leave."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import MessageType, RecordDict
from numpy.typing import NDArray

from clients.handed_in import HandedIn
from clients.sealing import KeyRing
from clients.site_database import site_database

from ..core.errors import FedGraphError, PolicyError, WireError, full_reason
from ..core.process import log_failure
from ..core.secure_aggregation import (
    LABEL,
    MASKED,
    SumOf,
    Vector,
    digest,
    encode,
)
from ..core.wire import (
    EXPERIMENT,
    NUM_EXAMPLES,
    SERVER_ROUND,
    NamedArrays,
    Parcel,
    Scalar,
    pack,
    select,
    unpack,
)
from ..core.words import shortened
from ..methods.fedavg import SHARED
from ..resolve import Resolved
from .gate import Visit, failure
from .node_config import is_site, known_by, trusted_peers


@dataclass(frozen=True, kw_only=True)
class Part:
    """One client's part of a sum, before pads are added."""

    handed: HandedIn
    vector: Vector
    ring: KeyRing

    def padded(self) -> NamedArrays:
        """Add the pads: the larger id subtracts what the smaller one adds."""
        own, label = self.handed.client, self.handed.label
        others = [c for c in self.handed.members if c != own]
        for other, lock in self.ring.locks(others).items():
            lock.pad(self.vector, label, minus=own > other)
        return {MASKED: self.vector, LABEL: np.frombuffer(label, np.uint8)}


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Covers the updates in the reply to one message.

    Parameters
    ----------
    run : int
        Flower's.
    config_sha256 : str
        Of the run config.
    root : path
        State folder of the site, or of a simulation.
    hosted : collection of int
        Clients of this node.
    """

    visit: Visit
    resolved: Resolved
    run: int
    config_sha256: str
    root: Path
    hosted: Collection[int]

    def __call__(self, kind: str, asked: RecordDict, reply: RecordDict) -> RecordDict:
        """Return the reply covered; a client that may not hand in fails by name.

        Arrays are in no other reply than that to training, and none is left beside the
        covered ones.

        Raises
        ------
        DataError, StorageError
            What was handed in cannot be remembered: then nothing leaves.
        """
        came, header = unpack(asked)
        made, own_header = unpack(reply)
        passed, parts = {}, {}
        for client, parcel in made.items():
            passed[client] = replace(parcel, arrays={}, evaluation={})
            if parcel.error or not parcel.arrays:
                continue
            try:
                if kind != MessageType.TRAIN:
                    raise WireError("arrays that are no update: no pad covers them")
                parts[client] = self._part(client, parcel, came[client].arrays, header)
            except FedGraphError as error:
                passed[client] = self._failed(client, parcel, error)
        with site_database(self.root).transaction() as db:
            for client, part in list(parts.items()):
                try:
                    part.handed.remember(db, over_runs=is_site(self.visit.node))
                except WireError as error:
                    passed[client] = self._failed(client, made[client], error)
                    del parts[client]
        for client, part in parts.items():  # all of it is on the disk by now
            passed[client] = replace(passed[client], arrays=part.padded())
            self.visit.sums[client] = {
                "members": list(part.handed.members),
                "label": part.handed.label.hex()[:16],
                "keys": known_by(self.visit.node),
            }
        return pack(passed, own_header)

    def _failed(self, client: int, parcel: Parcel, error: FedGraphError) -> Parcel:
        reason = full_reason(error)
        self.visit.failures[client] = reason
        log_failure(f"client {client} hands nothing in", error)
        if is_site(self.visit.node):
            return failure(replace(parcel, error=reason))
        return Parcel(error=reason, metrics=parcel.metrics)

    def _part(
        self,
        client: int,
        parcel: Parcel,
        came: NamedArrays,
        header: Mapping[str, Scalar],
    ) -> Part:
        """Check whose sum is asked for, and write the update as a vector.

        Raises
        ------
        WireError, PolicyError
            As the messages say; nothing of the client leaves.
        """
        sum_of = SumOf.from_header(header)
        experiment = str(header[EXPERIMENT])
        ring = KeyRing(self.root / experiment / f"client-{client}", client_id=client)
        self._check_members(client, sum_of, ring)
        received = select(SHARED, came)
        label = sum_of.label(
            experiment=experiment,
            run=self.run,
            server_round=int(header[SERVER_ROUND]),
            config_sha256=self.config_sha256,
            received=digest(received),
        )
        # The site's own count: a server that chose weights could read single updates.
        is_even = self.resolved.settings.weighting == "uniform"
        weight = 1 if is_even else int(parcel.metrics[NUM_EXAMPLES])
        update = _update(client, parcel.arrays, received)
        vector = encode(update, weight, sum_of.total)
        handed = HandedIn(
            experiment=experiment,
            client=client,
            server_round=int(header[SERVER_ROUND]),
            members=sum_of.members,
            label=label,
            received=digest(received),
            vector=hashlib.sha256(vector.tobytes()).hexdigest(),
        )
        return Part(handed=handed, vector=vector, ring=ring)

    def _check_members(self, client: int, sum_of: SumOf, ring: KeyRing) -> None:
        """Refuse a sum that would show this client, and keys that are not those told.

        Raises
        ------
        WireError, PolicyError
        """
        members, keys = sum_of.members, sum_of.keys
        least = self.resolved.secagg.least
        if len(members) < self.visit.policy.least_in_sum:
            raise PolicyError(
                f"this site's policy (least-in-sum) does not allow a sum of"
                f" {len(members)} clients; it needs"
                f" {self.visit.policy.least_in_sum}, or ask its operator"
            )
        others = set(members) - set(self.hosted)
        is_alone = is_site(self.visit.node) and len(others) == 1
        if client not in members or len(members) < least or is_alone:
            raise WireError(
                f"client {client} is asked for a sum of clients {shortened(members)}:"
                f" refused; it must be one of at least {least}"
                " (secure-aggregation.least), and not all but one of them may be of one"
                " site, which would learn that one's update"
            )
        others_keys = {c: key for c, key in keys.items() if c != client}
        ring.pin(others_keys, trusted_peers(self.visit.node))
        parts = [part for key in keys.values() for part in (key[:64], key[64:128])]
        if keys[client] != ring.public_key or len(set(parts)) < len(parts):
            raise WireError(
                f"client {client} is asked for a sum in which its own key is another,"
                " or two clients have one key: refused, as pads of such keys cover"
                " nothing; do not trust that server"
            )


def _update(
    client: int, sent: NamedArrays, received: NamedArrays
) -> NDArray[np.float64]:
    """Trained minus received numbers, by name, as one vector.

    Raises
    ------
    WireError
        What is to be sent is no model of the tensors that came.
    """
    trained = select(SHARED, sent)
    shapes = {n: a.shape for n, a in received.items()}
    if len(trained) < len(sent) or {n: a.shape for n, a in trained.items()} != shapes:
        raise WireError(
            f"client {client} sends {shortened(sorted(sent))} and was sent"
            f" {shortened(sorted(received))}: pads cover the tensors of a model that"
            " came, and nothing beside it; switch secure-aggregation.on off"
        )
    exact = {n: a.astype(np.float64) for n, a in trained.items()}
    steps = [(exact[n] - received[n].astype(np.float64)).ravel() for n in sorted(exact)]
    return np.concatenate([*steps, np.zeros(0)])
