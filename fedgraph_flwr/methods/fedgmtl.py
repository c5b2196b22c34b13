"""FedGMTL: multi-task learning with a server and one covariance of tasks.

He, Ceyani, Balasubramanian, Annavaram, Avestimehr 2021 (SpreadGNN), arXiv:2106.02743,
Sec. 3; authors' code: FedML-AI/SpreadGNN. Symbols: Phi, heads, one row per task; Omega,
their covariance; S_k, tasks of client k; lambda, weight of tr(Phi^T Omega^-1 Phi).

Message fields
--------------
down, up  ``shared/<name>``: all tensors; ``shared/task_covariance`` is Omega.
up        evaluation record ``task-covariance`` and ``task-ids``: Omega after training,
          to be stored and drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import Value, number
from ..core.tasks import MULTI_TASK_CLASSIFICATION

OMEGA = "task_covariance"  # its name among the shared tensors


@dataclass(frozen=True, kw_only=True)
class FedGMTLParams(Settings):
    """Parameters of FedGMTL.

    The default is ours: the authors' 1e-3 multiplied Omega instead of its inverse. The
    penalty moves the rows of the client's own tasks only: Adam would turn it into full
    steps of the other rows. Omega becomes the closed form after every local epoch; in
    the authors' code after every step.
    """

    TABLE = "fedgmtl"
    RUN: ClassVar[Mapping[str, Value]] = {"persist-optimizer": False}

    task_reg: float = number(1e-4, 0)
    """lambda, weight of tr(Phi^T Omega^-1 Phi) for the heads Phi; 0 is FedAvg."""

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Name FedAvg, where tasks have no relations."""
        return "" if self.task_reg else "has fedgmtl.task-reg 0: FedAvg"


METHOD = Method(
    params=FedGMTLParams,
    strategy="strategies.fedgmtl:FedGMTL",
    clients={MULTI_TASK_CLASSIFICATION: "clients.fedgmtl:FedGMTLClient"},
)
