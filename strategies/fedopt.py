"""Server side of FedAdam and FedYogi: a step of the server's own along mean updates.

Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedopt import BETA_1, BETA_2, FedOptParams

from .averaging import STATISTIC, FloatArray
from .fedavg import FedAvg

_PARTS = "theta/", "m/", "v/"  # of a checkpoint


def second_moment(
    rule: str, v: FloatArray, delta: FloatArray, beta_2: float
) -> FloatArray:
    """Return v after a round: a running mean of squares, or its additive kin."""
    square = delta**2
    if rule == "adam":
        return beta_2 * v + (1 - beta_2) * square
    return v - (1 - beta_2) * square * np.sign(v - square)


@final
class FedOpt(FedAvg):
    """W <- W + eta m / (sqrt(v) + tau), where m and v are moments of mean updates.

    Statistics of batches and counters are averaged.

    Parameters
    ----------
    rule : str
        "adam" or "yogi".
    """

    NO_RULE = ""
    params: FedOptParams

    def __init__(self, *arguments: Any, rule: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rule = rule

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        super().initialise(arrays)
        floats = {n: a.shape for n, a in arrays.items() if a.dtype.kind == "f"}
        trained = {n: s for n, s in floats.items() if STATISTIC not in n}
        start = 0.0 if self.params.flower else self.params.tau**2
        self.m: dict[str, Any] = {n: np.zeros(s) for n, s in trained.items()}
        self.v: dict[str, Any] = {n: np.full(s, start) for n, s in trained.items()}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        p, before = self.params, self.theta
        super().step(server_round, replies)
        moved, eta = dict(self.theta), p.eta
        if p.flower and self.rule == "adam":  # powers as Flower's, whose first is 2
            eta *= np.sqrt(1 - BETA_2 ** (server_round + 1))
            eta /= 1 - BETA_1 ** (server_round + 1)
        for name in self.m:
            old: FloatArray = before[name].astype(np.float64)
            delta = self.theta[name].astype(np.float64) - old
            self.m[name] = BETA_1 * self.m[name] + (1 - BETA_1) * delta
            self.v[name] = second_moment(self.rule, self.v[name], delta, BETA_2)
            new = old + eta * self.m[name] / (np.sqrt(self.v[name]) + p.tau)
            moved[name] = new.astype(before[name].dtype)
        self.theta = moved

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        kept: tuple[NamedArrays, ...] = self.theta, self.m, self.v
        named = [with_prefix(at, a) for at, a in zip(_PARTS, kept, strict=True)]
        return {n: a for part in named for n, a in part.items()}, {}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta, self.m, self.v = (select(at, arrays) for at in _PARTS)
