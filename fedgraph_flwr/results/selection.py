"""Rules that say at which round a result is read.

Selection never sees test data, except by ``best_snapshot`` and ``best_test``, protocols
of authors' codes, kept for comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Table = dict[int, dict[int, float]]  # round -> client -> value
TRAINED = "trained/"  # before a split: its table for models after local training

PROTOCOLS = {
    "final": "model of the last round",
    "best_val": "round with the best mean validation score; ties: the earliest",
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


def final(test: Table, last_round: int) -> dict[str, Any]:
    """Test score of the model of the last round."""
    return summarize(test.get(last_round, {}), "final")


def best_val(
    val: Table,
    test: Table,
    protocol: str = "best_val",
    *,
    larger_is_better: bool = True,
    first: int = 1,
) -> dict[str, Any]:
    """Test score in the round of the best mean validation score, from ``first`` on.

    ``validation`` is the score that won; see :func:`choose`.
    """
    chosen = choose(val, larger_is_better=larger_is_better, first=first)
    found = {**_read(test, chosen, protocol), "validation": chosen.score}
    if first > 1:
        found["protocol"] += f"; of the rounds from {first} on"
    return found


@dataclass(frozen=True)
class Choice:
    """A round, its mean score, and over how many clients rounds were compared.

    ``round`` and ``score`` are None where no round can be chosen.
    """

    round: int | None
    score: float | None
    num_clients: int


def choose(table: Table, *, larger_is_better: bool = True, first: int = 1) -> Choice:
    """Choose the round of the best mean score, the earliest of equals.

    All rounds are compared over the same clients: those that the newest round has. A
    client that is gone by then does not count in any round. One that left out a round
    counts there with its score before; rounds before each of them had a score do not
    take part. So every round has one number, and equal tables give equal choices.

    Parameters
    ----------
    table : Table
    larger_is_better : bool
    first : int
        Rounds before it do not take part.
    """
    there = table[max(table)].keys() if table else set()
    known: dict[int, float] = {}
    means: dict[int, float] = {}
    for server_round in sorted(table):
        known |= table[server_round]
        if server_round >= first and there <= known.keys():
            means[server_round] = statistics.fmean(known[c] for c in there)
    if not means:
        return Choice(None, None, len(there))
    sign = 1 if larger_is_better else -1
    best = max(means, key=lambda r: (sign * means[r], -r))
    return Choice(best, means[best], len(there))


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
    val : Table
        Validation scores so far, e.g. of a run that is resumed; copied.
    patience : int
        Rounds without a better one after which training ends; 0: never.
    min_rounds : int
        Never before so many rounds are measured.
    larger_is_better : bool
        Of the scores.
    """

    def __init__(
        self,
        val: Table,
        *,
        patience: int,
        min_rounds: int,
        larger_is_better: bool = True,
    ) -> None:
        self._larger_is_better = larger_is_better
        self._val = {r: dict(scores) for r, scores in val.items()}
        self._patience, self._min_rounds = patience, min_rounds

    def add(self, server_round: int, client: int, score: float) -> None:
        """Take in the validation score of one client."""
        self._val.setdefault(server_round, {})[client] = score

    def is_due(self) -> bool:
        """Whether training should end now."""
        measured = max(self._val, default=0)
        if not self._patience or measured < self._min_rounds:
            return False
        best = choose(self._val, larger_is_better=self._larger_is_better).round
        return best is not None and measured - best >= self._patience


def best_snapshot(
    test: Table, snapshots: Sequence[tuple[int, Sequence[int]]], last_round: int
) -> dict[str, Any]:
    """Each client's best score, before a split of its cluster or in the last round.

    Parameters
    ----------
    test : Table
    snapshots : sequence of (round, clients)
        A cluster of these clients was split in this round; the snapshot holds the
        accuracies of the round before.
    last_round : int

    Source
    ------
    GCFL authors' code, ``training.py:run_gcfl`` and ``server.py:cache_model``.
    """
    best = dict(test.get(last_round, {}))
    for server_round, members in snapshots:
        before = test.get(server_round - 1, {})
        for client in members:
            if client in before:
                best[client] = max(best.get(client, 0.0), before[client])
    return summarize(best, "best_snapshot")


def best_test(test: Table, *, larger_is_better: bool = True) -> dict[str, Any]:
    """Test score in the round of the best mean test score, from round 1.

    Source
    ------
    SpreadGNN's code, whose workers log the best test score of a run.
    """
    return _read(test, choose(test, larger_is_better=larger_is_better), "best_test")


def best_labelled(table: Table) -> dict[str, Any]:
    """Score of the evaluated round with the best mean score, the first of equals.

    Round 0, before training, takes part: where it wins, training was of no use.
    """
    return _read(table, choose(table, first=0), "best_labelled")


def read(
    rule: str,
    tables: Mapping[str, Table],
    *,
    split: str,
    snapshots: Sequence[tuple[int, Sequence[int]]],
    last_round: int,
    larger_is_better: bool = True,
    first: int = 1,
) -> dict[str, Any]:
    """Read the result of one rule (a key of ``PROTOCOLS``) on ``split``.

    ``tables`` has one for each split, and with the prefix ``TRAINED`` another. Rules
    that choose by validation choose no round before ``first``.
    """
    table = tables[split]
    rules: dict[str, Callable[[], dict[str, Any]]] = {
        "final": lambda: final(table, last_round),
        "best_val": lambda: best_val(
            tables["val"], table, larger_is_better=larger_is_better, first=first
        ),
        "best_val_trained": lambda: best_val(
            tables[TRAINED + "val"],
            tables[TRAINED + split],
            "best_val_trained",
            larger_is_better=larger_is_better,
            first=first,
        ),
        "best_snapshot": lambda: best_snapshot(table, snapshots, last_round),
        "best_test": lambda: best_test(table, larger_is_better=larger_is_better),
        "best_labelled": lambda: best_labelled(table),
    }
    return rules[rule]()
