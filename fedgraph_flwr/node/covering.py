"""Covers updates with pads, after the gate: the last that is done before they leave."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import MessageType, RecordDict
from numpy.typing import NDArray

from clients.handed_in import HandedIn, KeptUpdates, Update
from clients.sealing import KeyRing
from clients.site_database import site_database

from ..core.errors import PolicyError, WireError, full_reason
from ..core.process import log_failure
from ..core.secure_aggregation import (
    HAND_IN,
    HANDED,
    LABEL,
    MASKED,
    MEMBERS,
    MISSED,
    UPDATE_NORM,
    SumOf,
    Vector,
    digest,
    encode,
    encode_scores,
    fewest_members,
    may_drop_out,
    summed_scores,
)
from ..core.wire import (
    COUNT,
    EARLIER_RUNS,
    EVAL,
    EXPERIMENT,
    LAST_ROUND,
    NUM_EXAMPLES,
    SERVER_ROUND,
    Lives,
    NamedArrays,
    Parcel,
    Scalar,
    flatten,
    pack,
    select,
    unpack,
)
from ..core.words import shortened
from ..methods.fedavg import DELTA, SHARED
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
    """Covers the updates in the reply to one message, of clients that are hosted here.

    ``run`` is Flower's, ``root`` the state folder of the site or of a simulation.
    """

    visit: Visit
    resolved: Resolved
    run: int
    config_sha256: str
    root: Path
    hosted: Collection[int]

    def __call__(self, kind: str, asked: RecordDict, reply: RecordDict) -> RecordDict:
        """Return the reply covered; a client that may not hand in fails by name.

        Arrays are in no other reply than that to training or to the hand-in, and none
        is left beside the covered ones.

        Raises
        ------
        DataError, StorageError
            What was handed in cannot be remembered: then nothing leaves.
        """
        came, header = unpack(asked)
        made, own_header = unpack(reply)
        names, left = summed_scores(self.resolved.secagg, self.resolved.settings), {}
        hidden = (EVAL, COUNT) if names else ()
        for c, p in made.items():
            kept = {k: v for k, v in p.metrics.items() if not k.startswith(hidden)}
            left[c] = replace(p, arrays={}, evaluation={}, metrics=kept)
        updates: dict[int, Update] = {}
        sent: dict[int, str] = {}
        good = [c for c, parcel in made.items() if not parcel.error]
        is_closing = kind == MessageType.EVALUATE
        if is_closing:  # in sums only if the server asks for one
            good = [c for c in good if names and MEMBERS in came[c].facts]
            header = {**header, SERVER_ROUND: -int(header[SERVER_ROUND])}
        if is_closing or kind == MessageType.TRAIN:  # whatever comes: states are kept
            with self._kept(header).noting() as db:
                for client in good:
                    sent[client] = digest(came[client].arrays, came[client].facts)
                    with self._naming(client, left):
                        self._note(db, client, sent[client], came[client].facts, header)
        for client, parcel in made.items():
            if left[client].error:
                continue
            with self._naming(client, left):
                if kind == HAND_IN:
                    updates[client] = self._kept(header).read(client)
                elif parcel.arrays and kind != MessageType.TRAIN:
                    raise WireError("arrays that are no update: no pad covers them")
                elif parcel.arrays or (names and client in good):
                    weight, numbers = self._update(parcel, came[client].arrays)
                    scores = encode_scores(names, parcel.metrics)
                    updates[client] = Update(
                        received=sent[client], vector=encode(numbers, weight, scores)
                    )
                    left[client] = self._with_norm(left[client], numbers)
        if is_closing:
            self._kept(header).clear(made)
        if kind == MessageType.TRAIN and may_drop_out(self.resolved.settings):
            found = self._kept(header).write(updates)
            arrays: dict[int, NamedArrays] = {c: {HANDED: i} for c, i in found.items()}
        else:
            arrays = self._hand_in(updates, came, header, left)
        return pack(
            {c: replace(p, arrays=arrays.get(c, {})) for c, p in left.items()},
            own_header,
        )

    @contextmanager
    def _naming(self, client: int, left: dict[int, Parcel]) -> Iterator[None]:
        """Let a client fail by name whose update may not leave."""
        try:
            yield
        except (WireError, PolicyError) as error:
            log_failure(f"client {client} hands nothing in", error)
            reason = self.visit.failures[client] = full_reason(error)
            failed = replace(left[client], error=reason)
            left[client] = failure(failed) if is_site(self.visit.node) else failed

    def _kept(self, header: Mapping[str, Scalar]) -> KeptUpdates:
        number, experiment = int(header[SERVER_ROUND]), str(header[EXPERIMENT])
        is_alike = not may_drop_out(self.resolved.settings)
        return KeptUpdates(self.root, experiment, number, self.run, is_alike)

    def _past(
        self, facts: Mapping[str, Scalar], header: Mapping[str, Scalar]
    ) -> tuple[tuple[int, int], str]:
        lives = Lives.from_text(self.run, header.get(EARLIER_RUNS, ""))
        after = int(facts.get(LAST_ROUND, 0))
        return (after, lives.run_of(after)), str(facts.get(MISSED, ""))

    def sum_name(self, client: int, came: Parcel, header: Mapping[str, Scalar]) -> str:
        """Name the sum of a client that trains now by what its label is made of.

        But for members and keys, of which a round has one set.
        """
        kept, sent = self._kept(header), digest(came.arrays, came.facts)
        past = self._past(came.facts, header)
        with kept.noting() as db:
            history = kept.followed(db, client, sent, *past)
        return json.dumps([self.run, self.config_sha256, history])

    def _note(
        self,
        db: sqlite3.Connection,
        client: int,
        sent: str,
        facts: Mapping[str, Scalar],
        header: Mapping[str, Scalar],
    ) -> None:
        """Note what a client has trained from, and what others have without it.

        Raises
        ------
        WireError, PolicyError
            The client has trained from another model in this round; or this site takes
            part in no sum without all clients, and there was one.
        """
        before, missed = self._past(facts, header)
        self._kept(header).note(db, client, sent, before, missed)
        trainers = self.resolved.settings.num_training
        if missed and self.visit.policy.least_in_sum >= trainers:
            raise PolicyError(
                "this site's policy (least-in-sum) allows sums of all clients alone,"
                f" and there were some without client {client}; ask its operator"
            )

    def _update(
        self, parcel: Parcel, came: NamedArrays
    ) -> tuple[int, NDArray[np.float64]]:
        """Read a client's own weight, and its update, which may be of no tensor.

        Raises
        ------
        WireError
            What is to be sent is no model of the tensors that came.
        """
        received, update = select(SHARED, came), select(DELTA, parcel.arrays)
        trained = update or select(SHARED, parcel.arrays)
        shapes = {n: a.shape for n, a in received.items()}
        is_model = {n: a.shape for n, a in trained.items()} == shapes
        if parcel.arrays and (len(trained) < len(parcel.arrays) or not is_model):
            raise WireError(
                f"{shortened(sorted(parcel.arrays))} are to be sent and"
                f" {shortened(sorted(received))} came: pads cover the tensors of a"
                " model that came, and nothing beside it; switch"
                " secure-aggregation.on off"
            )
        # Counted here: a server that chose weights could read single updates.
        is_even = self.resolved.settings.weighting == "uniform"
        numbers = flatten(trained)
        if parcel.arrays and not update:
            numbers -= flatten(received)
        alike = is_even or not parcel.arrays
        return 1 if alike else int(parcel.metrics[NUM_EXAMPLES]), numbers

    def _with_norm(self, parcel: Parcel, numbers: NDArray[np.float64]) -> Parcel:
        """Tell the norm of an update, if clusters are made by norms."""
        if not (self.resolved.params.CLUSTERS and len(numbers)):
            return parcel
        if not self.visit.policy.scores:
            raise PolicyError(
                "this site's policy (scores) does not allow norms of updates, by which"
                " clusters are made; take a method without clusters, or ask its"
                " operator"
            )
        norm = float(np.linalg.norm(numbers))
        return replace(parcel, metrics={**parcel.metrics, UPDATE_NORM: norm})

    def _hand_in(
        self,
        updates: Mapping[int, Update],
        came: Mapping[int, Parcel],
        header: Mapping[str, Scalar],
        left: dict[int, Parcel],
    ) -> dict[int, NamedArrays]:
        """Cover updates, once it is on the disk whose sums they are parts of."""
        parts: dict[int, Part] = {}
        for client, update in updates.items():
            with self._naming(client, left):
                sum_of = SumOf.from_facts(came[client].facts)
                parts[client] = self._part(client, update, sum_of, header)
        with site_database(self.root).transaction() as db:
            for client, part in [*parts.items()]:
                with self._naming(client, left):
                    part.handed.remember(db, over_runs=is_site(self.visit.node))
        how = known_by(self.visit.node)
        good = {c: part for c, part in parts.items() if not left[c].error}
        padded: dict[int, NamedArrays] = {}
        for client, part in good.items():
            with self._naming(client, left):
                padded[client] = part.padded()
            members, label = list(part.handed.members), part.handed.label.hex()[:16]
            self.visit.sums[client] = {"members": members, "label": label, "keys": how}
        return padded

    def _part(
        self,
        client: int,
        update: Update,
        sum_of: SumOf,
        header: Mapping[str, Scalar],
    ) -> Part:
        """Check whose sum is asked for, and write the update as a vector.

        Raises
        ------
        WireError, PolicyError
            As the messages say; nothing of the client leaves.
        """
        number, experiment = int(header[SERVER_ROUND]), str(header[EXPERIMENT])
        ring = KeyRing(self.root / experiment / f"client-{client}", client_id=client)
        self._check_members(client, sum_of, ring)
        label = sum_of.label(
            experiment=experiment,
            run=self.run,
            server_round=number,
            config_sha256=self.config_sha256,
            history=self._kept(header).history(client),
            size=len(update.vector),
        )
        vector = update.vector
        handed = HandedIn(
            experiment=experiment,
            client=client,
            server_round=abs(number),
            members=sum_of.members,
            label=label,
            received=update.received,
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
        resolved, asks = self.resolved, self.visit.policy.least_in_sum
        least = fewest_members(
            resolved.secagg, resolved.settings, has_clusters=resolved.params.CLUSTERS
        )
        if len(members) < asks:
            raise PolicyError(
                f"this site's policy (least-in-sum) does not allow a sum of"
                f" {len(members)} clients; it needs {asks}, or ask its operator"
            )
        is_alone = is_site(self.visit.node) and len({*members} - {*self.hosted}) == 1
        if client not in members or len(members) < least or is_alone:
            raise WireError(
                f"client {client} is asked for a sum of clients {shortened(members)}:"
                f" refused; it must be one of at least {least}"
                " (secure-aggregation.least; all clients if min-fit-replies is 1),"
                " and not all but one of them may be of one site, which would learn"
                " that one's update"
            )
        others = {c: key for c, key in keys.items() if c != client}
        ring.pin(others, trusted_peers(self.visit.node))
        parts = [part for key in keys.values() for part in (key[:64], key[64:128])]
        if keys[client] != ring.public_key or len(set(parts)) < len(parts):
            raise WireError(
                f"client {client} is asked for a sum in which its own key is another,"
                " or two clients have one key: refused, as pads of such keys cover"
                " nothing; do not trust that server"
            )
