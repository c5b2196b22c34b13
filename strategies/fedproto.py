"""Server side of FedProto: means of clients' prototypes, weighted by items of a class.

Tan et al. 2022, arXiv:2105.00243, Eq. (6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from typing_extensions import override

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.core.words import shortened
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedproto import COUNTS, PROTOTYPES

from .averaging import miscounted, out_of_proportion
from .fedavg import Local
from .replies import Layout


@final
class FedProto(Local):
    """Hands out the common start, then prototypes; a class that is absent keeps its."""

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        counts = {c: i.num_classes for c, i in self.clients.items()}
        if len({*counts.values()}) > 1:
            raise ConfigError(
                f"clients have {shortened(counts)} classes, of which means cannot be"
                " averaged; take another method, or data with the same classes at all"
            )
        super().initialise(arrays)
        self.prototypes: NamedArrays = {}  # none before round 1

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        sent = super().outgoing(server_round)
        return {c: {**a, **self.prototypes} for c, a in sent.items()}

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        classes = self.clients[min(self.clients)].num_classes  # all must have as many
        shape = classes, self.settings.hidden_dim
        return {PROTOTYPES: ("float32", shape), COUNTS: ("float32", (classes,))}

    @override
    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:
        """Name clients whose prototypes or counts cannot be."""
        counts = {c: p.arrays[COUNTS] for c, p in replies.items()}
        found = miscounted(counts, {c: self.clients[c].num_train for c in replies})
        told = {c: {PROTOTYPES: p.arrays[PROTOTYPES]} for c, p in replies.items()}
        guard = self.robust.guard or np.inf
        return out_of_proportion(told, self.prototypes, guard) | found

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        counts = np.stack([p.arrays[COUNTS] for p in replies.values()]).astype(float)
        told = np.stack([p.arrays[PROTOTYPES] for p in replies.values()])
        total = counts.sum(0)[:, None]
        summed = (counts[:, :, None] * told).sum(0)
        old = self.prototypes.get(PROTOTYPES, np.zeros_like(told[0]))
        new = np.where(total > 0, summed / np.maximum(total, 1), old)
        self.prototypes = {PROTOTYPES: new.astype(np.float32)}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        start, facts = super().state()
        return {**with_prefix(SHARED, start), **self.prototypes}, facts

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        super().restore(select(SHARED, arrays), facts)
        self.prototypes = {n: a for n, a in arrays.items() if n == PROTOTYPES}
