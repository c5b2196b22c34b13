"""Server side of SCAFFOLD: averages models, and adds up changes of controls.

Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1, with a server's rate of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.scaffold import CONTROL

from .fedavg import FedAvg
from .replies import Layout, layout_of


@final
class Scaffold(FedAvg):
    """c, the mean of all clients' controls, follows from what has changed of them.

    Clients count alike in c, absent ones too; in the model as ``weighting`` says.
    """

    NO_RULE = "its server adds up controls, in which one client can turn all others"

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        super().initialise(arrays)
        self.control = {
            n: np.zeros_like(a) for n, a in arrays.items() if a.dtype.kind == "f"
        }

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        control = with_prefix(CONTROL, self.control)
        return {c: a | control for c, a in super().outgoing(server_round).items()}

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        control = layout_of(with_prefix(CONTROL, self.control))
        return {**super().uplink(server_round, client), **control}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        changes = [select(CONTROL, p.arrays) for p in replies.values()]
        for name, old in self.control.items():
            total = sum(np.asarray(c[name], np.float64) for c in changes)
            new = old.astype(np.float64) + total / len(self.trainers())
            self.control[name] = new.astype(old.dtype)

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        parts = with_prefix(SHARED, self.theta), with_prefix(CONTROL, self.control)
        return parts[0] | parts[1], {}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta, self.control = select(SHARED, arrays), select(CONTROL, arrays)
