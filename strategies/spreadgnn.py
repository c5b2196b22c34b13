"""Server side of SpreadGNN: a mail relay. It opens no letter and computes nothing.

He et al. 2021, arXiv:2106.02743. The paper has no server; Flower's clients reach each
other through one alone, so that it carries their mail. ``make check`` sees that no
numerics are imported here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, final

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid
from typing_extensions import override

from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.network import Network, Topology, build_topology
from fedgraph_flwr.core.wire import NamedArrays, Parcel, Scalar
from fedgraph_flwr.methods.multitask import RECORD, RECORD_IDS
from fedgraph_flwr.methods.spreadgnn import (
    ALL,
    FROM,
    NEIGHBOURS,
    PUBLIC_KEY,
    SILENT,
    TO,
    UNUSABLE,
    SpreadGNNParams,
    is_mixing_round,
)

from .base import AbstractGraphStrategy
from .replies import Layout
from .round_report import ClientInfo

# Letters of one run differ by what they say of tasks. One far longer than others would
# fill the relay's memory, every checkpoint and all neighbours.
_FAR, _MIB = 300, 2**20


def make_topology(num_clients: int, params: SpreadGNNParams) -> Topology:
    """Make the topology that the run config describes."""
    return build_topology(
        params.topology,
        num_clients,
        degree=params.degree,
        seed=params.topology_seed,
        edges_file=params.edges_file,
    )


@final
class SpreadGNN(AbstractGraphStrategy):
    """Keeps each client's mail until the client has answered to it.

    Of several letters of one sender that wait for the same client the last is kept.
    """

    HAS_MODEL = False
    OWN_CLUSTERS = True
    HAS_NEIGHBOURS = True
    TAKES_START = False  # clients make the common start themselves
    params: SpreadGNNParams

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.boxes: dict[int, NamedArrays] = {}  # what waits, by receiver
        self.received_from: dict[int, set[int]] = {}  # whose mail each client has had
        self.missed: dict[int, list[int]] = {}
        self.gone: list[int] = []
        self.silent: dict[int, list[int]] = {}  # neighbours, as receivers say
        self.unusable: dict[int, int] = {}  # letters, by sender
        self.topology = Topology(kind=self.params.topology, neighbours={})

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        """Keep nothing: clients make the common start themselves."""

    @override
    def roll_call(self, grid: Grid) -> dict[int, ClientInfo]:
        """Find the clients, and name clients that will train alone."""
        self.topology = make_topology(self.settings.num_clients, self.params)
        found = super().roll_call(grid)
        for client in self.topology.isolated:
            log(WARNING, "client %d has no neighbour: it trains alone", client)
        if not self.topology.is_connected():
            parts = self.topology.components()
            log(WARNING, "the topology is not connected: %s learn apart", parts)
        return found

    @override
    def network(self) -> Network | None:
        """Return the topology and who has dropped out; None before roll call."""
        if not self.topology.neighbours:
            return None
        return Network(
            topology=self.topology,
            weights=self.params.weights,
            gone=self.gone,
            missed=self.missed,
            is_sealed=self.params.seal,
            silent=self.silent,
            unusable=self.unusable,
        )

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Hand every client its mail."""
        return {c: self.boxes.get(c, {}) for c in self.clients}

    @override
    def facts(self, client: int) -> dict[str, Scalar]:
        """Also its neighbours and their public keys."""
        entries = {
            str(j): {"key": self.clients[j].introduced.get(PUBLIC_KEY, "")}
            for j in self.topology.neighbours[client]
        }
        return super().facts(client) | {NEIGHBOURS: json.dumps(entries)}

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect mail in mixing rounds: strings of bytes for neighbours."""
        peers = self.topology.neighbours[client]
        if not peers or not is_mixing_round(server_round, self.params.period):
            return {}
        receivers = peers if self.params.seal else (ALL,)
        return {f"{TO}{receiver}": ("uint8", (None,)) for receiver in receivers}

    @override
    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:
        """Refuse letters of more than 1 MiB that are 300 times as long as is usual."""
        longest = {
            c: max(map(len, p.arrays.values())) for c, p in replies.items() if p.arrays
        }
        usual = sorted(longest.values())[(len(longest) - 1) // 2] if longest else 0
        most = max(_MIB, _FAR * usual)
        return {
            c: f"a letter of it has {n} bytes, where {usual} are usual in this round,"
            f" and {most} allowed; look at that client"
            for c, n in longest.items()
            if n > most
        }

    @override
    def neighbours(self, client: int) -> Collection[int]:
        return frozenset(self.topology.neighbours[client])

    @override
    def hands_over(self) -> tuple[str, ...]:
        """Names of the records with Omega; none if the relay is blind."""
        return () if self.params.seal else (RECORD, RECORD_IDS)

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Empty the boxes of clients that replied, then sort the new mail in."""
        self._note_absence(server_round, replies)
        self._note_delivery(replies)
        self._note_complaints(server_round, replies)
        for client in replies:
            self.boxes.pop(client, None)
        for sender, parcel in replies.items():
            for receiver in self.topology.neighbours[sender]:
                for name in (TO + ALL, f"{TO}{receiver}"):
                    if name in parcel.arrays:
                        box = self.boxes.setdefault(receiver, {})
                        box[f"{FROM}{sender}"] = parcel.arrays[name]

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Read the last evaluations, and note who has dropped out."""
        if server_round < self.last_round:
            return None
        try:
            super().aggregate_evaluate(server_round, replies)
            self._note_complaints(server_round + 1, self.round.good)
        finally:
            self._note_delivery(self.client_hashes)
            self._note_absence(server_round + 1, self.client_hashes)
        return None

    def _note_delivery(self, replies: Collection[int]) -> None:
        """Note whose mail has reached the clients that replied."""
        for client in replies:
            senders = {int(n.removeprefix(FROM)) for n in self.boxes.get(client, {})}
            self.received_from.setdefault(client, set()).update(senders)

    def _note_complaints(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> None:
        """Note whose mail is missing at its neighbours, or is of no use to them."""
        for client, parcel in replies.items():
            near = self.topology.neighbours[client]
            self.silent[client] = [j for j in near if f"{SILENT}{j}" in parcel.metrics]
            for j in near:
                if f"{UNUSABLE}{j}" in parcel.metrics:
                    self.unusable[j] = self.unusable.get(j, 0) + 1
                    words = f"client {client} cannot use a letter of client {j}"
                    log(WARNING, "round %d: %s: it is left out", server_round, words)

    def _note_absence(self, server_round: int, replies: Collection[int]) -> None:
        """Say who has dropped out, and what that leaves of the topology."""
        asked = self.round.asked
        for client in sorted(set(asked) - set(replies)):
            self.missed.setdefault(client, []).append(server_round)
        gone = sorted({*self.gone, *asked} - set(replies))
        if gone == self.gone:
            return
        self.gone = gone
        if not gone:
            log(INFO, "round %d: all clients are back", server_round)
            return
        parts = self.topology.components(gone)
        rest = "connected" if len(parts) <= 1 else f"in {len(parts)} parts: {parts}"
        words = f"clients {gone} are gone, their neighbours go on without them"
        log(WARNING, "round %d: %s; the rest is %s", server_round, words, rest)

    @override
    def models(self) -> dict[str, NamedArrays]:
        return {}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        mail = {
            f"{receiver}/{name}": letter
            for receiver, box in self.boxes.items()
            for name, letter in box.items()
        }
        missed = {str(c): rounds for c, rounds in self.missed.items()}
        received = {
            str(c): sorted(senders) for c, senders in self.received_from.items()
        }
        silent = {str(c): senders for c, senders in self.silent.items()}
        unusable = {str(c): count for c, count in self.unusable.items()}
        return mail, {
            "missed": missed,
            "gone": self.gone,
            "heard": received,
            "silent": silent,
            "unusable": unusable,
        }

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.boxes = {}
        self.missed = {int(c): list(rounds) for c, rounds in facts["missed"].items()}
        self.gone = list(facts["gone"])
        self.received_from = {
            int(c): set(senders) for c, senders in facts["heard"].items()
        }
        self.silent = {int(c): list(s) for c, s in facts["silent"].items()}
        self.unusable = {int(c): int(n) for c, n in facts["unusable"].items()}
        for name, letter in arrays.items():
            receiver, _, rest = name.partition("/")
            self.boxes.setdefault(int(receiver), {})[rest] = letter

    @override
    def peers(self) -> dict[int, list[int]]:
        """Return neighbours whose mail has come."""
        return {c: sorted(self.received_from.get(c, ())) for c in self.clients}
