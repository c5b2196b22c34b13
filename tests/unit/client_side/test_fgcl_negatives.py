"""The queue of negatives, and InfoNCE."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as f

from clients.losses import info_nce
from clients.privacy.laplace import Triangles
from clients.privacy.negatives import NegativeQueue

EXACT = {"rtol": 1e-10, "atol": 1e-10}
NAN = math.nan


def rng(seed=0):
    return np.random.default_rng(seed)


def filled(size, capacity=100):
    queue = NegativeQueue(capacity)
    queue.push(np.arange(size))
    return queue


def column(*labels):
    return np.array(labels, float)[:, None]


# Queue ---------------------------------------------------------------------------


def test_first_in_first_out_up_to_the_capacity():
    queue = NegativeQueue(100)
    for g in range(130):
        queue.push(np.array([g]))
        assert len(queue) == min(g + 1, 100)
    assert queue.positions.tolist() == list(range(30, 130))


def test_negatives_have_another_label_and_are_not_the_graph_itself():
    queue, y = filled(5), column(0, 1, 0, 1, 1)
    queue.push(np.array([0]))  # graph 0 again
    chosen = queue.choose(np.array([0, 1]), y, 50, rng())
    assert set(chosen[0]) == {1, 3, 4}
    assert set(chosen[1]) == {0, 2, 5}


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [
        ([0, 1], [0, 1], False),
        ([0, 1], [0, 0], True),
        ([0, NAN], [0, 1], False),
        ([0, 1], [NAN, 1], False),
        ([NAN, 1], [1, 0], True),
        ([NAN, 1], [1, NAN], False),
        ([NAN, NAN], [NAN, NAN], False),
    ],
)
def test_labels_differ_where_both_are_observed(ours, theirs, differ):
    y = np.array([theirs, ours], float)
    chosen = filled(1).choose(np.array([1]), y, 1, rng())
    assert chosen.tolist() == [[0 if differ else -1]]


def test_a_batch_mixes_graphs_with_enough_candidates_with_too_few_and_with_none():
    queue = filled(6)
    at = np.array([3, 6, 7, 8])
    y = [[0, NAN], [0, NAN], [1, NAN], [0, NAN], [1, NAN], [NAN, 1]]
    y = np.array([*y, [0, NAN], [1, NAN], [NAN, 1.0]])
    allowed = [{2, 4}, {2, 4}, {0, 1, 3}, set()]  # graph 3 is no negative of its own
    seen = [set() for _ in at]
    for seed in range(40):
        for row, found in zip(queue.choose(at, y, 3, rng(seed)), seen, strict=True):
            found |= set(row.tolist())
        assert len(set(queue.choose(at, y, 3, rng(seed))[2])) == 3
    assert seen == [*allowed[:3], {-1}]


def test_same_generator_same_draw_and_nothing_to_draw():
    queue, at, y = filled(20), np.array([3, 4]), column(*[0, 1] * 10)
    first = queue.choose(at, y, 4, rng(5))
    np.testing.assert_array_equal(first, queue.choose(at, y, 4, rng(5)))
    assert (first != queue.choose(at, y, 4, rng(6))).any()
    assert (NegativeQueue(100).choose(at, y, 2, rng()) == -1).all()
    assert queue.choose(at, y, 0, rng()).shape == (2, 0)


@pytest.mark.parametrize("with_views", [True, False])
def test_tensors_restore_the_queue(with_views):
    sizes = np.array([1, 3, 2, 4])
    views = Triangles(
        values=np.arange(10, dtype=np.float32) + 0.5,
        num_nodes=sizes,
        positions=np.arange(4),
    )
    queue = NegativeQueue(3)
    queue.push(np.arange(4), views if with_views else None)
    queue.push(np.array([1]), views if with_views else None)
    tensors = {k: v.clone() for k, v in queue.to_tensors().items()}
    found = NegativeQueue.from_tensors({**tensors, "other": torch.ones(1)}, 3)
    assert found.positions.tolist() == [2, 3, 1]
    for a, b in zip(found.entries, queue.entries, strict=True):
        np.testing.assert_array_equal(a[1], b[1])
    if with_views:
        expected = np.concatenate([views.matrix(g).ravel() for g in (2, 3, 1)])
        got = found.views(sizes)
        matrices = [got.matrix(g).ravel() for g in range(3)]
        np.testing.assert_array_equal(np.concatenate(matrices), expected)
    assert len(NegativeQueue.from_tensors({}, 3)) == 0
    assert NegativeQueue(100).to_tensors() == {}


# InfoNCE (6) ---------------------------------------------------------------------


def rows(seed, *shape):
    return torch.from_numpy(rng(seed).normal(size=shape))


def by_loops(first, second, stored, chosen, tau):
    """Eq. (6), term by term; a graph without negatives counts 0."""
    total = 0.0
    for i in range(len(first)):
        if -1 in chosen[i]:
            continue
        up = math.exp(f.cosine_similarity(first[i], second[i], dim=0).item() / tau)
        down = up
        for t in chosen[i]:
            s = f.cosine_similarity(stored[t], second[i], dim=0).item()
            down += math.exp(s / tau)
        total -= math.log(up / down)
    return total / len(first)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 6),
    st.floats(0.1, 2.0),
)
@settings(max_examples=25, deadline=None)
def test_info_nce_is_that_of_the_paper_a_cross_entropy_and_bounded(seed, n, k, tau):
    first, second, stored = rows(seed, 3, max(n, k), 4)
    first, second = first[:n], second[:n]
    chosen = torch.from_numpy(rng(seed).integers(0, len(stored), (n, k)))
    got = info_nce(first, second, stored, chosen, tau)
    assert got.item() == pytest.approx(by_loops(first, second, stored, chosen, tau))
    positive = f.cosine_similarity(first, second)[:, None]
    negative = f.cosine_similarity(stored[chosen], second[:, None], dim=2)
    scores = torch.cat([positive, negative], 1) / tau
    at_zero = torch.zeros(n, dtype=torch.int64)
    torch.testing.assert_close(got, f.cross_entropy(scores, at_zero), **EXACT)
    low, high = (math.log1p(k * math.exp(s * 2 / tau)) for s in (-1, 1))
    assert low - 1e-9 <= got.item() <= high + 1e-9


def test_a_graph_without_negatives_counts_zero_and_has_no_gradient():
    first, second, stored = (rows(s, 2, 3).requires_grad_() for s in (1, 2, 3))
    chosen = torch.tensor([[-1, -1], [0, 1]])
    loss = info_nce(first, second, stored, chosen, 1.0)
    alone = info_nce(first[1:], second[1:], stored, chosen[1:], 1.0)
    torch.testing.assert_close(loss, alone / 2, **EXACT)
    loss.backward()
    assert (first.grad[0] == 0).all()
    assert (second.grad[0] == 0).all()
    assert stored.grad.abs().sum() > 0  # negatives are learnt through
