"""Server side of FedGMTL: averages weights and, with the same weights, Omega.

He et al. 2021 (SpreadGNN), arXiv:2106.02743, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.privacy_settings import UPDATE_EPSILON
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedgmtl import OMEGA
from fedgraph_flwr.methods.multitask import RECORD, RECORD_IDS

from .fedavg import FedAvg

_ROUNDING = 1e-3  # what that of float32 may add to a trace, of many tasks too


def with_unit_trace(omega: NDArray[np.generic]) -> NDArray[np.generic]:
    """Mend what rounding does to a mean of covariances: symmetric, of trace 1."""
    exact = omega.astype(np.float64)
    trace = float(np.trace(exact))
    return ((exact + exact.T) / (2 * trace)).astype(omega.dtype)


@final
class FedGMTL(FedAvg):
    """One model and one Omega for all.

    A mean of covariances of trace 1 is one itself. Noise on updates may leave none;
    then that of the round before stays.
    """

    NO_RULE = ""

    @override
    def hands_over(self) -> tuple[str, ...]:
        return RECORD, RECORD_IDS

    @override
    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:
        """Name clients that sent no covariance of tasks, unless all put noise on it."""
        if self._are_noisy(replies):
            return {}
        found = {}
        for client, parcel in replies.items():
            omega = parcel.arrays[SHARED + OMEGA].astype(np.float64)
            trace, most = np.trace(omega), np.abs(omega).max()
            if abs(trace - 1) > _ROUNDING or most > 1 + _ROUNDING:
                found[client] = (
                    f"its covariance of tasks has trace {trace:g} and entries up to"
                    f" {most:g}; its trace must be 1, which no entry may exceed: look"
                    " at that client"
                )
        return found

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        before = self.theta[OMEGA]
        super().step(server_round, replies)
        after = self.theta[OMEGA]
        if self._are_noisy(replies) and not np.trace(after.astype(np.float64)) > 0:
            log(
                WARNING,
                "round %d: noise on updates left no covariance of tasks; that of the"
                " round before stays",
                server_round,
            )
            after = before
        self.theta = {**self.theta, OMEGA: with_unit_trace(after)}

    def _are_noisy(self, replies: Iterable[int]) -> bool:
        """Whether all put noise on their updates: one alone may only say so."""
        return all(UPDATE_EPSILON in self.spent.get(c, {}) for c in replies)
