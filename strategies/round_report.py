"""Report of a strategy on a round: evaluations, bytes, failures, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgraph_flwr.core.wire import (
    COMPUTE_S,
    EVAL,
    STARTED_AT,
    NamedArrays,
    Parcel,
    count_key,
)

HELD_OUT = "held_out"  # point of evaluations of clients that never train
RARE = 0.1  # share of the training labels below which a class is rare
NOWHERE = -1  # node of a client that has none


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One measured value of one client.

    ``server_round`` is the round whose model was measured: a model received in
    round t is the aggregate of round t - 1. ``point`` is "post_aggregation" (the
    received model), "post_training" (the trained one), "held_out" (the model received
    by a client that never trains), "hostile" (at a client that attacks) or "update".
    """

    server_round: int
    client: int
    split: str
    point: str
    metric: str
    value: float
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """Bytes of one record of a serialised message; client -1: the header."""

    server_round: int
    client: int
    direction: str  # "down" or "up"
    record: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ClientInfo:
    """A client's answer to the roll call; ``class_counts`` if its site shares them.

    ``class_counts`` are its graphs by class, of every split, ``train_counts`` those
    that train, if its site tells scores; ``tasks`` the names of its labels where graphs
    have no class, ``task_ids`` those that it trains on; ``introduced`` what its method
    adds; ``identity`` tells its data from others of the same size; ``site`` is what its
    site calls itself, "" if nothing.
    """

    client: int
    node_id: int
    num_train: int
    num_val: int
    num_test: int
    num_features: int
    num_classes: int
    group: int
    split_hash: str
    raw_sha256: str
    class_counts: tuple[int, ...] = ()
    train_counts: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    task_ids: tuple[int, ...] = ()
    introduced: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    site: str = ""
    num_edge_features: int = 0
    num_graph_features: int = 0

    @property
    def widths(self) -> dict[str, int]:
        """Widths of its data, from which a model is built."""
        names = "num_features", "num_classes", "num_edge_features", "num_graph_features"
        return {name: getattr(self, name) for name in names}

    @property
    def num_graphs(self) -> int:
        """Number of graphs, or of labelled nodes, in all splits."""
        return self.num_train + self.num_val + self.num_test

    def to_json(self) -> dict[str, Any]:
        """Everything but the node, which means nothing in another run.

        What most clients lack has an entry only where it is there.
        """
        left_out = {"node_id", "introduced"}
        seldom = "site", "num_edge_features", "num_graph_features"
        left_out |= {name for name in seldom if not getattr(self, name)}
        facts = {**vars(self), "told": dict(self.introduced)}
        return {k: v for k, v in facts.items() if k not in left_out}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> ClientInfo:
        """Read back what :meth:`to_json` gave; the client is on no node."""
        lists = ("class_counts", "train_counts", "tasks", "task_ids")
        found = {"introduced" if k == "told" else k: v for k, v in facts.items()}
        return cls(
            **{**found, **{k: tuple(facts[k]) for k in lists}, "node_id": NOWHERE}
        )


def class_totals(clients: Iterable[ClientInfo]) -> list[int]:
    """Count training labels of each class; [] unless all clients tell the same ones."""
    counts = [i.train_counts for i in clients]
    if not all(counts) or len({*map(len, counts)}) > 1:
        return []
    return [sum(of_class) for of_class in zip(*counts, strict=True)]


@dataclass(frozen=True)
class Rarest:
    """The class of fewest training labels over all clients that tell them.

    ``share`` is its part of all these labels. A class that nobody trains on cannot be
    learned, and does not count. ``chooses``: average precision chooses rounds.
    """

    number: int
    share: float
    chooses: bool = False

    @classmethod
    def of(cls, clients: Iterable[ClientInfo], *, may_choose: bool) -> Rarest | None:
        """Find it; None if nobody tells counts, or classes are not the same for all."""
        total = class_totals([i for i in clients if i.train_counts])
        known = [(n, k) for k, n in enumerate(total) if n]
        if len(known) < 2:
            return None
        # Of equals the last: of two classes, "yes" is commonly the second.
        count, number = min(known, key=lambda pair: (pair[0], -pair[1]))
        share = count / sum(total)
        return cls(number, share, may_choose and share < RARE)


@dataclass(kw_only=True)
class RoundReport:
    """Everything observed in one exchange with the clients.

    ``arrays`` are the method's own, e.g. weights between clients, and ``files`` what
    was evaluated, by the names of NPZ files; the run keeps both.
    """

    server_round: int
    evaluations: list[Evaluation] = field(default_factory=list)
    ledger: list[LedgerEntry] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    wall_s: float = 0.0
    client_compute_s: float = 0.0
    busy_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: NamedArrays = field(default_factory=dict)
    files: dict[str, NamedArrays] = field(default_factory=dict)
    is_complete: bool = False  # aggregated; False if the run stopped in this round
    is_closing: bool = False  # the evaluation after the last round

    def note(
        self, server_round: int, info: ClientInfo, metric: str, value: float
    ) -> None:
        """Add what the server measured of a client's update."""
        self.evaluations.append(
            Evaluation(
                server_round=server_round,
                client=info.client,
                split="train",
                point="update",
                metric=metric,
                value=float(value),
                num_examples=info.num_train,
            )
        )


def read_evaluations(
    server_round: int, client: int, metrics: Mapping[str, int | float]
) -> list[Evaluation]:
    """Collect the evaluations in a client's metrics.

    ``server_round`` is the round of the message; what was measured on the received
    model belongs to the round before.
    """
    found = []
    for name, value in metrics.items():
        if not name.startswith(EVAL):
            continue
        split, point, metric = name.removeprefix(EVAL).split("/")
        shift = 1 if point == "post_aggregation" else 0
        found.append(
            Evaluation(
                server_round=server_round - shift,
                client=client,
                split=split,
                point=point,
                metric=metric,
                value=float(value),
                num_examples=int(metrics[count_key(split)]),
            )
        )
    return found


def busy_seconds(
    parcels: Iterable[Parcel], started_at: float, ended_at: float
) -> float:
    """Length of the union of the clients' working intervals, in seconds.

    Clipped to the round on the server's clock, so a site whose clock is off distorts
    the figure but cannot make it negative or longer than the round.
    """
    spans = sorted(
        (
            max(started_at, p.metrics[STARTED_AT]),
            min(ended_at, p.metrics[STARTED_AT] + p.metrics[COMPUTE_S]),
        )
        for p in parcels
        if STARTED_AT in p.metrics
    )
    busy, reached = 0.0, started_at
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return busy
