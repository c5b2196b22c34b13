"""Rules that say at which round a result is read.

Selection never sees test data, except by ``best_snapshot`` and ``best_test``, protocols
of authors' codes, kept for comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Table = dict[int, dict[int, float]]  # round -> client -> value
RECEIVED, TRAINED = "post_aggregation", "post_training"  # which model was measured

PROTOCOLS = {
    "final": "model of the last round",
    "best_val": (
        "round with the best mean validation score; ties: the lower validation loss"
        " (before 27 November 2026: the earliest)"
    ),
    "best_snapshot": (
        "per client the best test accuracy over cluster snapshots;"
        " reference protocol, optimistic: selects on test data"
    ),
    "best_val_trained": (
        "as best_val, but scores and choice are of the models after local training"
    ),
    "best_test": (
        "round with the best mean test score; reference protocol, optimistic: selects"
        " on test data"
    ),
    "best_labelled": (
        "evaluated round with the best score, chosen by the labels; optimistic"
    ),
}


def summarize(values: Mapping[int, float], protocol: str) -> dict[str, Any]:
    """Mean, std (ddof 1), min and max over clients, unweighted; and each client."""
    numbers = [values[c] for c in sorted(values)]
    many = len(numbers) > 1
    return {
        "protocol": PROTOCOLS[protocol],
        "num_clients": len(numbers),  # fewer than the run's if some did not answer
        "mean": statistics.fmean(numbers) if numbers else None,
        "std": statistics.stdev(numbers) if many else None,
        "min": min(numbers, default=None),
        "max": max(numbers, default=None),
        "per_client": {str(c): values[c] for c in sorted(values)},
    }


def best_val(
    val: Table,
    test: Table,
    protocol: str = "best_val",
    *,
    losses: Table | None = None,
    larger_is_better: bool = True,
    first: int = 1,
    score: str = "score",
) -> dict[str, Any]:
    """Test score in the round of the best mean validation score, from ``first`` on.

    ``validation`` is the score that won, which ``score`` names; see :func:`choose`.
    """
    chosen = choose(val, losses, larger_is_better=larger_is_better, first=first)
    words = PROTOCOLS[protocol]
    if losses and not val:
        words = "round with the lowest mean validation loss, as no client has any "
        words += score
    elif protocol == "best_val":
        tie = "lower validation loss" if losses else "earliest, as no loss is known"
        words = f"round with the best mean validation {score}; ties: the {tie}"
    if first > 1:
        words += f"; of the rounds from {first} on"
    found = _read(test, chosen, protocol)
    return {**found, "protocol": words, "validation": chosen.score}


@dataclass(frozen=True)
class Choice:
    """A round, its mean score, and over how many clients rounds were compared.

    ``round`` and ``score`` are None where no round can be chosen.
    """

    round: int | None
    score: float | None
    num_clients: int


def choose(
    table: Table,
    losses: Table | None = None,
    *,
    larger_is_better: bool = True,
    first: int = 1,
) -> Choice:
    """Choose the round of the best mean score; of equals that of the lowest loss.

    Of rounds that are equal in both, or have no loss, it is the earliest. If no client
    has a score in any round, the loss chooses.

    All rounds are compared over the same clients: those that the newest round has. A
    client that is gone by then does not count in any round. One that left out a round
    counts there with its score before; rounds before each of them had a score do not
    take part. So every round has one number, and equal tables give equal choices.

    Parameters
    ----------
    table, losses : Table
        On validation items.
    larger_is_better : bool
        Of scores.
    first : int
        Rounds before it do not take part.
    """
    losses = losses or {}
    if not table:
        table, larger_is_better = losses, False
    there = sorted(table[max(table)]) if table else []
    means = _means(table, there, first)
    if not means:
        return Choice(None, None, len(there))
    sign = 1 if larger_is_better else -1
    everyone = sorted(losses[max(losses)]) if losses else []
    loss = _means(losses, everyone, first)
    best = max(means, key=lambda r: (sign * means[r], -loss.get(r, math.inf), -r))
    return Choice(best, means[best], len(there))


def _means(table: Table, clients: Sequence[int], first: int) -> dict[int, float]:
    """Mean over clients of what each had last, in rounds before which each had some."""
    known: dict[int, float] = {}
    means: dict[int, float] = {}
    for server_round in sorted(table):
        known |= table[server_round]
        if server_round >= first and known.keys() >= set(clients):
            means[server_round] = statistics.fmean(known[c] for c in clients)
    return means


def _read(table: Table, chosen: Choice, protocol: str) -> dict[str, Any]:
    """Read the chosen round, over the clients that were measured in it."""
    values = {} if chosen.round is None else table.get(chosen.round, {})
    return {
        **summarize(values, protocol),
        "round": chosen.round,
        "num_clients_chosen_by": chosen.num_clients,
    }


class EarlyStopping:
    """Ends training once the round that :func:`best_val` reads is old.

    Parameters
    ----------
    val, losses : Table
        Validation scores so far, e.g. of a run that is resumed; copied.
    patience : int
        Rounds without a better one after which training ends.
    min_rounds : int
        Never before so many rounds are measured.
    larger_is_better : bool
        Of the scores.
    """

    def __init__(
        self,
        val: Table,
        losses: Table | None = None,
        *,
        patience: int,
        min_rounds: int,
        larger_is_better: bool = True,
    ) -> None:
        self._larger_is_better = larger_is_better
        self._val, self._losses = (
            {r: dict(scores) for r, scores in table.items()}
            for table in (val, losses or {})
        )
        self._patience, self._min_rounds = patience, min_rounds

    def add(
        self, server_round: int, client: int, score: float, *, is_loss: bool = False
    ) -> None:
        """Take in the validation score, or loss, of one client."""
        table = self._losses if is_loss else self._val
        table.setdefault(server_round, {})[client] = score

    def is_due(self) -> bool:
        """Whether training should end now."""
        measured = max(self._val or self._losses, default=0)
        if measured < self._min_rounds:
            return False
        better = self._larger_is_better
        best = choose(self._val, self._losses, larger_is_better=better).round
        return best is not None and measured - best >= self._patience


def best_snapshot(
    test: Table, snapshots: Sequence[tuple[int, Sequence[int]]], last_round: int
) -> dict[str, Any]:
    """Each client's best score, before a split of its cluster or in the last round.

    Parameters
    ----------
    snapshots : sequence of (round, clients)
        A cluster of these clients was split in this round; the snapshot holds the
        accuracies of the round before.

    Source
    ------
    GCFL authors' code, ``training.py:run_gcfl`` and ``server.py:cache_model``.
    """
    best = dict(test.get(last_round, {}))
    for server_round, members in snapshots:
        before = test.get(server_round - 1, {})
        for client in before.keys() & set(members):
            best[client] = max(best.get(client, 0.0), before[client])
    return summarize(best, "best_snapshot")


def best_test(test: Table, *, larger_is_better: bool = True) -> dict[str, Any]:
    """Test score in the round of the best mean test score, from round 1.

    Source
    ------
    SpreadGNN's code, whose workers log the best test score of a run.
    """
    return _read(test, choose(test, larger_is_better=larger_is_better), "best_test")


def read(
    rule: str,
    table: Callable[..., Table],
    *,
    snapshots: Sequence[tuple[int, Sequence[int]]],
    last_round: int,
    larger_is_better: bool = True,
    first: int = 1,
    by: str = "",
    score: str = "score",
) -> dict[str, Any]:
    """Read the result of one rule (a key of ``PROTOCOLS``).

    ``table`` is :meth:`RunRecord.table`. Rules that choose by validation choose no
    round before ``first``, and by the metric ``by``, which ``score`` names.
    """
    if rule in ("best_val", "best_val_trained"):
        point = TRAINED if rule == "best_val_trained" else RECEIVED
        return best_val(
            table(by, "val", point),
            table(point=point),
            rule,
            losses=table("loss", "val", point),
            larger_is_better=larger_is_better,
            first=first,
            score=score,
        )
    if rule == "best_snapshot":
        return best_snapshot(table(), snapshots, last_round)
    if rule == "best_test":
        return best_test(table(), larger_is_better=larger_is_better)
    if rule == "best_labelled":  # round 0 too: if it wins, training was of no use
        return _read(table(), choose(table(), first=0), rule)
    return summarize(table().get(last_round, {}), "final")
