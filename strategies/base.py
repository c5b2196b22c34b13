"""Base of every strategy: all Flower plumbing, so that papers see only clients.

A node hosts one or more clients. One message per node and round carries a parcel per
hosted client; a paper's strategy sees ``{client_id: parcel}`` in ascending order and
returns the same, hence results cannot depend on how clients are spread over nodes.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, ClassVar

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.peers.topology import Network
from fedgraph_flwr.seeding import numpy_rng
from fedgraph_flwr.wire import (
    FRESH_START,
    LAST_ROUND,
    OPENING,
    SAME_DATA,
    SPENT,
    NamedArrays,
    Parcel,
    Scalar,
    pack,
    record_sizes,
    shortened,
    with_prefix,
)

from .directory import Directory, exchange
from .evaluator import Evaluator
from .replies import (
    WEIGHTS_HASH,
    Expected,
    Layout,
    Phase,
    check_privacy,
    misfit,
    read_reply,
)
from .report import (
    ClientInfo,
    Evaluation,
    LedgerEntry,
    RoundReport,
    busy_seconds,
    read_evaluations,
)

_TICK_S = 0.11  # a little more than the period of Flower's dispatcher
Observer = Callable[["AbstractGraphStrategy", RoundReport], None]
Stopper = Callable[[Iterable[Evaluation]], bool]


class AbstractGraphStrategy(Strategy):
    """A Flower strategy that reasons about clients.

    A paper fills in :meth:`outgoing`, :meth:`step`, :meth:`models` and the pair
    :meth:`state` / :meth:`restore`; it sees neither nodes nor messages.

    Parameters
    ----------
    settings : RunSettings
    params : Settings
        Parameters of the method.
    experiment : str
        Name under which clients keep their private state.
    observer : callable
        Given this strategy and a :class:`RoundReport` once per round, after
        aggregation and before the state changes again. The next round's messages are
        out by then, so that it is written while clients compute.
    evaluator : Evaluator
        Evaluates in the clients' stead whatever they hand over for it.
    stopper : callable
        Given the evaluations that are new, says whether training ends here; asked
        before each round.
    """

    HAS_MODEL: ClassVar[bool] = True  # common to several clients

    def __init__(
        self,
        settings: RunSettings,
        params: Settings,
        *,
        experiment: str,
        observer: Observer = lambda _strategy, _report: None,
        evaluator: Evaluator | None = None,
        stopper: Stopper = lambda _evaluations: False,
    ) -> None:
        self.settings = settings
        self.params = params
        self.experiment = experiment
        self.observer = observer
        self.evaluator = evaluator or Evaluator()
        self.stopper = stopper
        self.clients: dict[int, ClientInfo] = {}
        self.client_hashes: dict[int, str] = {}
        self.spent: dict[int, dict[str, float]] = {}  # of their privacy budgets
        self.last_rounds: dict[int, int] = {}  # the last good reply of each client
        self.keep_from = 0  # round of the oldest checkpoint, for clients' states
        self.first_round = 1
        self.last_round = settings.num_server_rounds
        self._directory = Directory(settings, experiment=experiment)
        self._report = RoundReport(server_round=0)
        self._unpublished: RoundReport | None = None
        self._sent: list[Message] = []
        self._asked: list[int] = []  # who is to take part in this exchange
        self._addressed: set[int] = set()  # those of them whose node is online
        self._compute_s: dict[int, float] = {}
        self._began_at = 0.0

    # What a paper fills in -------------------------------------------------------

    @abstractmethod
    def initialise(self, arrays: NamedArrays) -> None:
        """Set the state before round 1 from the common initial shared tensors."""

    @abstractmethod
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Arrays to send to each client; those that do not take part are left out.

        Round 0 is the opening, where the paper has one.
        """

    @abstractmethod
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Aggregate the replies, given in ascending client order."""

    @abstractmethod
    def models(self) -> dict[str, NamedArrays]:
        """Return the server's models by name, for the results folder."""

    @abstractmethod
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """Arrays and JSON facts from which :meth:`restore` continues exactly."""

    @abstractmethod
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        """Set the state that :meth:`state` returned."""

    def uplink(self, server_round: int, client: int) -> Layout:  # noqa: ARG002
        """Arrays that a client must send: after training, or in the opening (round 0).

        Nothing unless overridden.
        """
        return {}

    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:  # noqa: ARG002
        """Say whose replies, good by themselves, do not go with the others'."""
        return {}

    def hands_over(self) -> tuple[str, ...]:
        """Names of what clients hand over beside their arrays after training."""
        return ()

    def peers(self) -> dict[int, list[int]]:
        """Return whose models reach each client in a round; all others' by default."""
        everyone = sorted(self.clients)
        return {c: [other for other in everyone if other != c] for c in everyone}

    def notes(self, server_round: int) -> dict[int, dict[str, Scalar]]:  # noqa: ARG002
        """Texts to send beside the arrays; none unless overridden."""
        return {}

    def has_opening(self) -> bool:
        """Whether every client is asked for something before round 1."""
        return False

    def opened(self, replies: dict[int, Parcel]) -> None:
        """Take what clients gave before round 1, in ascending client order."""

    def closed(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Take what clients say at the closing evaluation, in ascending order."""

    def disclosed(self) -> str:
        """Say which data of clients this run hands to others; "" for none."""
        return ""

    def remarks(self) -> dict[str, Any]:
        """Entries of the method's own for ``summary.json``; none unless overridden."""
        return {}

    def network(self) -> Network | None:
        """Who talks to whom, and who is gone, where clients talk to each other."""
        return None

    def clusters(self) -> list[list[int]]:
        """Return the sets of clients with one server model; one unless overridden."""
        return [sorted(self.clients)]

    def weight(self, client: int) -> float:
        """Weight of a client's model in an average, as ``weighting`` says."""
        if self.settings.weighting == "uniform":
            return 1.0
        return float(self.clients[client].num_train)

    def asked(self) -> list[int]:
        """Clients that are to take part in this exchange, ascending."""
        return list(self._asked)

    def addressed(self) -> list[int]:
        """Those of them whose node was online when messages went out."""
        return sorted(self._addressed)

    # Flower's interface ----------------------------------------------------------

    def expect(self, known: Mapping[int, ClientInfo]) -> None:
        """Let the roll call of a resumed run go on with these clients alone.

        Who has other data, or does not answer, is missing until that is mended.
        """
        self._directory.expect(known)

    def roll_call(self, grid: Grid) -> dict[int, ClientInfo]:
        """Find out which node hosts which client; in a new run all must answer.

        Raises
        ------
        RunFailedError
            Clients are missing when ``roll-call-timeout-s`` is over, in a resumed run
            more than ``min-fit-replies`` allows; or two nodes claim the same one.
        DataError
            A client cannot load its data; its own message is passed on.
        WireError
            A client's introduction is malformed.
        """
        self.clients = self._directory.call(grid)
        return self.clients

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002  models live in the strategy
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,
    ) -> Iterable[Message]:
        """One message per node, with a parcel for each client it hosts."""
        return self._configure(MessageType.TRAIN, server_round, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Map replies to clients, count failures, let the paper aggregate."""
        parcels = self._collect(server_round, replies)
        self._require(server_round, parcels)
        self._note_restarts(parcels)
        self.last_rounds |= dict.fromkeys(parcels, server_round)
        self.step(server_round, parcels)
        return None, None

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,
    ) -> Iterable[Message]:
        """Only after the last round: evaluations ride on train messages before."""
        if server_round < self.last_round:
            return []
        return self._configure(MessageType.EVALUATE, server_round + 1, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Read the last evaluations and the hashes of the clients' models."""
        if server_round < self.last_round:
            return None
        parcels = self._collect(server_round + 1, replies, Phase.CLOSING)
        self.client_hashes = {c: str(p.facts[WEIGHTS_HASH]) for c, p in parcels.items()}
        self._require(server_round + 1, parcels)
        self._note_restarts(parcels)
        self.closed(server_round + 1, parcels)
        self._report.is_closing = True
        return None

    def summary(self) -> None:
        """Log what is about to run."""
        log(
            INFO,
            "%s on %s: %d clients, %d rounds, seed %d",
            self.settings.method,
            self.settings.dataset,
            self.settings.num_clients,
            self.settings.num_server_rounds,
            self.settings.seed,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: object = None,  # noqa: ARG002  the server holds no data
    ) -> Result:
        """Run rounds ``first_round..num_rounds`` and the closing evaluation.

        Differs from Flower's loop: it can begin after a checkpoint, it
        polls for replies at a pace that follows the length of the round (Flower's
        waits 0.1 s in simulation and 3 s in deployment), and it sends no evaluate
        messages between rounds. ``stopper`` may end it earlier.
        """
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.summary()
        self._began_at = time.time()
        try:
            if self.first_round == 1 and self.has_opening():
                self._open(grid, timeout)
            for server_round in range(self.first_round, num_rounds + 1):
                if self.stopper(self._report.evaluations):
                    self.last_round = server_round - 1
                    log(INFO, "no better round for long: training ends here")
                    break
                messages = self.configure_train(
                    server_round, initial_arrays, train_config, grid
                )
                replies = exchange(
                    grid,
                    messages,
                    timeout,
                    head_start_s=self._head_start_s(),
                    meanwhile=self._publish,
                )
                try:
                    self.aggregate_train(server_round, replies)
                    self._report.is_complete = True
                finally:
                    self._close_round()
            messages = self.configure_evaluate(
                self.last_round, initial_arrays, evaluate_config, grid
            )
            replies = exchange(grid, messages, timeout, meanwhile=self._publish)
            try:
                self.aggregate_evaluate(self.last_round, replies)
            finally:
                self._close_round()
        finally:
            self._publish()
        return Result()

    # Between runs ----------------------------------------------------------------

    def frame_facts(self) -> dict[str, Any]:
        """JSON facts from which :meth:`restore_frame` continues; not the paper's."""
        return {
            "clients": {str(c): i.to_json() for c, i in sorted(self.clients.items())},
            "last_rounds": {str(c): r for c, r in sorted(self.last_rounds.items())},
            "spent": {str(c): s for c, s in sorted(self.spent.items())},
        }

    def restore_frame(self, facts: Mapping[str, Any]) -> None:
        """Set what :meth:`frame_facts` returned: who the clients were, what they did.

        Roll call then refuses clients that come back with other data.
        """
        known = {int(c): ClientInfo.from_json(i) for c, i in facts["clients"].items()}
        self.expect(known)
        self.last_rounds = {int(c): int(r) for c, r in facts["last_rounds"].items()}
        self.spent = {int(c): dict(s) for c, s in facts["spent"].items()}

    # Plumbing --------------------------------------------------------------------

    def _note_restarts(self, parcels: Mapping[int, Parcel]) -> None:
        """Report clients that lost their state and began anew, as their site wished."""
        lost = {
            c: int(p.metrics[FRESH_START])
            for c, p in parcels.items()
            if FRESH_START in p.metrics
        }
        for client, last_round in lost.items():
            log(
                WARNING,
                "round %d: client %d lost its state of round %d and began afresh",
                self._report.server_round,
                client,
                last_round,
            )
        if lost:
            self._report.facts["fresh_starts"] = lost

    def _told(self, client: int) -> dict[str, Scalar]:
        """Facts for a client: its data, its last round and what it has spent, so far.

        It refuses to go on from less.
        """
        facts: dict[str, Scalar] = {}
        if identity := self.clients[client].identity:
            facts[SAME_DATA] = identity
        if last_round := self.last_rounds.get(client):
            facts[LAST_ROUND] = last_round
        return facts | with_prefix(SPENT, self.spent.get(client, {}))

    def _open(self, grid: Grid, timeout: float) -> None:
        """Round 0: every client gives, none trains. Failures count as in any round."""
        messages = self._configure(f"{MessageType.QUERY}.{OPENING}", 0, grid)
        replies = exchange(grid, messages, timeout)
        try:
            parcels = self._collect(0, replies, Phase.OPENING)
            self._require(0, parcels)
            self.opened(parcels)
        finally:
            self._close_round()

    def _configure(
        self, message_type: str, server_round: int, grid: Grid
    ) -> list[Message]:
        self._report = RoundReport(server_round=server_round)
        is_training = message_type == MessageType.TRAIN
        self._asked = self._sample(server_round) if is_training else list(self.clients)
        outgoing = self.outgoing(server_round)
        notes = self.notes(server_round)
        parcels = {
            c: Parcel(arrays=outgoing[c], facts=self._told(c) | notes.get(c, {}))
            for c in self._asked
        }
        hosts = self._directory.hosts(grid, parcels)
        header: dict[str, Scalar] = {
            "server-round": server_round,
            "experiment": self.experiment,
            "keep-from": self.keep_from,
        }
        contents = {
            node: pack({c: parcels[c] for c in members}, header)
            for node, members in hosts.items()
        }
        # Longest first, so that the slowest node does not start last.
        order = sorted(contents, key=lambda n: (-self._load(hosts[n]), hosts[n]))
        for node in sorted(contents, key=lambda n: hosts[n]):
            self._enter("down", contents[node])
        self._addressed = {c for members in hosts.values() for c in members}
        self._sent = [Message(contents[n], n, message_type) for n in order]
        return self._sent

    def _sample(self, server_round: int) -> list[int]:
        """Clients that train in this round, ascending: ``client-fraction`` of all."""
        count = self.settings.clients_per_round
        rng = numpy_rng(self.settings.seed, "server", server_round, "clients")
        chosen = rng.choice(sorted(self.clients), size=count, replace=False)
        return sorted(int(c) for c in chosen)

    def _head_start_s(self) -> float:
        """Let the longest message go first where it decides the length of the round.

        Flower's simulation hands out what is waiting every 0.1 s, in the order of its
        nodes and not of our messages; a client as large as all others together
        would otherwise start last.
        """
        loads = [self._load(m) for m in self._directory.hosted().values()]
        longest, second = [*sorted(loads, reverse=True), 0.0][:2]
        decides = second > 0 and longest > max(2 * second, 3 * _TICK_S)
        return _TICK_S if decides else 0.0

    def _load(self, members: list[int]) -> float:
        return sum(self._compute_s.get(c, 0.0) for c in members)

    def _enter(
        self, direction: str, content: RecordDict, of: Collection[int] | None = None
    ) -> None:
        """Enter a message's records in the ledger; with ``of``, theirs alone."""
        self._report.ledger.extend(
            LedgerEntry(
                server_round=self._report.server_round,
                client=client,
                direction=direction,
                record=record,
                bytes=size,
            )
            for client, record, size in record_sizes(content)
            if of is None or client == -1 or client in of
        )

    def _collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        phase: Phase = Phase.TRAINING,
    ) -> dict[int, Parcel]:
        """Good parcels by client; everything else becomes a named failure."""
        report = self._report
        answers: dict[str, Message] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.reply_to_message_id, reply)
        hosted = self._directory.hosted()
        good: dict[int, Parcel] = {}
        for message in sorted(
            self._sent, key=lambda m: hosted[m.metadata.dst_node_id][0]
        ):
            node = message.metadata.dst_node_id
            asked = [c for c in hosted[node] if c in self._addressed]
            answer = answers.get(message.metadata.message_id)
            if answer is None:
                self._lose(node, asked)
            elif answer.has_error():
                self._directory.fail(node, answer.error)
                error = answer.error
                reason = (
                    f"node {node}: error {error.code}: {shortened(error.reason, 4000)}"
                )
                report.failures |= dict.fromkeys(asked, reason)
            else:
                self._enter("up", answer.content, of=asked)
                for client, parcel in read_reply(answer.content, asked).items():
                    if reason := self._refuse(client, parcel, phase):
                        report.failures[client] = reason
                    else:
                        good[client] = parcel
        for client in sorted(set(self._asked) - self._addressed):
            report.failures[client] = self._directory.reason(client)
        good = self._without_misfits(dict(sorted(good.items())), phase)
        for client, reason in sorted(report.failures.items()):
            log(WARNING, "round %d: client %d failed: %s", server_round, client, reason)
        self._compute_s |= {c: p.metrics["compute-s"] for c, p in good.items()}
        report.client_compute_s = sum(p.metrics["compute-s"] for p in good.values())
        report.busy_s = busy_seconds(good.values(), self._began_at, time.time())
        for client, parcel in good.items():
            report.evaluations += read_evaluations(server_round, client, parcel.metrics)
        report.evaluations += self.evaluator(server_round - 1, good)
        report.files = self.evaluator.files()
        return {c: replace(p, evaluation={}) for c, p in good.items()}

    def _refuse(self, client: int, parcel: Parcel, phase: Phase) -> str:
        """Why a parcel is a failure; "" if it is none. Keeps what privacy it tells."""
        spent, problem = check_privacy(
            client,
            parcel.metrics,
            self.spent.get(client, {}),
            is_failure=bool(parcel.error),
        )
        if spent:
            self.spent[client] = spent
        server_round = self._report.server_round
        layout = {} if phase is Phase.CLOSING else self.uplink(server_round, client)
        expected = Expected(info=self.clients[client], phase=phase, layout=layout)
        return parcel.error or problem or misfit(parcel, expected)

    def _without_misfits(
        self, good: dict[int, Parcel], phase: Phase
    ) -> dict[int, Parcel]:
        """Leave out whoever does not go with the others, and name them."""
        is_training = phase is Phase.TRAINING
        names = self.hands_over() if is_training else ()
        reasons = self.evaluator.misfits(self._report.server_round - 1, good, names)
        good = {c: p for c, p in good.items() if c not in reasons}
        if is_training:
            reasons |= self.misfits(good)
        self._report.failures |= reasons
        return {c: p for c, p in good.items() if c not in reasons}

    def _lose(self, node: int, clients: list[int]) -> None:
        """Name the clients of a node that is late, and wait for it no second time."""
        log(
            WARNING,
            "round %d: node %d did not answer within round-timeout-s = %g: clients %s"
            " are left out until it answers a roll call",
            self._report.server_round,
            node,
            self.settings.round_timeout_s,
            clients,
        )
        self._directory.silence(node, self._report.server_round)
        reason = "no reply before the round's timeout"
        self._report.failures |= dict.fromkeys(clients, reason)

    def _require(self, server_round: int, good: Mapping[int, Parcel]) -> None:
        # Less a hair: 0.55 * 100 is a little more than 55.
        needed = math.ceil(self.settings.min_fit_replies * len(self._asked) - 1e-9)
        if len(good) >= needed:
            return
        failed = "; ".join(
            f"client {c}: {r}" for c, r in sorted(self._report.failures.items())
        )
        raise RunFailedError(
            f"round {server_round}: {len(good)} of {len(self._asked)} clients replied,"
            f" min-fit-replies = {self.settings.min_fit_replies:g} needs {needed}."
            f" {failed}. Mend the clients, or lower min-fit-replies to go on without"
        )

    def _close_round(self) -> None:
        # Rounds adjoin: nothing between them is left out of the wall time.
        now = time.time()
        self._report.wall_s, self._began_at = now - self._began_at, now
        self._report.facts["clusters"] = self.clusters()
        self._unpublished = self._report

    def _publish(self) -> None:
        """Let the observer see the closed round, while clients do the next one."""
        report, self._unpublished = self._unpublished, None
        if report is not None:
            self.observer(self, report)
