"""Server side of GCFL against the oracle, other libraries and hand-made cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dtaidistance import dtw
from oracles import gcfl as oracle

from fedgraph_flwr.core.wire import Parcel, flatten
from fedgraph_flwr.methods.gcfl import GCFLParams
from strategies.gcfl import (
    GCFLState,
    cosine_weights,
    dtw_distances,
    dtw_weights,
    min_cut,
    step,
)

SEEDS = range(6)


def params(**changes) -> GCFLParams:
    chosen = {"mean_norm_threshold": 1e9, "max_norm_threshold": 0.0, "seq_length": 3}
    return GCFLParams(**{**chosen, **changes})


def replies(deltas, sizes=None) -> dict[int, Parcel]:
    """Parcels whose update is split over two tensors."""
    sizes = sizes or dict.fromkeys(deltas, 1)
    return {
        c: Parcel(
            arrays={
                "delta/a": np.asarray(d[:2], np.float32),
                "delta/b": np.asarray(d[2:], np.float32)[:, None],
            },
            metrics={"num-examples": sizes[c], "grad-norm": 1.0 + c},
        )
        for c, d in deltas.items()
    }


def start(num_clients: int) -> GCFLState:
    theta = {"a": np.zeros(2, np.float32), "b": np.zeros((2, 1), np.float32)}
    clients = tuple(range(num_clients))
    return GCFLState(
        clusters=(clients,), theta=(theta,), history=dict.fromkeys(clients, ())
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_opposite_updates_never_give_a_negative_weight(seed):
    v = np.random.default_rng(seed).normal(size=1000)
    weights = cosine_weights(np.stack([v, -v, -v * 3]))
    assert weights.min() >= 0
    assert min_cut(weights) == ([0], [1, 2])


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_dtw_agrees_with_the_oracle(seed, standardize):
    series = np.random.default_rng(seed).uniform(0, 1, (5, 6))
    np.testing.assert_allclose(
        dtw_weights(series, standardize=standardize),
        oracle.dtw_weights(series.tolist(), standardize=standardize),
        atol=1e-12,
    )


@pytest.mark.parametrize(("count", "length"), [(2, 1), (70, 5), (3, 12)])
def test_dtw_of_all_pairs_is_that_of_each_pair(count, length):
    rows = np.random.default_rng(count).gamma(2.0, size=(count, length))

    found = dtw_distances(rows)

    pairs = [[dtw.distance(a, b) for b in rows] for a in rows]
    np.testing.assert_allclose(found, pairs, rtol=4e-16, atol=0)  # x ** 2 and x * x
    assert (found == pairs).mean() > 0.99
    np.testing.assert_array_equal(found, found.T)
    cuts = [min_cut(np.max(beta) - np.asarray(beta)) for beta in (found, pairs)]
    assert cuts[0] == cuts[1]


def test_ties_go_to_the_lowest_row_and_the_first_cut():
    for n in range(2, 7):  # row after row is added, so that the last is cut off
        assert min_cut(np.ones((n, n))) == ([*range(n - 1)], [n - 1])


@pytest.mark.parametrize("n", range(2, 9))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_cut_is_the_lightest_of_all(n, seed):
    raw = np.random.default_rng(seed).uniform(0, 2, (n, n))
    weights = np.triu(raw, 1) + np.triu(raw, 1).T
    left, right = min_cut(weights)
    assert left[0] == 0
    assert sorted(left + right) == list(range(n))
    best = oracle.cut_weight(weights, oracle.min_cut(weights)[0])
    assert oracle.cut_weight(weights, left) == pytest.approx(best)


@pytest.mark.parametrize("use_dtw", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_whole_rounds_agree_with_the_oracle(seed, use_dtw):
    rng = np.random.default_rng(seed)
    n, eps_1, eps_2, d = 7, 1.3, 1.0, 3
    sizes = {c: int(rng.integers(5, 50)) for c in range(n)}
    p = params(
        mean_norm_threshold=eps_1,
        max_norm_threshold=eps_2,
        seq_length=d,
        min_round=2,
    )
    ours = start(n)
    clusters, thetas = [list(range(n))], [[0.0] * 4]
    histories = {c: [] for c in range(n)}
    for t in range(1, 13):
        deltas = {c: rng.normal(size=4).astype(np.float32) for c in range(n)}
        ours, _ = step(ours, replies(deltas, sizes), p, server_round=t, use_dtw=use_dtw)
        clusters, thetas, histories = oracle.server_round(
            clusters,
            thetas,
            histories,
            {c: [float(x) for x in v] for c, v in deltas.items()},
            sizes,
            t=t,
            eps_1=eps_1,
            eps_2=eps_2,
            d=d,
            use_dtw=use_dtw,
            min_round=2,
        )
        assert [list(m) for m in ours.clusters] == clusters
        for theta, expected in zip(ours.theta, thetas, strict=True):
            np.testing.assert_allclose(flatten(theta), expected, atol=1e-5)
    assert len(clusters) > 1, "the case must exercise a split"


def test_no_split_up_to_round_twenty():
    deltas = {0: [1, 0, 0, 0], 1: [-1, 0, 0, 0], 2: [1, 0, 0, 0]}
    p = params(mean_norm_threshold=0.5, max_norm_threshold=0.5)
    for t, expected in ((1, 1), (20, 1), (21, 2)):
        state, split = step(start(3), replies(deltas), p, server_round=t, use_dtw=False)
        assert len(state.clusters) == expected
        assert split == ([0] if expected == 2 else [])


def test_updates_that_cancel_exactly_do_not_split_with_a_threshold_of_zero():
    p = params(mean_norm_threshold=0.0, min_round=0)
    deltas = {0: [1, 0, 0, 0], 1: [-1, 0, 0, 0], 2: [1, 0, 0, 0], 3: [-1, 0, 0, 0]}
    _, split = step(start(4), replies(deltas), p, server_round=1, use_dtw=False)
    assert split == []


def test_a_cluster_with_nothing_to_train_on_or_no_reply_keeps_its_model():
    """Clients of node data may hold no training node; by samples they count as 0."""
    deltas = {c: [1.0 + c, 0, 0, 0] for c in range(4)}
    of_three, of_one, silent = (0, 1, 2), (3,), (4,)
    state = replace(
        start(5), clusters=(of_three, of_one, silent), theta=start(5).theta * 3
    )
    new, split = step(
        state,
        replies(deltas, {0: 0, 1: 0, 2: 0, 3: 5}),
        params(),
        server_round=1,
        use_dtw=False,
    )
    assert (new.clusters, split) == (state.clusters, [])
    assert new.theta[0] is state.theta[0]
    assert flatten(new.theta[2]).tolist() == [0, 0, 0, 0]
    assert new.theta[1]["a"].tolist() == [4, 0]


def test_uniform_weights_add_the_plain_mean():
    deltas = {0: [1, 0, 0, 0], 1: [3, 0, 0, 2]}
    state, _ = step(
        start(2),
        replies(deltas, {0: 1, 1: 9}),
        params(max_norm_threshold=1e9),
        server_round=30,
        use_dtw=False,
        uniform=True,
    )
    assert flatten(state.theta[0]).tolist() == [2, 0, 0, 1]


def test_the_last_gradient_norm_can_be_the_series():
    p = params(seq_source="last-grad-norm")
    deltas = {c: [1.0, 0, 0, 0] for c in range(3)}
    state, _ = step(start(3), replies(deltas), p, server_round=1, use_dtw=True)
    assert state.history == {0: (1.0,), 1: (2.0,), 2: (3.0,)}


def test_a_cluster_with_a_missing_reply_is_averaged_but_not_split():
    deltas = {0: [1, 0, 0, 0], 1: [-1, 0, 0, 0], 2: [1, 0, 0, 0]}
    state, split = step(
        start(4), replies(deltas), params(), server_round=50, use_dtw=False
    )
    assert split == []
    np.testing.assert_allclose(state.theta[0]["a"], [1 / 3, 0], atol=1e-7)


@pytest.mark.parametrize("away", [range(0), range(10, 24), range(23, 24)])
def test_a_client_that_was_away_is_not_cut_off_for_its_older_norms(away):
    state = start(6)
    directions = np.random.default_rng(4).normal(size=(6, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    splits = []
    for t in range(1, 31):  # two groups that differ little; all norms fall
        sizes = {c: (1.0 if c < 3 else 1.2) / t for c in range(6)}
        there = [c for c in sizes if c != 3 or t not in away]
        came = replies({c: sizes[c] * directions[c] for c in there})
        # Nothing splits before the client is back.
        how = params(min_round=23, min_cluster_size=4)
        state, split = step(state, came, how, server_round=t, use_dtw=True)
        splits += [t] * len(split)
    assert splits == [24]
    assert state.clusters == ((0, 1, 2), (3, 4, 5))
