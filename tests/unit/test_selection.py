"""Which round a number is read at, by hand."""

from __future__ import annotations

import pytest

from fedgraph_flwr.selection import best_snapshot, best_val, final, summarize

VAL = {
    0: {0: 0.9, 1: 0.9},
    1: {0: 0.2, 1: 0.4},
    2: {0: 0.5, 1: 0.3},
    3: {0: 0.4, 1: 0.4},
}
TEST = {
    0: {0: 1.0, 1: 1.0},
    1: {0: 0.1, 1: 0.2},
    2: {0: 0.3, 1: 0.5},
    3: {0: 0.7, 1: 0.6},
}


def test_mean_and_spread_over_clients():
    found = summarize({1: 0.25, 0: 0.75}, "final")
    assert found["mean"] == 0.5
    assert found["std"] == pytest.approx(0.3535533905932738)
    assert (found["min"], found["max"]) == (0.25, 0.75)
    assert found["per_client"] == {"0": 0.75, "1": 0.25}
    assert summarize({0: 0.5}, "final")["std"] is None
    assert summarize({}, "final")["mean"] is None


def test_final_is_the_last_round():
    assert final(TEST, 3)["mean"] == pytest.approx(0.65)


def test_best_val_ignores_the_start_and_takes_the_earliest_of_ties():
    found = best_val(VAL, TEST)
    assert found["round"] == 2  # as good on validation as round 3, and earlier
    assert found["mean"] == pytest.approx(0.4)


def test_best_val_never_looks_at_test_values():
    shuffled = {r: dict.fromkeys(v, 1.0 - 0.3 * r) for r, v in TEST.items()}
    assert best_val(VAL, shuffled)["round"] == best_val(VAL, TEST)["round"]


def test_a_round_without_some_client_is_not_comparable():
    partial = {**VAL, 4: {0: 0.99}}
    assert best_val(partial, TEST)["round"] == 2


def test_best_snapshot_takes_per_client_the_best_of_splits_and_end():
    found = best_snapshot(TEST, [(1, [0, 1]), (3, [0])], last_round=2)
    # Splits read the round before: round 0 for both, round 2 for client 0.
    assert found["per_client"] == {"0": 1.0, "1": 1.0}
    found = best_snapshot(TEST, [(3, [0])], last_round=1)
    assert found["per_client"] == {"0": 0.3, "1": 0.2}
    assert "optimistic" in found["protocol"]


def test_without_splits_best_snapshot_is_final():
    assert best_snapshot(TEST, [], 3)["mean"] == final(TEST, 3)["mean"]
