"""Masked losses and scores against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from clients.losses import masked_bce, masked_l1
from clients.tasks.scores import mean_absolute_error, roc_auc, root_mean_squared_error
from fedgraph_flwr.core.errors import DataError

NAN = math.nan
LOSSES = (masked_bce, masked_l1)


def table(seed, n=12, tasks=4, *, binary=True, missing=0.3):
    rng = np.random.default_rng(seed)
    predicted = np.round(rng.normal(size=(n, tasks)), 1)  # with ties
    y = (rng.random((n, tasks)) < 0.5) * 1.0 if binary else rng.normal(size=(n, tasks))
    y[rng.random((n, tasks)) < missing] = NAN
    return predicted, y


def tensors(*arrays):
    return [torch.tensor(a, dtype=torch.float64) for a in arrays]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_masked_losses_are_means_over_observed_labels(seed):
    logits, y = table(seed)
    seen = ~np.isnan(y)
    found = masked_bce(*tensors(logits, y)).item()
    probabilities = 1 / (1 + np.exp(-logits[seen]))
    expected = metrics.log_loss(y[seen], probabilities, labels=[0, 1])
    assert found == pytest.approx(expected)
    predicted, y = table(seed, binary=False)
    seen = ~np.isnan(y)
    found = masked_l1(*tensors(predicted, y)).item()
    expected = metrics.mean_absolute_error(y[seen], predicted[seen])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_without_labels_contributes_nothing(loss):
    predicted, y = tensors(*table(1))
    more = torch.cat([predicted, predicted[:1]]).requires_grad_()
    nothing = torch.full((1, 4), NAN, dtype=torch.float64)
    found = loss(more, torch.cat([y, nothing]))
    torch.testing.assert_close(found, loss(predicted, y))
    found.backward()
    assert (more.grad[-1] == 0).all()
    assert torch.isfinite(more.grad).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_scores_are_scikit_learns_task_by_task(seed):
    scores, y = table(seed)
    found = roc_auc(scores, y)
    skipped = 0
    for task in range(4):
        seen = ~np.isnan(y[:, task])
        if len(set(y[seen, task])) < 2:
            skipped += 1
            assert math.isnan(found.per_task[task])
            continue
        expected = metrics.roc_auc_score(y[seen, task], scores[seen, task])
        assert found.per_task[task] == pytest.approx(expected)
    assert found.num_skipped == skipped
    predicted, y = table(seed, binary=False)
    for ours, theirs in (
        (mean_absolute_error, metrics.mean_absolute_error),
        (root_mean_squared_error, metrics.root_mean_squared_error),
    ):
        for task, value in enumerate(ours(predicted, y).per_task):
            seen = ~np.isnan(y[:, task])
            expected = theirs(y[seen, task], predicted[seen, task])
            assert value == pytest.approx(expected)


def test_tasks_of_one_class_are_skipped_counted_and_left_out_of_the_mean():
    y = np.array([[0, 1, NAN, 0], [1, 1, NAN, 1], [NAN, 1, NAN, 0]], float)
    scores = np.array([[0.1, 0, 0, 0.5], [0.9, 1, 1, 0.5], [5, 2, 2, 0.5]])
    found = roc_auc(scores, y)
    assert found.num_skipped == 2
    np.testing.assert_array_equal(found.per_task, [1.0, NAN, NAN, 0.5])
    assert found.mean == 0.75
    nothing = roc_auc(scores, np.ones((3, 4)))
    assert nothing.num_skipped == 4
    assert math.isnan(nothing.mean)


def test_wrong_shapes_and_diverged_models_are_named():
    y = np.zeros((3, 2))
    for predicted in (np.zeros(3), np.zeros((3, 1))):
        with pytest.raises(DataError, match="one task as one column"):
            roc_auc(predicted, y)
        with pytest.raises(DataError, match="one task as one column"):
            masked_bce(*tensors(predicted, y))
    with pytest.raises(DataError, match="must be finite to be scored"):
        mean_absolute_error(np.full((3, 2), NAN), y)
