"""Server side of FedTAD: FedAvg, then a distillation that is handed to it.

Zhu et al. 2024, arXiv:2404.14061.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO
from typing import Any, final

import numpy as np
from typing_extensions import override

from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedtad import RELIABILITY, FedTADParams

from .averaging import FloatArray, miscounted
from .fedavg import FedAvg
from .replies import Layout


def shares_of(reliability: FloatArray) -> FloatArray:
    """Phi_k[c] / sum over clients of Phi[c], (n, C); 0 in a class that nobody has."""
    total = reliability.sum(0)
    shares: FloatArray = reliability / np.where(total > 0, total, 1.0)
    return shares


@final
class FedTAD(FedAvg):
    """Averages, and lets the average learn from the clients' models.

    ``distil`` is that of ``clients/fedtad_distillation.py``, with its first two
    arguments; None if no step is to be made.
    """

    NO_RULE = "its server learns from each client's model by itself"
    params: FedTADParams

    def __init__(self, *arguments: Any, distil: Any = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.distil = distil
        self.kept: NamedArrays = {}  # Phi of who has replied; what distil keeps

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect the model, and Phi with the first reply that counts."""
        expected = super().uplink(server_round, client)
        if not self.params.sends() or self.last_rounds.get(client):
            return expected
        width = self.clients[client].num_classes
        return {**expected, RELIABILITY: ("float32", (width,))}

    @override
    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:
        """Name clients whose reliability cannot be."""
        own = {c: p.arrays for c, p in replies.items() if RELIABILITY in p.arrays}
        told = {c: arrays[RELIABILITY] for c, arrays in own.items()}
        return miscounted(told, {c: self.clients[c].num_train for c in told})

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        if not self.params.distillations:
            return
        for client, parcel in replies.items():
            told = select(RELIABILITY, parcel.arrays)
            self.kept |= with_prefix(f"{RELIABILITY}/{client}", told)
        widths = self.clients[min(self.clients)].widths  # all have the same
        alike = np.ones(widths["num_classes"])
        phi = [self.kept.get(f"{RELIABILITY}/{c}", alike) for c in replies]
        self.theta, kept, terms = self.distil(
            widths,
            server_round,
            [self.theta, *(select(SHARED, p.arrays) for p in replies.values())],
            shares_of(np.stack(phi).astype(np.float64)),
            self.kept,
        )
        self.kept |= kept
        words = ", ".join(f"{name} {value:.3g}" for name, value in terms.items())
        log(INFO, "round %d, distilled: %s", server_round, words)

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return {**with_prefix(SHARED, self.theta), **self.kept}, {}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta = select(SHARED, arrays)
        self.kept = {n: a for n, a in arrays.items() if not n.startswith(SHARED)}
