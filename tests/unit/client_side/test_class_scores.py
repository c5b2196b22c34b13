"""Scores of classifiers beside accuracy, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics

from clients.tasks.scores import (
    auc,
    class_f1,
    macro_f1,
    of_classes,
    precision,
    rank_classes,
)


def scored(logits, y):
    y = np.asarray(y)
    area = of_classes(auc, rank_classes(logits, y), 1)
    found = {"macro-f1": macro_f1(logits, y), "roc-auc": area}
    return {name: value for name, value in found.items() if not np.isnan(value)}


@pytest.mark.parametrize("num_classes", [2, 5])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_scores_are_scikit_learns(num_classes, seed):
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.normal(size=(10, num_classes)), 3, axis=0)  # with ties
    y = np.concatenate(
        [np.arange(num_classes), rng.integers(num_classes, size=30 - num_classes)]
    )
    shares = softmax(logits, axis=1)
    how = {} if num_classes == 2 else {"multi_class": "ovr", "average": "macro"}
    area = metrics.roc_auc_score(y, shares[:, 1] if not how else shares, **how)
    f1 = metrics.f1_score(y, logits.argmax(1), average="macro")
    assert scored(logits, y) == pytest.approx({"macro-f1": f1, "roc-auc": area})


def test_one_class_alone_has_no_roc_auc_and_wrong_predictions_count():
    logits = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # Class 0: F1 = 2 * 2 / (2 + 3); class 1 is predicted and has no row: 0
    assert scored(logits, [0, 0, 0]) == pytest.approx({"macro-f1": (0.8 + 0) / 2})
    assert np.isnan(class_f1(np.zeros(3, int), np.array([0, 0, 1]), 3)[2])


def test_confident_predictions_are_ranked_and_not_tied():
    """Softmax in float64 rounds both first rows to 1."""
    logits = np.array([[60.0, 0.0], [50.0, 0.0], [55.0, 0.0]])
    assert softmax(logits, axis=1)[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert scored(logits, [0, 1, 0])["roc-auc"] == 1.0


@pytest.mark.parametrize("num_classes", [2, 5])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_average_precision_is_scikit_learns(num_classes, seed):
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.normal(size=(10, num_classes)), 3, axis=0)  # with ties
    y = rng.integers(num_classes - (num_classes > 2), size=30)  # of five one has no row
    y[:num_classes] = np.arange(num_classes) % (num_classes - (num_classes > 2))
    shares = softmax(logits, axis=1)
    of_class = [
        metrics.average_precision_score(y == k, shares[:, k]) for k in np.unique(y)
    ]
    for rarest in (0, 1, None):  # None: no site tells its classes
        is_known = num_classes == 2 and rarest is not None
        expected = of_class[rarest] if is_known else np.mean(of_class)
        found = of_classes(precision, rank_classes(logits, y), rarest)
        assert found == pytest.approx(expected)


def test_of_labels_of_one_class_nothing_can_be_ranked():
    for logits, y in ((np.eye(2), [1, 1]), (np.zeros((2, 1)), [0, 0])):
        assert np.isnan(of_classes(precision, rank_classes(logits, np.array(y)), 1))
    endless = np.array([[np.inf, 0.0], [0.0, 1.0]])
    assert np.isnan(of_classes(precision, rank_classes(endless, np.array([0, 1])), 1))
