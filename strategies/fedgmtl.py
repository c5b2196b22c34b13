"""Server side of FedGMTL: averages weights and, with the same weights, Omega.

He et al. 2021 (SpreadGNN), arXiv:2106.02743, Sec. 3; our spec, Sec. 2.5.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import WireError
from fedgraph_flwr.methods.fedgmtl import OMEGA
from fedgraph_flwr.wire import Parcel

from .fedavg import FedAvg


def with_unit_trace(omega: NDArray[np.generic]) -> NDArray[np.generic]:
    """Mend what rounding does to a mean of covariances: symmetric, of trace 1.

    Raises
    ------
    WireError
        The trace is not positive: what was averaged were no covariances.
    """
    exact = omega.astype(np.float64)
    trace = float(np.trace(exact))
    if not trace > 0:
        raise WireError(
            f"the mean covariance of tasks has trace {trace:g}, which must be > 0;"
            " lower privacy.update-noise, or look at what the clients send"
        )
    return ((exact + exact.T) / (2 * trace)).astype(omega.dtype)


@final
class FedGMTL(FedAvg):
    """One model and one Omega for all.

    A mean of covariances of trace 1 is one itself.
    """

    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """See base class."""
        super().step(server_round, replies)
        self.theta = {**self.theta, OMEGA: with_unit_trace(self.theta[OMEGA])}
