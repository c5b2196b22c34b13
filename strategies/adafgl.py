"""Server side of AdaFGL: FedAvg, whose last model every client receives once more.

Li et al. 2024, arXiv:2401.11750.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO
from typing import Any, final

from typing_extensions import override

from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.wire import NamedArrays, Parcel
from fedgraph_flwr.methods.adafgl import AdaFGLParams

from .fedavg import FedAvg
from .replies import Layout


@final
class AdaFGL(FedAvg):
    """Averages for ``federated_rounds``; after them clients train, and send nothing.

    ``settled`` are the clients that have begun training on their own.
    """

    ONE_MODEL = False
    NO_HOLD_OUT = "every client ends with a model that it trains by itself"
    NO_RULE = ""
    params: AdaFGLParams

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.settled: set[int] = set()
        self.first_choice = self.params.federated_rounds + 1
        # What patience would count are two models, one after the other.
        self.stopper = lambda _evaluations: False

    @override
    def summary(self) -> None:
        """Also say that there is no early end."""
        super().summary()
        log(
            INFO,
            "adafgl: rounds 1 to %d average, later ones are the clients' own, and a"
            " result is chosen among these; all are run, patience does not count",
            self.params.federated_rounds,
        )

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Send the model while it is averaged, and until a client has begun alone."""
        sent = super().outgoing(server_round)
        nothing = NamedArrays()
        return {c: nothing if c in self.settled else a for c, a in sent.items()}

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        if self.params.is_personal(server_round):
            return {}
        return super().uplink(server_round, client)

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        if self.params.is_personal(server_round):
            self.settled |= set(replies)
        else:
            super().step(server_round, replies)

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return self.theta, {"settled": sorted(self.settled)}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.theta, self.settled = arrays, set(facts["settled"])
