"""Which round a result is read at.

Selection never sees test data, except by ``best_snapshot`` and ``best_test``, protocols
of authors' codes, kept for comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Table = dict[int, dict[int, float]]  # round -> client -> value
TRAINED = "trained/"  # before a split: its table for models after local training

PROTOCOLS = {
    "final": "model of the last round (headline)",
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
) -> dict[str, Any]:
    """Test score in the round of the best mean validation score, from round 1.

    Rounds in which a client is missing are not comparable and do not take part,
    unless no round is complete. ``validation`` is the score that won.
    """
    best = best_round(val, larger_is_better=larger_is_better)
    if best is None:
        return {**summarize({}, protocol), "round": None, "validation": None}
    return {
        **summarize(test.get(best, {}), protocol),
        "round": best,
        "validation": statistics.fmean(val[best].values()),
    }


def best_round(val: Table, *, larger_is_better: bool = True) -> int | None:
    """Round that :func:`best_val` reads; None before round 1 is measured."""
    rounds = [r for r in sorted(val) if r >= 1]
    most = max((len(val[r]) for r in rounds), default=0)
    rounds = [r for r in rounds if len(val[r]) == most]
    if not rounds:
        return None
    sign = 1 if larger_is_better else -1
    return max(rounds, key=lambda r: (sign * statistics.fmean(val[r].values()), -r))


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
        best = best_round(self._val, larger_is_better=self._larger_is_better)
        measured = max(self._val, default=0)
        if not self._patience or best is None or measured < self._min_rounds:
            return False
        return measured - best >= self._patience


def best_snapshot(
    test: Table, snapshots: Sequence[tuple[int, Sequence[int]]], last_round: int
) -> dict[str, Any]:
    """Per client the best of: before each split of its cluster, and at the end.

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
    SpreadGNN's code, whose workers log the best score of a run (our spec, Sec. 4.11).
    """
    best = best_round(test, larger_is_better=larger_is_better)
    return {
        **summarize(test.get(best, {}) if best is not None else {}, "best_test"),
        "round": best,
    }


def best_labelled(table: Table) -> dict[str, Any]:
    """Score of the evaluated round with the best mean score, the first of equals.

    Round 0, before training, takes part: where it wins, training was of no use.
    Rounds in which a client is missing are not comparable and do not take part.
    """
    if not table:
        return {**summarize({}, "best_labelled"), "round": None}
    most = max(map(len, table.values()))
    rounds = [r for r in table if len(table[r]) == most]
    best = max(rounds, key=lambda r: (statistics.fmean(table[r].values()), -r))
    return {**summarize(table[best], "best_labelled"), "round": best}


def read(
    rule: str,
    tables: Mapping[str, Table],
    *,
    split: str,
    snapshots: Sequence[tuple[int, Sequence[int]]],
    last_round: int,
    larger_is_better: bool = True,
) -> dict[str, Any]:
    """Read the result of one rule (a key of ``PROTOCOLS``) on ``split``.

    ``tables`` has one for each split, and with the prefix ``TRAINED`` another.
    """
    table = tables[split]
    rules: dict[str, Callable[[], dict[str, Any]]] = {
        "final": lambda: final(table, last_round),
        "best_val": lambda: best_val(
            tables["val"], table, larger_is_better=larger_is_better
        ),
        "best_val_trained": lambda: best_val(
            tables[TRAINED + "val"],
            tables[TRAINED + split],
            "best_val_trained",
            larger_is_better=larger_is_better,
        ),
        "best_snapshot": lambda: best_snapshot(table, snapshots, last_round),
        "best_test": lambda: best_test(table, larger_is_better=larger_is_better),
        "best_labelled": lambda: best_labelled(table),
    }
    return rules[rule]()
