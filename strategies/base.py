"""Base of every strategy: all dealings with Flower, so that papers see only clients.

A node hosts one or more clients. One message per node and round carries a parcel per
hosted client; a paper's strategy sees ``{client_id: parcel}`` in ascending order and
returns the same, hence results cannot depend on how clients are spread over nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from logging import INFO
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from typing_extensions import override

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.robust_settings import WEIGHT
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import WEIGHTS_HASH, NamedArrays, Parcel, flatten
from fedgraph_flwr.core.words import shortened

from .averaging import (
    FloatArray,
    check_same_layout,
    find_bad_array,
    outweighing,
    unflatten,
    weighted_mean,
)
from .paper import Paper
from .robust import join, levelled
from .round_report import ClientInfo, Rarest, RoundReport
from .rounds import Round
from .sending import exchange


class AbstractGraphStrategy(Paper, Strategy):
    """A Flower strategy that reasons about clients.

    A paper fills in :meth:`outgoing`, :meth:`step`, :meth:`models` and the pair
    :meth:`state` / :meth:`restore`; it sees neither nodes nor messages.

    The way of a round into the results folder: :meth:`step` may add to ``self.report``;
    :meth:`start` gives the report to ``observer``, which is
    ``fedgraph_flwr.results.progress.RoundWriter``, while clients compute the next
    round.
    """

    @cached_property
    def round(self) -> Round:
        """The exchange with clients that is under way, or was the last."""
        return Round(self, Phase.TRAINING, 0, began_at=0.0)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Do what comes before round 1; nothing unless overridden."""

    @property
    def outweighing(self) -> str:
        """Say who makes up most of each average, if somebody does.

        With a rule it is who counts for less than a mean would have it.
        A strategy with weights of its own has to look after them itself.
        """
        is_usual = type(self).weight is AbstractGraphStrategy.weight
        if not (is_usual and self.HAS_MODEL):
            return ""
        weights = {c: self.weight(c) for c in self.trainers()}
        if self.robust.is_on:
            return levelled(weights, self.robust)
        return outweighing(weights, self.sites)

    @property
    def report(self) -> RoundReport:
        """Report of the round that is under way."""
        return self.round.report

    def combine(
        self,
        models: Mapping[int, NamedArrays],
        weights: Mapping[int, float],
        sent: NamedArrays,
    ) -> NamedArrays:
        """Make one model of the clients': their mean, or as ``robust.rule`` says.

        Parameters
        ----------
        models, weights : mapping
            By client, ascending. Weights are >= 0 and not all zero.
        sent : dict of str to array
            What these clients trained from: a rule compares updates.
        """
        if not self.robust.is_on:
            return weighted_mean([*models.values()], [*weights.values()])
        check_same_layout([sent, *models.values()])
        floats = [n for n, a in sent.items() if a.dtype.kind == "f"]
        start = {n: sent[n] for n in floats}
        base = flatten(start)
        trained = {c: {n: m[n] for n in floats} for c, m in models.items()}
        updates = {c: flatten(m) - base for c, m in trained.items()}
        joined = unflatten(base + self.join(updates, weights), start)
        for name in sent.keys() - start.keys():  # counters
            values = [m[name] for c, m in models.items() if weights[c] > 0]
            middle = np.rint(np.median(np.array(values, np.float64), axis=0))
            joined[name] = middle.astype(sent[name].dtype)
        return {n: joined[n] for n in sent}

    def join(
        self, updates: Mapping[int, FloatArray], weights: Mapping[int, float]
    ) -> FloatArray:
        """Join clients' updates by ``robust.rule``, and note each one's part of it.

        Clients without weight, which have nothing to train on, do not count.
        """
        how, number = self.robust, self.report.server_round
        counted = [c for c in sorted(updates) if weights[c] > 0]
        if len(counted) < how.least:
            raise RunFailedError(
                f"round {number}: {len(counted)} clients count in an average,"
                f" robust.rule {how.rule!r} needs {how.least} to bear {how.hostile}"
                f" hostile ones (of {shortened(counted)}). Mend the other clients and"
                " resume, or start a run with a lower robust.hostile"
            )
        joined, parts = join(
            np.stack([updates[c] for c in counted]),
            np.array([weights[c] for c in counted]),
            how,
            numpy_rng(self.settings.seed, "server", number, "buckets"),
        )
        for client, part in zip(counted, parts, strict=True):
            self.note(number, client, WEIGHT, part * len(counted))
        return joined

    def note(self, server_round: int, client: int, metric: str, value: float) -> None:
        """Add what the server measured of a client's update to the report."""
        self.report.note(server_round, self.clients[client], metric, value)

    # Flower's interface ----------------------------------------------------------

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
        self.clients = self.directory.call(grid)
        return self.clients

    @override
    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,  # models live in the strategy
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Make one message per node, with a parcel for each client it hosts."""
        self._grid = grid
        return self.begin_round(Phase.TRAINING, server_round, grid)

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Map replies to clients, count failures, let the paper aggregate.

        Raises
        ------
        RunFailedError
            Too few clients replied, or the paper's model holds no numbers.
        """
        parcels = self.round.collect(replies)
        self.round.require(parcels)
        parcels = self.round.summed(parcels, self._grid)
        self.last_rounds |= dict.fromkeys(parcels, server_round)
        self._step(server_round, parcels)
        return None, None

    @override
    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Make messages after the last round alone: earlier, training evaluates too."""
        if server_round < self.last_round:
            return []
        return self.begin_round(Phase.CLOSING, server_round + 1, grid)

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Read the last evaluations and the hashes of the clients' models."""
        if server_round < self.last_round:
            return None
        parcels = self.round.collect(replies)
        self.client_hashes = {c: str(p.facts[WEIGHTS_HASH]) for c, p in parcels.items()}
        self.round.require(parcels)
        self.round.enter_last_scores(parcels)
        self.report.is_closing = True
        return None

    @override
    def summary(self) -> None:
        s = self.settings
        what = f"{s.method} on {s.dataset}: {s.num_clients} clients"
        log(INFO, "%s, %d rounds, seed %d", what, s.num_server_rounds, s.seed)

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: object = None,  # the server holds no data
    ) -> Result:
        """Run rounds ``first_round..num_rounds`` and the closing evaluation.

        Differs from Flower's loop: it can begin after a checkpoint, it polls for
        replies at a pace that follows the length of the round (Flower's waits 0.1 s in
        simulation and 3 s in deployment), and it sends no evaluate messages between
        rounds. ``stopper`` may end it earlier.
        """
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.summary()
        self._clock_s = time.time() - time.monotonic()
        self._began_at = self.now()
        try:
            self.prepare(grid, timeout)
            for server_round in range(self.first_round, num_rounds + 1):
                if self.stopper(self.report.evaluations):
                    self.last_round = server_round - 1
                    log(INFO, "no better round for long: training ends here")
                    break
                messages = self.configure_train(
                    server_round, initial_arrays, train_config, grid
                )
                replies = self.exchange(grid, messages, timeout)
                try:
                    self.aggregate_train(server_round, replies)
                    self.report.is_complete = True
                finally:
                    self.close_round()
                del replies  # before clients need the memory
            messages = self.configure_evaluate(
                self.last_round, initial_arrays, evaluate_config, grid
            )
            replies = exchange(grid, messages, timeout, meanwhile=self.tell_observer)
            try:
                self.aggregate_evaluate(self.last_round, replies)
            finally:
                self.close_round()
        finally:
            self.tell_observer()
        return Result()

    # Between runs ----------------------------------------------------------------

    def frame_facts(self) -> dict[str, Any]:
        """JSON facts from which :meth:`restore_frame` continues; not the paper's."""
        return {
            "clients": {str(c): i.to_json() for c, i in sorted(self.clients.items())},
            "last_rounds": {str(c): r for c, r in sorted(self.last_rounds.items())},
            "spent": {str(c): s for c, s in sorted(self.spent.items())},
            "rarest": self.rarest and vars(self.rarest),
            "class_weights": self.class_weights,
            **({"histories": self.histories} if self.histories else {}),
        }

    def restore_frame(self, facts: Mapping[str, Any]) -> None:
        """Set what :meth:`frame_facts` returned: who the clients were, what they did.

        Roll call then goes on with these clients alone. One with other data, or without
        an answer, is missing until it is mended.
        """
        known = {int(c): ClientInfo.from_json(i) for c, i in facts["clients"].items()}
        self.directory.expect(known)
        self.last_rounds = {int(c): int(r) for c, r in facts["last_rounds"].items()}
        self.spent = {int(c): dict(s) for c, s in facts["spent"].items()}
        self.rarest = Rarest(**facts["rarest"]) if facts["rarest"] else None
        self.class_weights = facts.get("class_weights", "")
        told = facts.get("histories", {})
        self.histories = {int(c): (h, tuple(m)) for c, (h, m) in told.items()}

    # Parts of a round ------------------------------------------------------------

    def _step(self, server_round: int, parcels: dict[int, Parcel]) -> None:
        """Aggregate; blame the paper, and no client, for a model that is none."""
        returned = cast("Callable[..., object]", self.step)(server_round, parcels)
        cure = (
            f"step() of {type(self).__name__} had {len(parcels)} replies of"
            f" {len(self.round.asked)}, all of them good; mend it"
        )
        if returned is not None:
            raise RunFailedError(
                "step() must set the strategy's models and return nothing, got a"
                f" {type(returned).__name__} after round {server_round}; {cure}"
            )
        for name, model in self.models().items():
            if bad := find_bad_array(model, cure=cure):
                raise RunFailedError(
                    f"the strategy's model {name!r} after round {server_round}: {bad}"
                )

    def begin_round(self, phase: Phase, number: int, grid: Grid) -> list[Message]:
        """Begin an exchange with clients and make its messages, one per node."""
        self.phase = phase
        self.round = Round(self, phase, number, began_at=self._began_at)
        return self.round.messages(grid)

    def exchange(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> list[Message]:
        """Send a round's messages and wait for replies, as long as settings say."""
        return exchange(
            grid,
            messages,
            timeout,
            meanwhile=self.tell_observer,
            is_enough=self.round.has_quorum,
            late_after_s=self.settings.late_after_s,
        )

    def close_round(self) -> None:
        """Complete the report of the round that is under way."""
        ended_at = self.round.close(self.clusters())
        before, self._clock_s = self._clock_s, time.time() - time.monotonic()
        self._began_at = ended_at + self._clock_s - before  # as clients' clocks tell
        self._unseen = self.report

    def tell_observer(self) -> None:
        """Give the last closed round to the observer, once."""
        report, self._unseen = self._unseen, None
        if report is not None:
            self.observer(self, report)
