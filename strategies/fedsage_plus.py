"""Server side of FedSage+: FedAvg after an optional exchange of feature rows.

Zhang et al. 2021, arXiv:2106.13430, the cross-client feature loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any, final

from flwr.serverapp import Grid
from typing_extensions import override

from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.wire import NamedArrays, Parcel, select
from fedgraph_flwr.methods.fedsage_plus import (
    CROSS_ROWS,
    ROWS,
    ROWS_OF,
    FedSagePlusParams,
)

from .fedavg import FedAvg
from .replies import Layout
from .sending import exchange


@final
class FedSagePlus(FedAvg):
    """Hands each client the other clients' rows until the client has trained.

    Rows are forgotten when all clients have; ``given`` remembers how many there were.
    """

    ONE_MODEL = False
    NO_HOLD_OUT = "every client trains a generator of neighbours for its own graph"
    NO_RULE = ""
    params: FedSagePlusParams

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rows: NamedArrays = {}  # by ROWS_OF and the client that gave them
        self.given: dict[int, int] = {}
        self.trained: set[int] = set()

    @override
    def summary(self) -> None:
        """Also warn if features leave clients."""
        super().summary()
        if self.params.cross_client:
            log(
                WARNING,
                "fedsage-plus.cross-client: raw feature rows of up to %d training nodes"
                " of every client go to the server and to every other client",
                CROSS_ROWS,
            )

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect the client's rows in the opening, and the model later."""
        if server_round:
            return super().uplink(server_round, client)
        info = self.clients[client]
        count = min(CROSS_ROWS, info.num_train)
        return {ROWS: ("float32", (count, info.num_features))}

    @override
    def prepare(self, grid: Grid, timeout: float) -> None:
        """Ask every client for rows in round 0, unless the run is resumed after it."""
        if not self.params.cross_client or self.first_round > 1:
            return
        messages = self.begin_round(Phase.OPENING, 0, grid)
        try:
            good = self.round.collect(exchange(grid, messages, timeout))
            self.round.require(good)
        finally:
            self.close_round()
        self.given = {c: len(p.arrays[ROWS]) for c, p in good.items()}
        self.rows = {f"{ROWS_OF}{c}": p.arrays[ROWS] for c, p in good.items()}
        self.rows = {n: rows for n, rows in self.rows.items() if len(rows)}

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Send the model and other clients' rows; nothing in the opening."""
        if server_round == 0:
            return {c: {} for c in self.clients}
        sent = super().outgoing(server_round)
        if self.rows:
            for client in self.clients.keys() - self.trained:
                own = f"{ROWS_OF}{client}"
                others = {name: a for name, a in self.rows.items() if name != own}
                sent[client] = {**sent[client], **others}
        return sent

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        super().step(server_round, replies)
        self.trained |= set(replies)
        if self.trained >= self.clients.keys():
            self.rows = {}

    @override
    def remarks(self) -> dict[str, Any]:
        if not self.params.cross_client:
            return {}
        counts = ", ".join(f"{n} of client {c}" for c, n in sorted(self.given.items()))
        return {
            "disclosed": "fedsage-plus.cross-client: raw features of training nodes"
            " were sent to the server and handed to every other client:"
            f" {counts or 'none'}"
        }

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays, facts = super().state()
        if not self.params.cross_client:
            return arrays, facts
        given = {str(c): n for c, n in self.given.items()}
        facts = {**facts, "given": given, "trained": sorted(self.trained)}
        return {**arrays, **self.rows}, facts

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        model = {n: a for n, a in arrays.items() if not n.startswith(ROWS_OF)}
        super().restore(model, facts)
        self.trained = set(facts.get("trained", []))
        self.given = {int(c): n for c, n in facts.get("given", {}).items()}
        rows = select(ROWS_OF, arrays)
        self.rows = {ROWS_OF + c: rows[c] for c in sorted(rows, key=int)}
