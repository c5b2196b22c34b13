"""Two worlds: other data at every client, and the same noisy updates.

Whatever differs between what leaves the clients of the two has gone around the
mechanism that protects updates.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from clients.privacy.site import PrivateSite
from fedgraph_flwr import client_app
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.wire import COUNT, EVAL, TIMING, WEIGHTS_HASH, Parcel, pack

from .data import federation, other_federation
from .lab import Lab

# Sent exactly, as docs/privacy.md says: scores and losses with the counts that they are
# means over, how long it took, and the hash of the model that was scored last.
EXACT_METRICS = (EVAL, COUNT, *TIMING)
EXACT_FACTS = (WEIGHTS_HASH,)
NOISY: Mapping[str, Any] = {
    "privacy.update-clip": 0.5,
    "privacy.update-noise": 3.0,
    "num-server-rounds": 2,
}


@dataclass
class Leaving:
    """Everything that left the clients of one world, by name, and its scores."""

    sent: list[tuple[str, object]] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)


def what_leaves(lab: Lab, case: str, *, is_other: bool, **options: Any) -> Leaving:
    """Run a case with noisy updates that are given, and note all that is sent."""
    found = Leaving()
    charge = PrivateSite.noisy_update

    def packed(parcels: Mapping[int, Parcel], *header: Any) -> Any:
        for client, parcel in parcels.items():
            _note(found, client, parcel)
        return pack(parcels, *header)

    def forced(
        self: PrivateSite,
        update: list[NDArray[Any]],
        partition: GraphPartition,
        *,
        server_round: int,
        inputs: Any,
    ) -> list[NDArray[Any]]:
        charge(self, update, partition, server_round=server_round, inputs=inputs)
        client = partition.client_id
        return [_given(a.shape, server_round, client).astype(a.dtype) for a in update]

    load = other_federation if is_other else federation
    with (
        mock.patch("datasets.load_partition", load),
        mock.patch.object(PrivateSite, "noisy_update", forced),
        mock.patch.object(client_app, "pack", packed),
    ):
        finished = lab.run(case, **{**NOISY, **options})
    for name, model in finished.models.items():
        found.sent += [(f"{k} of model {name}", a.tobytes()) for k, a in model.items()]
    return found


def first_difference(ours: Leaving, theirs: Leaving) -> str:
    """Name the first thing that two worlds send differently; "" if there is none."""
    for (name, one), (other_name, other) in zip(ours.sent, theirs.sent, strict=False):
        if name != other_name or one != other:
            return name if name == other_name else f"that {name} is sent"
    more = [*ours.sent, *theirs.sent][len(theirs.sent) * 2 :]
    same = len(ours.sent) == len(theirs.sent)
    return "" if same else f"how much is sent{f', as {more[0][0]}' if more else ''}"


def _note(found: Leaving, client: int, parcel: Parcel) -> None:
    who = f"of client {client}"
    exact = {k: v for k, v in parcel.metrics.items() if k.startswith(EXACT_METRICS)}
    found.sent.append((f"the error {who}", parcel.error))
    for k, v in parcel.metrics.items():
        if k not in exact:
            found.sent.append((f"metric {k} {who}", v))
    for k, text in parcel.facts.items():
        if k not in EXACT_FACTS:
            found.sent.append((f"fact {k} {who}", text))
    for arrays in (parcel.arrays, parcel.evaluation):
        for k, array in arrays.items():
            found.sent.append((f"array {k} {who}", np.asarray(array).tobytes()))
    found.scores.append({k: v for k, v in exact.items() if k.startswith(EVAL)})


@functools.cache
def _given(shape: tuple[int, ...], server_round: int, client: int) -> NDArray[Any]:
    """Stand for the noisy update of both worlds."""
    return np.random.default_rng([server_round, client]).normal(0, 0.01, shape)
