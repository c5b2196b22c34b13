"""Gains of one model over another, with their intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.site import baseline as gain
from fedgraph_flwr.site.baseline import compare
from fedgraph_flwr.trained.model import Predictions


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(gain, "NUM_DRAWS", 200)


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
    # Student's t of 20 items won and 20 with no difference
    half_width = t.ppf(0.975, 39) * math.sqrt(0.25 / 39)
    assert (gain.low, gain.high) == pytest.approx(
        (0.5 - half_width, 0.5 + half_width), rel=0.05
    )
    assert gain.verdict == "join"
    other = compare(predictions(half, labels), predictions(right, labels), seed=0)
    assert other.verdict == "do not join"
    same = compare(predictions(half, labels), predictions(half, labels), seed=0)
    assert (same.low, same.verdict) == (None, "cannot tell")


def test_items_that_are_not_the_same_are_refused():
    labels = np.arange(40) % 2
    one = predictions(np.eye(2)[labels], labels)
    for change, match in (
        ({"names": ["x"]}, "not measured on the same items"),
        ({"labels": 0 * labels}, "items with other labels"),
    ):
        with pytest.raises(DataError, match=match):
            compare(one, replace(one, **change), seed=0)


def test_few_items_and_labels_of_one_class_are_no_ground_for_a_verdict():
    few = predictions(np.ones((5, 1)), np.ones((5, 1)), "mae")
    with pytest.raises(DataError, match="5 test items, of which 5 tell"):
        compare(few, few, seed=0)
    one_class = predictions(np.ones((20, 1)), np.ones((20, 1)), "roc-auc")
    with pytest.raises(DataError, match="allow no score"):
        compare(one_class, one_class, seed=0)
    of_one = (np.arange(20) < 1)[:, None].astype(float)
    rare = predictions(of_one, of_one, "roc-auc")
    with pytest.raises(DataError, match="20 test items, of which 1 tell"):
        compare(rare, rare, seed=0)


def verdicts(draw, metric, repeats=30):
    """Verdicts on two models that are equally good, over sites drawn anew."""
    rng = np.random.default_rng(0)
    told = []
    for _ in range(repeats):
        labels = draw(rng)
        common = rng.normal(size=labels.shape)
        models = [labels + common + rng.normal(size=labels.shape) for _ in range(2)]
        if metric == "accuracy":  # of two classes, the second from one half on
            models = [np.stack([0 * m, m - 0.5], 1) for m in models]
        found = [predictions(m, labels, metric) for m in models]
        told.append(compare(*found, seed=1).verdict)
    return told


@pytest.mark.parametrize(
    ("draw", "metric"),
    [
        (lambda rng: rng.permutation(np.arange(100) < 3)[:, None] * 1.0, "roc-auc"),
        (lambda rng: rng.normal(size=(10, 1)), "mae"),
        (lambda rng: rng.permutation(np.arange(150) < 15) * 1, "average-precision"),
        (lambda rng: rng.integers(0, 2, 12), "accuracy"),
    ],
    ids=["3 of 100 positive", "10 numbers", "15 of 150 rare", "12 of two classes"],
)
def test_equal_models_are_told_apart_at_few_sites(draw, metric):
    told = verdicts(draw, metric)
    assert told.count("cannot tell") >= 0.9 * len(told)


def test_of_a_rare_class_the_better_ranking_wins_though_accuracies_are_equal():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(300) < 20) * 1
    noise = rng.normal(size=300)
    better, worse = 3.0 * labels - 9 + noise, noise - 9  # never above one half
    models = [predictions(m, labels, "average-precision") for m in (better, worse)]
    gain = compare(*models, seed=0)
    assert gain.metric == "average-precision"
    assert gain.verdict == "join"
    assert -1 <= gain.low < gain.value < gain.high <= 1
    assert compare(*models[::-1], seed=0).verdict == "do not join"
    none = predictions(better, 0 * labels, "average-precision")
    with pytest.raises(DataError, match="all labels are of one class"):
        compare(none, none, seed=0)


def test_each_target_weighs_by_its_scale():
    labels = np.array([[1.0, 1e6], [2.0, 3e6]] * 9, np.float32)
    off, near = labels + np.float32([1, 1e5]), labels + np.float32([0.1, 2e5])
    found = [predictions(outputs, labels, "mae") for outputs in (near, off)]
    scaled = compare(*(replace(p, spreads=(1.0, 1e6)) for p in found), seed=0)
    assert (scaled.verdict, scaled.federated) == ("join", pytest.approx(0.15, rel=1e-3))
    assert compare(*found, seed=0).verdict == "do not join"
