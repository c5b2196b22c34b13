"""SpreadGNN: decentralised multi-task learning from partial labels.

He, Ceyani, Balasubramanian, Annavaram, Avestimehr 2021, arXiv:2106.02743. Clients on a
fixed graph train on their own tasks and mix models with their neighbours' every
``period`` rounds (DPA-SGD, Eq. 12). There is no aggregating server: the strategy is a
mail relay. A letter, one string of bytes, holds all tensors of the sender's model, the
rows Phi_k[S_k] of its tasks, Omega_k with T_k, and its counts; with ``seal`` it is
encrypted for each neighbour.

Message fields
--------------
roll call  fact ``public-key``: of the client, where letters are sealed.
down       fact ``neighbours``: JSON, client -> {"key": ...};
           ``from/<client>``: the last letter of that neighbour, unopened.
up         ``to/<client>``: a letter for that neighbour; ``to/all``: for each of them;
           metric ``silent/<client>``: mixing rounds without mail of that neighbour, if
           ``PATIENCE`` or more; ``unusable/<client>``: its letter was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core import mixing
from ..core import network as topology
from ..core.config import Settings
from ..core.fields import Field, Kind, Phase
from ..core.method import Method
from ..core.rules import (
    MOST_CLIENTS,
    MOST_ROUNDS,
    Value,
    choice,
    flag,
    integer,
    number,
    path,
)
from ..core.tasks import MULTI_TASK_CLASSIFICATION
from ..core.wire import TOLD

ALL = "all"
FROM, TO = "from/", "to/"
NEIGHBOURS = "neighbours"
PUBLIC_KEY = "public-key"
SILENT, UNUSABLE = "silent/", "unusable/"
OMEGA_ETA = 0.5  # share of the closed form in Omega's update, after each epoch
PATIENCE = 2  # mixing rounds without mail, then a neighbour counts as lost


def is_mixing_round(server_round: int, period: int) -> bool:
    """Whether letters are sent after training in this round, counted from 1.

    The paper counts from 0 and mixes where ``t mod period == 0``, hence after round 1;
    with period 0 never, which the paper does not have.
    """
    return period > 0 and (server_round - 1) % period == 0


def mixing_rounds(before_round: int, period: int) -> int:
    """How many rounds before ``before_round`` mix."""
    return -(-(before_round - 1) // period) if period else 0


@dataclass(frozen=True, kw_only=True)
class SpreadGNNParams(Settings):
    """Parameters of SpreadGNN; ``task_reg`` multiplies the trace of Eq. (7)."""

    TABLE = "spreadgnn"
    FIELDS = (
        Field(
            TOLD + PUBLIC_KEY,
            Kind.TEXT,
            (Phase.ROLL_CALL,),
            is_clean=True,
            is_lasting=False,
        ),
        Field(
            TO,
            Kind.ARRAY,
            (Phase.TRAINING,),
            rest=f"{ALL}|[0-9]+",
            what="letters with models and covariances of tasks",
        ),
        *(
            Field(
                name,
                Kind.NUMBER,
                (Phase.TRAINING, Phase.CLOSING),
                rest="0|[1-9][0-9]{0,8}",
                is_clean=True,
                of_neighbour=True,
                most=float(MOST_ROUNDS),
            )
            for name in (SILENT, UNUSABLE)
        ),
    )
    NEEDS_ALL = (
        "a neighbour that is left out mixes nothing of those that mix its model, which"
        " pulls the mean over all clients to whoever was drawn"
    )
    RUN: ClassVar[Mapping[str, Value]] = {
        "persist-optimizer": True,
        "optimizer": "amsgrad",
    }

    topology: str = choice("complete", *topology.KINDS)
    """Who talks to whom."""
    degree: int = integer(2, 1, MOST_CLIENTS)
    """Neighbours of each client: `random-regular`, and `watts-strogatz` before rewiring
    (even)."""
    topology_seed: int = integer(0, 0, 2**31 - 1)
    """Seed of the two random topologies."""
    edges_file: str = path("")
    """TOML file of topology `file`, on the server."""
    weights: str = choice("metropolis", *mixing.KINDS)
    """Weights by which a client mixes models."""
    period: int = integer(1, 0, MOST_ROUNDS)
    """tau: letters are sent after rounds 1, 1 + tau, 1 + 2 tau, ...; 0: never."""
    seal: bool = flag(False)
    """Encrypt letters between neighbours, so that the server cannot read them."""
    head_sync: str = choice("all", "all", "owners", "none")
    """Rows of the head: mixed as all else, mixed over clients with the task's labels
    (`owners`), or not sent."""
    task_reg: float = number(1e-4, 0)
    """lambda, as that of FedGMTL, over the tasks of the client's neighbourhood."""

    @property
    def is_sealed(self) -> bool:
        """Whether letters are encrypted between neighbours."""
        return self.seal


METHOD = Method(
    params=SpreadGNNParams,
    strategy="strategies.spreadgnn:SpreadGNN",
    clients={MULTI_TASK_CLASSIFICATION: "clients.spreadgnn:SpreadGNNClient"},
)
