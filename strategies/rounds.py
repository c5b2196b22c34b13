"""One exchange of a strategy with its clients: whom it asks, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import WARNING

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedgraph_flwr.core.attack_settings import APART, HOSTILE
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.privacy_settings import METRIC as PRIVACY
from fedgraph_flwr.core.secure_aggregation import (
    HAND_IN,
    HANDED,
    decode_scores,
    may_drop_out,
    summed_scores,
)
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.tasks import POOLED
from fedgraph_flwr.core.wire import (
    COMPUTE_S,
    EARLIER_RUNS,
    EVAL,
    EXPERIMENT,
    FRESH_START,
    KEEP_FROM,
    MAX_REASON,
    OPENING,
    SERVER_ROUND,
    NamedArrays,
    Parcel,
    Scalar,
    count_key,
    flatten,
    pack,
    record_sizes,
)
from fedgraph_flwr.core.words import shortened, tell_reasons, with_sites

from .attacks import distances_from_mean, falsify
from .paper import Paper
from .replies import (
    Expected,
    apply,
    check_privacy,
    find_absurd,
    misfit,
    read_reply,
    update_of,
)
from .round_report import (
    HELD_OUT,
    LedgerEntry,
    RoundReport,
    busy_seconds,
    read_evaluations,
)
from .sending import exchange
from .sums import RoundSum, choose_members, remember

_TYPES = {
    Phase.OPENING: f"{MessageType.QUERY}.{OPENING}",
    Phase.TRAINING: MessageType.TRAIN,
    Phase.HAND_IN: HAND_IN,
    Phase.CLOSING: MessageType.EVALUATE,
}


class Round:
    """Messages to nodes and the good replies of clients; every failure has a name.

    Parameters
    ----------
    number : int
        0 for the opening, the number after the last round for the closing evaluation.
    began_at : float
        Unix time in seconds.
    """

    def __init__(
        self,
        strategy: Paper,
        phase: Phase,
        number: int,
        *,
        began_at: float,
    ) -> None:
        self.phase = phase
        self.report = RoundReport(server_round=number)
        self.asked: list[int] = []  # clients that are to take part, ascending
        self.good: dict[int, Parcel] = {}
        self.is_summed = False  # the server is to see no single update
        self.sums: dict[int, RoundSum] = {}  # by client, where it is known whose
        self._strategy = strategy
        self._began_at = began_at
        self._addressed: set[int] = set()  # of those asked, whose node is online
        self._sent: list[Message] = []
        self._sent_to: dict[int, NamedArrays] = {}  # of one client, or of all
        self._num_good: dict[str, int] = {}  # parcels of a reply, by its message
        self._is_quorate = False  # before all replies were in

    @property
    def _one_sent(self) -> NamedArrays:
        """Arrays that one client got."""
        return next(iter(self._sent_to.values()), {})

    # Down ------------------------------------------------------------------------

    def messages(self, grid: Grid) -> list[Message]:
        """Make one message per node, with a parcel for each client that is asked.

        The longest comes first, so that the slowest node does not start last.
        """
        strategy, number = self._strategy, self.report.server_round
        is_training = self.phase is Phase.TRAINING
        is_hand_in = self.phase is Phase.HAND_IN
        if not is_hand_in:
            self.asked = self._sample() if is_training else list(strategy.clients)
        nothing = dict.fromkeys(self.asked, NamedArrays())
        outgoing = nothing if is_hand_in else strategy.outgoing(number)
        if lacking := [c for c in self.asked if c not in outgoing]:
            raise RunFailedError(
                f"outgoing() of {type(strategy).__name__} must have arrays for each"
                f" client that takes part in round {number}, but has none for"
                f" {shortened(lacking)}; add them, and let client-fraction choose who"
                " trains"
            )
        hosts = strategy.directory.hosts(grid, self.asked)
        self._addressed = {c for members in hosts.values() for c in members}
        if is_training and strategy.secagg.on:
            self.is_summed = strategy.secagg.scores == "sum" or any(
                strategy.uplink(number, c) for c in self.asked
            )
            if self.is_summed and not may_drop_out(strategy.settings):
                self._begin_sums(strategy.sums(), outgoing)
        elif self.phase is Phase.CLOSING and strategy.secagg.scores == "sum":
            there = [[c for c in s if c in self._addressed] for s in strategy.sums()]
            enough = [s for s in there if len(s) >= strategy.secagg.least]
            self._begin_sums(enough, outgoing)
        parcels = {
            c: Parcel(
                arrays=outgoing[c],
                facts=strategy.facts(c)
                | (self.sums[c].sum_of.to_facts() if c in self.sums else {}),
            )
            for c in self.asked
        }
        count = len(parcels) if strategy.hostile or strategy.robust.is_on else 1
        self._sent_to = {c: p.arrays for c, p in [*parcels.items()][:count]}
        header: dict[str, Scalar] = {
            SERVER_ROUND: number,
            EXPERIMENT: strategy.experiment,
            KEEP_FROM: strategy.keep_from,
        }
        if others := strategy.lives.to_text():
            header[EARLIER_RUNS] = others
        contents = {
            node: pack({c: parcels[c] for c in members}, header)
            for node, members in hosts.items()
        }
        order = sorted(contents, key=lambda n: (-strategy.load(hosts[n]), hosts[n]))
        for node in sorted(contents, key=lambda n: hosts[n]):
            self._enter("down", contents[node])
        self._sent = [Message(contents[n], n, _TYPES[self.phase]) for n in order]
        return self._sent

    def _sample(self) -> list[int]:
        """Clients that train in this round: ``client-fraction`` of all that ever do."""
        settings, number = self._strategy.settings, self.report.server_round
        rng = numpy_rng(settings.seed, "server", number, "clients")
        everyone = self._strategy.trainers()
        count = min(settings.clients_per_round, len(everyone))
        chosen = rng.choice(everyone, size=count, replace=False)
        return sorted(int(c) for c in chosen)

    # Up --------------------------------------------------------------------------

    def collect(self, replies: Iterable[Message]) -> dict[int, Parcel]:
        """Good parcels by client, ascending; everything else becomes a named failure.

        What clients handed over to be evaluated is evaluated, and left out of them.
        """
        strategy, report = self._strategy, self.report
        good = self._without_misfits(self._read(replies))
        if report.failures:
            words = tell_reasons(report.failures, strategy.sites)
            log(WARNING, "round %d, failed: %s", report.server_round, words)
        seconds = {c: p.metrics[COMPUTE_S] for c, p in good.items()}
        if self.phase is not Phase.CLOSING:  # which is no measure of a round
            strategy.compute_s |= seconds
        report.client_compute_s = sum(seconds.values())
        report.busy_s = busy_seconds(good.values(), self._began_at, strategy.now())
        for client, parcel in good.items():
            found = read_evaluations(report.server_round, client, parcel.metrics)
            if client in strategy.settings.never_train:
                found = [replace(e, point=HELD_OUT) for e in found]
            if client in strategy.hostile:
                found = [replace(e, point=HOSTILE) for e in found]
            report.evaluations += found
        honest = {c: p for c, p in good.items() if c not in strategy.hostile}
        report.evaluations += strategy.evaluator(report.server_round - 1, honest)
        report.files = strategy.evaluator.files
        self.good = {c: replace(p, evaluation={}) for c, p in good.items()}
        return self.good

    def require(self, good: Mapping[int, Parcel]) -> None:
        """Stop unless enough clients replied; report those that began afresh.

        Raises
        ------
        RunFailedError
            Fewer than ``min-fit-replies`` of those asked.
        """
        share, needed = self._strategy.settings.min_fit_replies, self._needed()
        if len(good) < needed:
            failed = tell_reasons(self.report.failures, self._strategy.sites)
            raise RunFailedError(
                f"round {self.report.server_round}: {len(good)} of {len(self.asked)}"
                f" clients replied, min-fit-replies = {share:g} needs {needed}."
                f" {failed}. Mend the clients, or lower min-fit-replies to go on"
                " without them"
            )
        self._note_restarts(good)

    def summed(self, good: dict[int, Parcel], grid: Grid) -> dict[int, Parcel]:
        """Put the mean in the place of each model that the server must not see.

        Clients that may drop out have trained by now, and hand in.

        Raises
        ------
        RunFailedError
            A client of the sum is lost, or as :meth:`RoundSum.open`.
        """
        strategy, number = self._strategy, self.report.server_round
        if not self.is_summed:
            return good
        if not self.sums:
            told = {c: tuple(map(int, p.arrays[HANDED])) for c, p in good.items()}
            needed = max(self._needed(), strategy.secagg.least)
            # Only the first round that a server does may have been done before.
            is_first = number == strategy.first_round
            members = choose_members(told, number, needed, may_repeat=is_first)
            late = "it has trained, and is in no sum of this round"
            self.report.failures |= dict.fromkeys(good.keys() - {*members}, late)
            sent = dict.fromkeys(members, self._one_sent)  # all were sent the same
            self._begin_sums([members], sent)
            handed = self._hand_in(grid)
            good = {c: replace(good[c], arrays=handed[c].arrays) for c in members}
        found = self._open(good)
        remember(strategy, self._every_sum())
        return dict(sorted(found.items()))

    def enter_last_scores(self, good: Mapping[int, Parcel]) -> None:
        """Enter the sum of the closing evaluation, unless a client of it is lost."""
        if self._strategy.secagg.scores == "each":
            return
        if self.sums and self.sums.keys() <= good.keys():
            self._open(good)
            return
        lost = [c for c in self.asked if c not in good]
        log(
            WARNING,
            "the last model has no scores: clients %s did not answer, and without them"
            " the sum cannot be opened",
            shortened(lost),
        )

    def _every_sum(self) -> Collection[RoundSum]:
        return {id(one): one for one in self.sums.values()}.values()

    def _open(self, good: Mapping[int, Parcel]) -> dict[int, Parcel]:
        """Open all sums; enter scores as those of all clients together."""
        strategy, found = self._strategy, dict[int, Parcel]()
        names = summed_scores(strategy.secagg, strategy.settings)
        totals = np.zeros(2 * len(names))
        for one in self._every_sum():
            of_sum = {c: good[c] for c in one.sum_of.members}
            parcels, scores = one.open(of_sum, strategy.robust.guard)
            found |= parcels
            totals += scores
        for name, (mean, count) in decode_scores(names, totals).items():
            split = name.removeprefix(EVAL).partition("/")[0]
            metrics = {name: mean, count_key(split): count}
            number = self.report.server_round
            self.report.evaluations += read_evaluations(number, POOLED, metrics)
        return found

    def _begin_sums(
        self, sets: Iterable[Sequence[int]], sent: Mapping[int, NamedArrays]
    ) -> None:
        for members in sets:
            one = RoundSum.of(
                self._strategy, self.report.server_round, members, sent[members[0]]
            )
            self.sums |= dict.fromkeys(members, one)

    def _hand_in(self, grid: Grid) -> dict[int, Parcel]:
        """Ask the clients of the sum for their covered updates."""
        strategy, number = self._strategy, self.report.server_round
        hand_in = Round(strategy, Phase.HAND_IN, number, began_at=self._began_at)
        hand_in.report, hand_in.sums = self.report, self.sums
        hand_in.asked = sorted(self.sums)
        wait_s = strategy.secagg.hand_in_timeout_s
        messages = hand_in.messages(grid)
        handed = hand_in._read(exchange(grid, messages, wait_s))
        if lost := [c for c in self.sums if c not in handed]:
            of_lost = {c: self.report.failures[c] for c in lost}
            raise RunFailedError(
                f"round {number}: clients {shortened(lost)} have handed nothing in"
                f" (secure-aggregation.hand-in-timeout-s = {wait_s:g}), and without"
                " them the sum cannot be opened:"
                f" {tell_reasons(of_lost, strategy.sites)}; resume the run when they"
                " are back"
            )
        return handed

    def has_quorum(self, replies: Iterable[Message]) -> bool:
        """Whether the good parcels in these replies are as many as a round needs."""
        asked_of = {m.metadata.message_id: m for m in self._sent}
        hosted = self._strategy.directory.hosted()
        for reply in replies:
            key = reply.metadata.reply_to_message_id
            if key not in self._num_good:
                node = asked_of[key].metadata.dst_node_id
                asked = [c for c in hosted[node] if c in self._addressed]
                self._num_good[key] = self._count_good(reply, asked)
        self._is_quorate = sum(self._num_good.values()) >= self._needed()
        return self._is_quorate

    def _count_good(self, reply: Message, asked: list[int]) -> int:
        if reply.has_error():
            return 0
        parcels = read_reply(reply.content, asked).items()
        return sum(not self._judge(c, parcel)[1] for c, parcel in parcels)

    def _needed(self) -> int:
        """How many clients must reply: ``min-fit-replies`` of those asked."""
        share = self._strategy.settings.min_fit_replies
        # Less a hair: 0.55 * 100 is a little more than 55.
        return math.ceil(share * len(self.asked) - 1e-9)

    def close(self, clusters: list[list[int]]) -> float:
        """Complete the report and return the time, at which the next round begins."""
        # Rounds adjoin: nothing between them is left out of the wall time.
        now = self._strategy.now()
        self.report.wall_s = now - self._began_at
        self.report.facts["clusters"] = clusters
        self.good, self._sent = {}, []  # before clients need the memory
        self._sent_to = {}
        return now

    def _read(self, replies: Iterable[Message]) -> dict[int, Parcel]:
        """Parcels that are good by themselves, ascending; the others are failures."""
        directory, failures = self._strategy.directory, self.report.failures
        answers: dict[str, Message] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.reply_to_message_id, reply)
        hosted = directory.hosted()
        good: dict[int, Parcel] = {}
        for message in sorted(
            self._sent, key=lambda m: hosted[m.metadata.dst_node_id][0]
        ):
            node = message.metadata.dst_node_id
            asked = [c for c in hosted[node] if c in self._addressed]
            answer = answers.get(message.metadata.message_id)
            if answer is None:
                self._lose(message, asked)
            elif answer.has_error():
                directory.fail(node, answer.error)
                error = answer.error
                said = shortened(error.reason, MAX_REASON)
                reason = f"node {node}: error {error.code}: {said}"
                failures |= dict.fromkeys(asked, reason)
            else:
                self._enter("up", answer.content, of=asked)
                for client, parcel in read_reply(answer.content, asked).items():
                    spent, reason = self._judge(client, parcel)
                    if spent:
                        self._strategy.spent[client] = spent
                    if reason:
                        failures[client] = reason
                    else:
                        good[client] = parcel
        for client in sorted(set(self.asked) - self._addressed):
            failures[client] = directory.reason(client)
        return dict(sorted(good.items()))

    def _judge(self, client: int, parcel: Parcel) -> tuple[dict[str, float], str]:
        """Privacy that a client has spent, and why its parcel is a failure, or ""."""
        strategy = self._strategy
        if self.phase is Phase.HAND_IN:  # of what was told to be spent in training
            return {}, parcel.error or misfit(parcel, self._expect(client))
        spent, problem = strategy.spent.get(client, {}), ""
        if spent or any(name.startswith(PRIVACY) for name in parcel.metrics):
            spent, problem = check_privacy(
                client,
                parcel.metrics,
                spent,
                of_run=strategy.privacy,
                is_failure=bool(parcel.error),
            )
        return spent, parcel.error or problem or misfit(parcel, self._expect(client))

    def _expect(self, client: int) -> Expected:
        strategy, number = self._strategy, self.report.server_round
        is_closing = self.phase is Phase.CLOSING
        layout = {} if is_closing else strategy.uplink(number, client)
        if self.is_summed:  # and clients hand in later
            layout = {HANDED: ("int64", (None,))}
        return Expected(
            info=strategy.clients[client],
            phase=self.phase,
            layout=self.sums[client].layout if client in self.sums else layout,
            due=self._due(),
            on_all=is_closing and strategy.scores_elsewhere,
            neighbours=strategy.neighbours(client),
            fields=strategy.params.sends(),
        )

    def _due(self) -> list[str]:
        """Points at which clients evaluate their models in this exchange."""
        settings, number = self._strategy.settings, self.report.server_round
        if self.phase is not Phase.TRAINING:
            return ["post_aggregation"] if self.phase is Phase.CLOSING else []
        models = {"post_aggregation": number - 1, "post_training": number}
        return [point for point, after in models.items() if settings.is_measured(after)]

    def _without_misfits(self, good: dict[int, Parcel]) -> dict[int, Parcel]:
        """Leave out clients whose replies do not go with the others', and name them."""
        strategy = self._strategy
        is_training = self.phase is Phase.TRAINING and not self.is_summed
        names = strategy.hands_over() if is_training else ()
        measured_round = self.report.server_round - 1
        misfit = strategy.evaluator.misfit
        reasons = {
            c: words
            for c, p in good.items()
            if (words := misfit(measured_round, c, p.evaluation, names))
        }
        good = {c: p for c, p in good.items() if c not in reasons}
        good = self._attacked(good) if is_training else good
        reasons |= find_absurd(good, self._one_sent, strategy.robust.guard)
        good = {c: p for c, p in good.items() if c not in reasons}
        if is_training:
            reasons |= strategy.misfits(good)
        # A plug-in's may be of any length, which no reader of CSV files takes.
        self.report.failures |= {
            c: shortened(r, MAX_REASON) for c, r in reasons.items()
        }
        return {c: p for c, p in good.items() if c not in reasons}

    def _attacked(self, good: dict[int, Parcel]) -> dict[int, Parcel]:
        """Note how far honest updates lie apart; let hostile clients send others."""
        strategy, number, sent = self._strategy, self.report.server_round, self._sent_to
        hostile, seed = strategy.hostile, strategy.settings.seed
        if not (hostile or strategy.robust.is_on):
            return good
        updates = {c: flatten(update_of(p.arrays, sent[c])) for c, p in good.items()}
        if not any(u.size for u in updates.values()):  # a round without a model
            return good
        honest = [c for c in updates if c not in hostile]
        apart = distances_from_mean([updates[c] for c in honest])
        for client, value in zip(honest, apart, strict=False):  # none without a mean
            self.report.note(number, strategy.clients[client], APART, value)
        rngs = {c: numpy_rng(seed, "attack", number, c) for c in sorted(hostile)}
        false = falsify(updates, rngs, strategy.attack)
        return good | {
            c: replace(good[c], arrays=apply(u, good[c].arrays, sent[c]))
            for c, u in false.items()
        }

    def _lose(self, message: Message, clients: list[int]) -> None:
        """Name the clients of a node that is late, and wait for it no second time."""
        strategy, number = self._strategy, self.report.server_round
        s, node = strategy.settings, message.metadata.dst_node_id
        if self._is_quorate and s.late_after_s:
            deadline = f"late-after-s = {s.late_after_s:g} of the others"
            reason = f"no reply within {deadline}"
        else:
            deadline = f"round-timeout-s = {s.round_timeout_s:g}"
            reason = "no reply before the round's timeout"
        who = with_sites(f"node {node}", clients, strategy.sites)
        words = f"clients {clients} are left out until it has answered"
        log(
            WARNING,
            "round %d: %s did not answer within %s: %s",
            number,
            who,
            deadline,
            words,
        )
        strategy.directory.leave_out(node, message.metadata.message_id, number)
        self.report.failures |= dict.fromkeys(clients, reason)

    def _note_restarts(self, good: Mapping[int, Parcel]) -> None:
        """Report clients that lost their state and began afresh."""
        for client, parcel in good.items():
            if (last := parcel.metrics.get(FRESH_START)) is not None:
                self.report.facts.setdefault("fresh_starts", {})[client] = int(last)
                words = (
                    f"client {client} lost its state of round {last} and began afresh"
                )
                log(WARNING, "round %d: %s", self.report.server_round, words)

    def _enter(
        self, direction: str, content: RecordDict, of: Collection[int] | None = None
    ) -> None:
        """Enter a message's records in the ledger; with ``of``, theirs alone."""
        self.report.ledger.extend(
            LedgerEntry(
                server_round=self.report.server_round,
                client=client,
                direction=direction,
                record=record,
                bytes=size,
            )
            for client, record, size in record_sizes(content)
            if of is None or client == -1 or client in of
        )
