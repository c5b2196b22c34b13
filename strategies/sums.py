"""The server's part of secure aggregation: it asks for one sum a round, and opens it.

What a strategy then steps on is the mean, in the place of each client's model: a server
that averages makes the same of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.secure_aggregation import (
    LABEL,
    MASK_KEY,
    MASKED,
    SumOf,
    decode,
    digest,
    follow,
    length,
    summed_scores,
)
from fedgraph_flwr.core.wire import (
    CLASS_WEIGHTS,
    NamedArrays,
    Parcel,
    flatten,
    select,
    with_prefix,
)
from fedgraph_flwr.core.words import shortened
from fedgraph_flwr.methods.fedavg import DELTA, SHARED

from .averaging import FloatArray, out_of_proportion, unflatten
from .paper import Paper
from .replies import Layout


@dataclass(frozen=True, kw_only=True)
class RoundSum:
    """The sum of one round.

    Parameters
    ----------
    total : int
        Weight of its clients, as roll call told.
    came, history : str
        Digest of what its clients are sent, and :func:`follow` of it and all before.
    received, size : dict of str to array, int
        The model that they train from, and how many numbers it has.
    label : bytes
        As they make it, if they were told the same.
    sends_updates : bool
        The strategy steps on updates, and not on models.
    scores : tuple of str
        Whose sums are in the vector beside the update.
    """

    server_round: int
    sum_of: SumOf
    total: int
    came: str
    history: str
    received: NamedArrays
    size: int
    label: bytes
    sends_updates: bool
    scores: tuple[str, ...]

    @classmethod
    def of(
        cls,
        strategy: Paper,
        server_round: int,
        members: Sequence[int],
        sent: NamedArrays,
    ) -> RoundSum:
        """Say whose sum a round asks for, all of whom were sent the same arrays."""
        keys = {
            c: strategy.clients[c].introduced.get(MASK_KEY, "")
            for c in strategy.trainers()
        }
        sum_of = SumOf(tuple(members), keys)
        came = digest(sent, {CLASS_WEIGHTS: strategy.class_weights})
        before, missed = strategy.histories.get(members[0], ("", ()))
        history = follow(before, [*missed, came])
        is_closing = strategy.phase is Phase.CLOSING  # of scores alone
        kind = {} if is_closing else strategy.uplink(server_round, members[0])
        received = select(SHARED, sent) if kind else {}
        scores = summed_scores(strategy.secagg, strategy.settings)
        size = sum(a.size for a in received.values())
        label = sum_of.label(
            experiment=strategy.experiment,
            run=strategy.lives.run,
            server_round=-server_round if is_closing else server_round,
            config_sha256=strategy.config_sha256,
            history=history,
            size=length(size, scores),
        )
        return cls(
            server_round=server_round,
            sum_of=sum_of,
            total=int(sum(strategy.weight(c) if kind else 1 for c in members)),
            came=came,
            history=history,
            received=received,
            size=size,
            label=label,
            sends_updates=all(name.startswith(DELTA) for name in kind),
            scores=scores,
        )

    @property
    def layout(self) -> Layout:
        """Arrays of each reply."""
        whole = length(self.size, self.scores)
        return {MASKED: ("uint64", (whole,)), LABEL: ("uint8", (len(self.label),))}

    def open(
        self, replies: Mapping[int, Parcel], guard: float
    ) -> tuple[dict[int, Parcel], FloatArray]:
        """Put the mean model in the place of each client's covered update.

        Also returns sums of scores, for :func:`decode_scores`.

        Parameters
        ----------
        replies : mapping of int to Parcel
            Of all members.
        guard : float
            ``robust.guard``; of single clients nobody can tell.

        Raises
        ------
        RunFailedError
            Pads did not cancel, or the mean is out of all proportion.
        """
        about = f"round {self.server_round}"
        others = [c for c, p in replies.items() if bytes(p.arrays[LABEL]) != self.label]
        if others:
            raise RunFailedError(
                f"{about}: clients {shortened(others)} covered their updates for"
                " another sum than the server asked for (members, keys, model or"
                " run config differ), so the sum is noise; all ends must run the same"
                " version of fedgraph_flwr. Resume the run"
            )
        summed = np.zeros(length(self.size, self.scores), np.uint64)
        for parcel in replies.values():
            summed += parcel.arrays[MASKED].astype(np.uint64, copy=False)
        opened = decode(summed, len(self.sum_of.members), self.total, self.size)
        if opened is None:
            raise RunFailedError(
                f"{about}: the sum of {len(replies)} clients does not count"
                f" {len(replies)} clients of weight {self.total}: pads did not"
                " cancel, though all labels agree. A key or the software of one client"
                " is wrong; nobody can tell whose. Resume the run"
            )
        mean, scores = opened
        arrays, given = NamedArrays(), NamedArrays()
        if self.received and self.sends_updates:
            arrays = with_prefix(DELTA, unflatten(mean, self.received))
        elif self.received:
            arrays = with_prefix(SHARED, self._moved(mean))
            given = with_prefix(SHARED, self.received)
        if guard and (found := out_of_proportion({0: arrays}, given, guard)):
            raise RunFailedError(
                f"{about}, the mean of all, which shows no single client: {found[0]}"
            )
        return {c: replace(p, arrays=arrays) for c, p in replies.items()}, scores

    def _moved(self, mean: FloatArray) -> NamedArrays:
        """Add a mean update to what was sent."""
        exact: NamedArrays = {n: a.astype(np.float64) for n, a in self.received.items()}
        moved, model = unflatten(flatten(exact) + mean, exact), NamedArrays()
        for name, like in self.received.items():
            is_float = like.dtype.kind == "f"  # the others are counters
            new = moved[name] if is_float else np.rint(moved[name])
            model[name] = new.astype(like.dtype)
        return model


def remember(strategy: Paper, sums: Collection[RoundSum]) -> None:
    """Add what clients of this round's sums have trained from to their histories.

    Others learn when they come back what was made without them.
    """
    there = {c for one in sums for c in one.sum_of.members}
    for one in sums:
        strategy.histories |= dict.fromkeys(one.sum_of.members, (one.history, ()))
        for client in {*one.sum_of.keys} - there:
            before, missed = strategy.histories.get(client, ("", ()))
            strategy.histories[client] = (before, (*missed, one.came))


def choose_members(
    told: Mapping[int, tuple[int, ...]],
    server_round: int,
    needed: int,
    *,
    may_repeat: bool,
) -> tuple[int, ...]:
    """Say of whom a round's sum is, after some have trained.

    Two sets with a client in common cannot both be completed in one round, so that a
    round that is repeated has the set that it had: the largest that can be.

    Parameters
    ----------
    told : mapping of int to tuple of int
        By client that has trained: for whom it has handed in already; () for nobody.
    needed : int
        How many clients a set needs.
    may_repeat : bool
        This round may have been handed in before; else nobody's word for it counts, as
        a client could choose whose sum is made.

    Raises
    ------
    RunFailedError
        No set can be completed.
    """
    if not may_repeat:
        told = dict.fromkeys(told, ())
    whole = {
        t
        for t in told.values()
        if len(t) >= needed and all(told.get(c) in (t, ()) for c in t)
    }
    if whole:
        return min(whole, key=lambda t: (-len(t), t))
    new = tuple(sorted(c for c, t in told.items() if not t))
    if len(new) >= needed:
        return new
    handed = sorted(c for c, t in told.items() if t)
    raise RunFailedError(
        f"round {server_round}: {len(new)} clients can hand in, a sum needs {needed}"
        " (min-fit-replies, secure-aggregation.least); those who have handed in this"
        f" round with others, who are missing: {shortened(handed)}. Resume the run when"
        " all are back"
    )
