"""Server side of FedTAD: FedAvg, then a distillation that is handed to it.

Zhu et al. 2024, arXiv:2404.14061.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO
from typing import Any, final

import numpy as np
from flwr.common.logger import log
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedtad import RELIABILITY, FedTADParams

from .averaging import FloatArray, miscounted
from .fedavg import FedAvg
from .replies import Layout

_KEPT = "kept/"


def shares_of(reliability: FloatArray) -> FloatArray:
    """Phi_k[c] / sum over clients of Phi[c], (n, C); 0 in a class that nobody has."""
    total = reliability.sum(0)
    shares: FloatArray = reliability / np.where(total > 0, total, 1.0)
    return shares


@final
class FedTAD(FedAvg):
    """Averages, and lets the average learn from the clients' models.

    Parameters
    ----------
    distil : callable, optional
        ``clients.fedtad_distillation.distil`` with its first two arguments; None: no
        step is made.
    """

    NO_RULE = "its server learns from each client's model by itself"
    params: FedTADParams

    def __init__(self, *arguments: Any, distil: Any = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.distil = distil
        self.reliability: dict[int, FloatArray] = {}  # Phi, of who has replied
        self.kept: NamedArrays = {}  # generator and optimisers

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
        told = {c: p.arrays[RELIABILITY] for c, p in replies.items() if _tells(p)}
        return miscounted(told, {c: self.clients[c].num_train for c in told})

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        if not self.params.distillations:
            return
        for client, parcel in replies.items():
            if _tells(parcel):
                self.reliability[client] = parcel.arrays[RELIABILITY].astype(float)
        widths = self.clients[min(self.clients)].widths  # all have the same
        equal = np.ones(widths["num_classes"])
        phi = np.stack([self.reliability.get(c, equal) for c in replies])
        self.theta, self.kept, terms = self.distil(
            widths,
            server_round,
            self.theta,
            [select(SHARED, p.arrays) for p in replies.values()],
            shares_of(phi),
            self.kept,
        )
        words = ", ".join(f"{name} {value:.3g}" for name, value in terms.items())
        log(INFO, "round %d, distilled: %s", server_round, words)

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        told = {f"{RELIABILITY}/{c}": phi for c, phi in self.reliability.items()}
        model = with_prefix(SHARED, self.theta)
        return {**model, **with_prefix(_KEPT, self.kept), **told}, {}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta, self.kept = select(SHARED, arrays), select(_KEPT, arrays)
        told = select(f"{RELIABILITY}/", arrays)
        self.reliability = {int(c): phi.astype(float) for c, phi in told.items()}


def _tells(parcel: Parcel) -> bool:
    return RELIABILITY in parcel.arrays
