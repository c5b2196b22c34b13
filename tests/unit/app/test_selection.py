"""Which round a number is read at, by hand."""

from __future__ import annotations

import pytest

from fedgraph_flwr.results.selection import (
    Choice,
    EarlyStopping,
    best_snapshot,
    best_test,
    best_val,
    choose,
    summarize,
)

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


def test_best_val_ignores_the_start_and_takes_the_earliest_of_ties():
    found = best_val(VAL, TEST)
    assert found["round"] == 2  # as good on validation as round 3, and earlier
    assert found["mean"] == pytest.approx(0.4)
    assert found["validation"] == pytest.approx(sum(VAL[2].values()) / len(VAL[2]))


def test_best_val_chooses_no_round_before_the_first():
    words = best_val(VAL, TEST)["protocol"]
    assert words.startswith("round with the best mean validation score; ties: ")
    found = best_val(VAL, TEST, first=3)
    assert (found["round"], found["mean"]) == (3, pytest.approx(0.65))
    assert found["protocol"] == f"{words}; of the rounds from 3 on"
    assert best_val(VAL, TEST, first=4)["round"] is None


def test_of_errors_the_smallest_is_best():
    found = best_val(VAL, TEST, larger_is_better=False)
    assert found["round"] == 1
    errors = EarlyStopping(VAL, patience=2, min_rounds=1, larger_is_better=False)
    scores = EarlyStopping(VAL, patience=2, min_rounds=1)
    assert (errors.is_due(), scores.is_due()) == (True, False)


# Client 2 fails in round 2 only; client 1, the worst, is gone from round 3 on.
HOLES = {
    0: {0: 0.9, 1: 0.9, 2: 0.9},
    1: {0: 0.4, 1: 0.1, 2: 0.5},
    2: {0: 0.7, 1: 0.2},
    3: {0: 0.5, 2: 0.4},
    4: {0: 0.4, 2: 0.7},
}


def test_rounds_are_compared_over_the_clients_that_the_newest_still_has():
    # Clients 0 and 2: 0.45, 0.6 (2 as in round 1), 0.45, 0.55. Client 1 has no say:
    # with it round 4 would be the best, for it alone lacks the worst client.
    found = best_val(HOLES, HOLES)
    assert (found["round"], found["num_clients_chosen_by"]) == (2, 2)
    assert found["validation"] == pytest.approx(0.6)
    assert found["per_client"] == {"0": 0.7, "1": 0.2}  # what was measured then
    until = {r: HOLES[r] for r in (0, 1, 2)}  # only 0 and 1 answered in round 2
    assert choose(until) == Choice(2, pytest.approx(0.45), 2)


def test_a_round_before_a_client_was_first_measured_is_no_candidate():
    late = {1: {0: 0.9}, 2: {0: 0.2, 1: 0.3}, 3: {0: 0.2, 1: 0.2}}
    assert choose(late) == Choice(2, pytest.approx(0.25), 2)
    assert choose({}) == Choice(None, None, 0)
    assert choose({0: {0: 0.5}}) == Choice(None, None, 1)
    assert choose({0: {0: 0.5}}, first=0) == Choice(0, 0.5, 1)


@pytest.mark.parametrize(
    ("scores", "losses", "expected"),
    [
        ({1: 0.9, 2: 0.9, 3: 0.9}, {1: 0.5, 2: 0.3, 3: 0.4}, 2),  # nobody is ever found
        ({1: 0.9, 2: 0.9, 3: 0.9}, {1: 0.5, 2: 0.3, 3: 0.3}, 2),
        ({1: 0.9, 2: 0.8, 3: 0.9}, {1: 0.5, 2: 0.1, 3: 0.6}, 1),
        ({1: 0.9, 2: 0.9}, {}, 1),
        ({1: 0.9, 2: 0.9}, {2: 0.7}, 2),  # what has no loss is not lower
        ({}, {1: 0.5, 2: 0.3, 3: 0.4}, 2),  # no client has a score
    ],
)
def test_of_equal_rounds_the_lowest_loss_is_chosen(scores, losses, expected):
    of_all = [{r: {0: v, 1: v} for r, v in t.items()} for t in (scores, losses)]
    assert choose(*of_all).round == expected
    words = best_val(of_all[0], TEST, losses=of_all[1], score="x")["protocol"]
    assert ("lower validation loss" in words) == bool(scores and losses)
    assert ("no client has any x" in words) == (not scores)
    rule = EarlyStopping({}, patience=1, min_rounds=0)
    for table, is_loss in zip(of_all, (False, True), strict=True):
        for server_round, values in table.items():
            for client, value in values.items():
                rule.add(server_round, client, value, is_loss=is_loss)
    assert rule.is_due() == (expected < max(of_all[0] or of_all[1]))


def test_best_snapshot_takes_per_client_the_best_of_splits_and_end():
    found = best_snapshot(TEST, [(1, [0, 1]), (3, [0])], last_round=2)
    # Splits read the round before: round 0 for both, round 2 for client 0.
    assert found["per_client"] == {"0": 1.0, "1": 1.0}
    found = best_snapshot(TEST, [(3, [0])], last_round=1)
    assert found["per_client"] == {"0": 0.3, "1": 0.2}
    assert "optimistic" in found["protocol"]


def test_best_test_looks_at_test_scores_and_says_so():
    table = {0: {0: 0.9, 1: 0.9}, 1: {0: 0.2, 1: 0.4}, 2: {0: 0.6, 1: 0.2}, 3: {0: 1.0}}
    found = best_test({r: table[r] for r in (0, 1, 2)})  # not before training
    assert (found["round"], found["mean"]) == (2, pytest.approx(0.4))
    assert "selects on test data" in found["protocol"]
    errors = best_test(table, larger_is_better=False)
    assert (errors["round"], errors["per_client"]) == (1, {"0": 0.2, "1": 0.4})
    assert best_test({})["mean"] is None


def table(*means: float):
    return {r: {0: m - 0.1, 1: m + 0.1} for r, m in enumerate(means)}


@pytest.mark.parametrize(
    ("means", "due"),
    [
        ((0.9, 0.5, 0.4, 0.4), True),  # best of rounds 1 to 3 is two rounds old
        ((0.9, 0.5, 0.5, 0.4), True),  # as good is not better
        ((0.9, 0.5, 0.4, 0.6), False),
        ((0.9, 0.5, 0.4), False),  # one round old
        ((0.9, 0.5), False),
        ((0.9,), False),  # round 0 is no candidate
        ((), False),
    ],
)
def test_training_ends_once_the_best_round_is_old(means, due):
    rule = EarlyStopping(table(*means), patience=2, min_rounds=0)
    assert rule.is_due() is due
    said = EarlyStopping({}, patience=2, min_rounds=0)
    for server_round, scores in table(*means).items():
        for client, score in scores.items():
            said.add(server_round, client, score)
    assert said.is_due() is due


def test_training_never_ends_before_min_rounds():
    old = table(0.1, 0.9, *[0.5] * 6)  # round 7 is the last measured
    assert EarlyStopping(old, patience=2, min_rounds=7).is_due()
    assert not EarlyStopping(old, patience=2, min_rounds=8).is_due()
