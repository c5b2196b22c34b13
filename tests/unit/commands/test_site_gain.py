"""Intervals of a gain, against a slow search and by enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, chi2

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.site import baseline as gain
from fedgraph_flwr.site.baseline import compare, paired_interval
from fedgraph_flwr.trained.model import Predictions


def statistic(won: int, lost: int, count: int, delta: float) -> float:
    """Square of the score statistic; the likelihood is maximised by search."""

    def minus_likelihood(q: float) -> float:
        parts = ((won, q + delta), (lost, q), (count - won - lost, 1 - 2 * q - delta))
        return -sum(n * math.log(max(p, 1e-300)) for n, p in parts if n)

    low, high = max(0.0, -delta), (1 - delta) / 2
    found = minimize_scalar(
        minus_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    )
    q = min([low, high, found.x], key=minus_likelihood)
    return (won - lost - count * delta) ** 2 / (count * (2 * q + delta * (1 - delta)))


@pytest.mark.parametrize(
    ("won", "lost", "count"), [(12, 2, 50), (3, 3, 20), (8, 0, 20), (1, 9, 40)]
)
def test_the_interval_ends_where_the_score_test_begins_to_reject(won, lost, count):
    low, high = paired_interval(won, lost, count)
    bound = chi2.ppf(0.95, 1)
    for edge in (low, high):
        assert statistic(won, lost, count, edge) == pytest.approx(bound, rel=1e-4)
    assert low < (won - lost) / count < high
    # The other way round it is the other interval.
    assert paired_interval(lost, won, count) == pytest.approx((-high, -low))


def test_items_on_which_two_models_agree_still_leave_doubt():
    low, high = paired_interval(0, 0, 20)
    z2 = chi2.ppf(0.95, 1)
    assert (low, high) == pytest.approx((-z2 / (20 + z2), z2 / (20 + z2)))
    assert paired_interval(20, 0, 20)[1] == 1.0
    assert paired_interval(0, 20, 20)[0] == -1.0


@pytest.mark.parametrize(("p_won", "p_lost"), [(0.1, 0.1), (0.3, 0.05), (0.02, 0.2)])
def test_it_covers_the_truth_in_about_95_of_100_sites(p_won, p_lost):
    count, covered = 30, 0.0
    for won in range(count + 1):
        for lost in range(count + 1 - won):
            p = binom.pmf(won, count, p_won)
            p *= binom.pmf(lost, count - won, p_lost / (1 - p_won))
            if p < 1e-6:
                continue
            low, high = paired_interval(won, lost, count)
            covered += p * (low <= p_won - p_lost <= high)
    assert 0.93 < covered < 0.98


def predictions(outputs, labels, metric="accuracy") -> Predictions:
    outputs, rarest = np.asarray(outputs, np.float32), ""
    if metric == "average-precision":  # of two classes, b is rare
        outputs, metric, rarest = np.stack([0 * outputs, outputs], 1), "accuracy", "b"
    return Predictions(
        outputs=outputs,
        names=[str(i) for i in range(len(outputs))],
        column="graph",
        kind={"accuracy": "classes", "mae": "regression"}.get(metric, "binary"),
        metric=metric,
        labels_of=["a", "b"][: outputs.shape[1]],
        labels=np.asarray(labels),
        rarest=rarest,
        by_precision=bool(rarest),
    )


def test_a_gain_is_counted_item_by_item():
    labels = np.arange(40) % 2
    right = np.eye(2)[labels]
    half = np.where((np.arange(40) < 20)[:, None], right, 1 - right)
    gain = compare(predictions(right, labels), predictions(half, labels), seed=0)
    assert (gain.federated, gain.alone, gain.value) == (1.0, 0.5, 0.5)
    assert (gain.low, gain.high) == paired_interval(20, 0, 40)
    assert gain.verdict == "join"
    other = compare(predictions(half, labels), predictions(right, labels), seed=0)
    assert other.verdict == "do not join"
    same = compare(predictions(half, labels), predictions(half, labels), seed=0)
    assert same.verdict == "cannot tell"


def test_a_smaller_error_is_a_gain():
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(60, 1)).astype(np.float32)
    near, far = labels + 0.1, labels + 0.5
    gain = compare(
        predictions(near, labels, "mae"), predictions(far, labels, "mae"), seed=1
    )
    assert gain.value == pytest.approx(0.4, abs=1e-6)
    assert gain.low == pytest.approx(0.4, abs=1e-6)
    assert gain.verdict == "join"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"names": ["x"]}, "not measured on the same items"),
        ({"labels": np.zeros(40, np.int64)}, "items with other labels"),
        ({"labels": None}, "not measured on the same items"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, match):
    from dataclasses import replace

    labels = np.arange(40) % 2
    one = predictions(np.eye(2)[labels], labels)
    with pytest.raises(DataError, match=match):
        compare(one, replace(one, **change), seed=0)


def test_few_items_and_labels_of_one_class_are_no_ground_for_a_verdict():
    few = predictions(np.ones((5, 1)), np.ones((5, 1)), "mae")
    with pytest.raises(DataError, match="5 test items, of which 5 tell"):
        compare(few, few, seed=0)
    one_class = predictions(np.ones((20, 1)), np.ones((20, 1)), "roc-auc")
    with pytest.raises(DataError, match="allow no score"):
        compare(one_class, one_class, seed=0)


def verdicts(draw, metric, repeats=200):
    """Verdicts on two models that are equally good, over sites drawn anew."""
    rng = np.random.default_rng(0)
    told = []
    for _ in range(repeats):
        labels = draw(rng)
        common = rng.normal(size=labels.shape)
        models = [labels + common + rng.normal(size=labels.shape) for _ in range(2)]
        found = [predictions(m, labels, metric) for m in models]
        told.append(compare(*found, seed=1).verdict)
    return told


@pytest.mark.parametrize(
    ("draw", "metric"),
    [
        (lambda rng: rng.permutation(np.arange(100) < 3)[:, None] * 1.0, "roc-auc"),
        (lambda rng: rng.normal(size=(10, 1)), "mae"),
        (lambda rng: rng.permutation(np.arange(150) < 15) * 1, "average-precision"),
    ],
    ids=["3 of 100 positive", "10 numbers", "15 of 150 rare"],
)
def test_equal_models_are_told_apart_at_few_sites(draw, metric, monkeypatch):
    monkeypatch.setattr(gain, "NUM_DRAWS", 200)
    told = verdicts(draw, metric)
    assert told.count("cannot tell") >= 0.93 * len(told)


def test_of_a_rare_class_the_better_ranking_wins_though_accuracies_are_equal():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(300) < 20) * 1
    noise = rng.normal(size=300)
    better, worse = 3.0 * labels - 9 + noise, noise - 9  # never above one half
    models = [predictions(m, labels, "average-precision") for m in (better, worse)]
    gain = compare(*models, seed=0)
    assert gain.metric == "average-precision"
    assert gain.accuracy == (280 / 300, 280 / 300)
    assert gain.verdict == "join"
    assert -1 <= gain.low < gain.value < gain.high <= 1
    assert compare(*models[::-1], seed=0).verdict == "do not join"
    none = predictions(better, 0 * labels, "average-precision")
    with pytest.raises(DataError, match="all labels are of one class"):
        compare(none, none, seed=0)


@pytest.mark.parametrize(
    ("metric", "second", "words"),
    [
        ("average-precision", 2.0, "both models rank these items alike (2 of class 'b"),
        ("roc-auc", 2.0, "both models rank these items alike (2 of 'a: yes')"),
        ("roc-auc", -1.0, "no resample of these items moves the gain (2 of 'a: yes')"),
        ("mae", 1.0, "both models score these items alike"),
    ],
)
def test_an_interval_that_no_resample_widens_is_none(metric, second, words):
    labels = (np.arange(20) < 2) * 1
    labels = labels if metric == "average-precision" else labels[:, None] * 1.0
    found = compare(
        *(predictions(labels * by, labels, metric) for by in (1.0, second)), seed=0
    )
    assert (found.low, found.high, found.verdict) == (None, None, "cannot tell")
    assert found.how.startswith(words)


def test_a_single_item_of_a_class_is_no_ground_for_a_verdict():
    labels = (np.arange(20) < 1)[:, None].astype(float)
    one = predictions(labels, labels, "roc-auc")
    with pytest.raises(DataError, match="20 test items, of which 1 tell"):
        compare(one, one, seed=0)
