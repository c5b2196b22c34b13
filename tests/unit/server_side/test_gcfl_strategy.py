"""Server side of GCFL against the oracle, other libraries and hand-made cases."""

from __future__ import annotations

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import toys
from dtaidistance import dtw
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import gcfl as oracle
from sklearn.metrics.pairwise import cosine_similarity

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.gcfl import GCFLParams
from strategies.gcfl import GCFL, GCFLState, step
from strategies.gcfl_clustering import (
    cosine_weights,
    dtw_distances,
    dtw_weights,
    flatten,
    max_update_norm,
    mean_update_norm,
    min_cut,
    unflatten,
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
def test_norms_and_similarities_agree_with_the_oracle(seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(5, 7))
    rows = updates.tolist()
    assert mean_update_norm(updates) == pytest.approx(oracle.mean_norm(rows, [1.0] * 5))
    assert max_update_norm(updates) == pytest.approx(oracle.max_norm(rows))
    np.testing.assert_allclose(cosine_weights(updates), oracle.cosine_weights(rows))
    np.testing.assert_allclose(
        cosine_weights(updates), 1 + cosine_similarity(updates), atol=1e-12
    )


def test_norms_by_hand():
    updates = np.array([[3.0, 4.0], [-3.0, -4.0], [0.0, 1.0]])
    assert max_update_norm(updates) == 5
    assert mean_update_norm(updates) == pytest.approx(1 / 3)
    assert mean_update_norm(updates[:1]) == 5


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_cosine_ignores_positive_scale_and_is_symmetric_with_diagonal_two(scale):
    updates = np.random.default_rng(0).normal(size=(4, 9))
    weights = cosine_weights(updates)
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_allclose(np.diag(weights), 2.0)
    updates[2] *= scale
    np.testing.assert_allclose(cosine_weights(updates), weights, atol=1e-12)


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


def from_networkx(weights):
    """Weight and sides of networkx's minimum cut; row 0 is in the first."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(weights)))
    for p in range(len(weights)):
        for q in range(p):
            graph.add_edge(q, p, weight=float(weights[p, q]))
    weight, sides = nx.stoer_wagner(graph)
    return weight, tuple(sorted(map(sorted, sides)))


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_that_of_another_library(seed):
    rng = np.random.default_rng(seed)
    half = rng.random((rng.integers(2, 15),) * 2)
    weights = half + half.T

    assert min_cut(weights) == from_networkx(weights)[1]


@pytest.mark.parametrize("seed", range(30))
def test_of_many_lightest_cuts_it_finds_one(seed):
    rng = np.random.default_rng(seed)
    half = rng.integers(0, 2, (rng.integers(2, 9),) * 2)
    weights = np.maximum(half, half.T).astype(float)

    left, right = min_cut(weights)

    assert sorted(left + right) == [*range(len(weights))]
    assert left[0] == 0
    assert right
    assert oracle.cut_weight(weights, left) == from_networkx(weights)[0]


def test_ties_go_to_the_lowest_row_and_the_first_cut():
    for n in range(2, 7):  # row after row is added, so that the last is cut off
        assert min_cut(np.ones((n, n))) == ([*range(n - 1)], [n - 1])


def test_the_diagonal_counts_for_nothing_and_weights_are_left_alone():
    weights = np.random.default_rng(0).random((6, 6))
    weights += weights.T
    before = weights.copy()
    heavy = weights + 100 * np.eye(6)

    assert min_cut(heavy) == min_cut(weights)
    np.testing.assert_array_equal(weights, before)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_dtw_is_blind_to_repeated_samples(values, repeats):
    a = np.array(values)
    assert oracle.dtw(values, values) == 0
    assert dtw.distance(a, np.repeat(a, repeats)) == pytest.approx(0, abs=1e-9)
    b = a[::-1].copy()
    assert dtw.distance(a, b) == pytest.approx(oracle.dtw(values, b.tolist()))
    assert dtw.distance(a, b) <= np.linalg.norm(a - b) + 1e-9


def test_standardized_dtw_ignores_the_scale_of_a_series():
    series = np.random.default_rng(1).uniform(0.1, 1, (4, 6))
    weights = dtw_weights(series, standardize=True)
    series[1] *= 13
    np.testing.assert_allclose(dtw_weights(series, standardize=True), weights)
    constant = dtw_weights(np.ones((3, 4)), standardize=True)
    assert (constant == 0).all()


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


def test_two_blocks_are_cut_apart():
    v = np.arange(1.0, 6.0)
    updates = np.stack([v, -v, v, -v, v, v])
    assert min_cut(cosine_weights(updates)) == ([0, 2, 4, 5], [1, 3])


def test_one_row_cannot_be_cut():
    with pytest.raises(ValueError, match="at least 2 clients, got 1"):
        min_cut(np.zeros((1, 1)))


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


def test_identical_updates_never_split():
    same = {c: [0.3, 0.1, 0.0, 0.2] for c in range(4)}
    p = params(mean_norm_threshold=0.3, max_norm_threshold=0.3)
    state, _ = step(start(4), replies(same), p, server_round=50, use_dtw=False)
    assert state.clusters == ((0, 1, 2, 3),)


def test_a_cluster_with_nothing_to_train_on_keeps_its_model():
    """Clients of node data may hold no training node; by samples they count as 0."""
    deltas = {c: [1.0 + c, 0, 0, 0] for c in range(4)}
    state = replace(start(4), clusters=((0, 1, 2), (3,)), theta=start(4).theta * 2)
    new, split = step(
        state,
        replies(deltas, {0: 0, 1: 0, 2: 0, 3: 5}),
        params(),
        server_round=1,
        use_dtw=False,
    )
    assert (new.clusters, split) == (state.clusters, [])
    assert new.theta[0] is state.theta[0]
    assert new.theta[1]["a"].tolist() == [4, 0]


def test_identical_series_leave_nothing_to_cut_by():
    deltas = {0: [1, 0, 0, 0], 1: [-1, 0, 0, 0], 2: [0, 1, 0, 0]}
    state = start(3)
    for t in range(30, 36):
        state, split = step(
            state, replies(deltas), params(), server_round=t, use_dtw=True
        )
        assert split == []


def test_after_a_split_every_client_begins_a_new_history():
    state = GCFLState(
        clusters=((0, 1, 2), (3, 4)),
        theta=start(5).theta * 2,
        history={c: (1.0, 2.0, float(c)) for c in range(5)},
    )
    deltas = {c: [1.0 + c, 0, 0, 0] for c in range(5)}
    state, split = step(state, replies(deltas), params(), server_round=30, use_dtw=True)
    assert split == [0]
    assert [len(state.history[c]) for c in range(5)] == [0] * 5


def test_gcfl_plus_splits_one_cluster_a_round():
    state = GCFLState(
        clusters=((0, 1, 2), (3, 4, 5)),
        theta=start(6).theta * 2,
        history={c: (1.0, 2.0, float(c)) for c in range(6)},
    )
    deltas = {c: [1.0 + c, 0, 0, 0] for c in range(6)}
    _, split = step(state, replies(deltas), params(), server_round=30, use_dtw=True)
    assert split == [0]


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


def test_a_cluster_without_replies_keeps_its_model():
    state = GCFLState(clusters=((0,), (1,)), theta=start(2).theta * 2)
    state, _ = step(
        state, replies({0: [1, 2, 3, 4]}), params(), server_round=1, use_dtw=False
    )
    assert flatten(state.theta[0]).tolist() == [1, 2, 3, 4]
    assert flatten(state.theta[1]).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("clusters", "largest"),
    [(((0,), (1, 2)), 1), (((0, 1), (2,)), 0), (((0,), (1,)), 0)],
)
def test_who_never_trains_is_sent_the_largest_cluster_or_the_first_of_equals(
    clusters, largest
):
    server = object.__new__(GCFL)
    server.settings = toys.run_settings(num_clients=6, held_out_clients="5")
    theta = tuple({"a": np.full(2, float(k), np.float32)} for k in range(2))
    server.gcfl = GCFLState(clusters=clusters, theta=theta)
    sent = {c: arrays["shared/a"][0] for c, arrays in server.outgoing(1).items()}
    expected = {c: k for k, members in enumerate(clusters) for c in members}
    assert sent == {**expected, 5: largest}


def test_weighted_residuals_cancel_and_order_does_not_matter():
    rng = np.random.default_rng(3)
    deltas = {c: rng.normal(size=4) for c in range(5)}
    sizes = {c: 10 + c for c in range(5)}
    all_replies = replies(deltas, sizes)
    state, _ = step(start(5), all_replies, params(), server_round=1, use_dtw=False)
    moved = flatten(state.theta[0])
    residual = sum(sizes[c] * (moved - np.float32(deltas[c])) for c in deltas)
    np.testing.assert_allclose(residual, 0, atol=1e-5)
    backwards = dict(reversed(all_replies.items()))
    again, _ = step(start(5), backwards, params(), server_round=1, use_dtw=False)
    assert (flatten(again.theta[0]) == moved).all()


def test_flatten_and_unflatten_are_inverse():
    model = {
        "z": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones((), np.float32),
    }
    back = unflatten(flatten(model), model)
    assert list(back) == list(model)
    for name, array in model.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == np.float32


def test_nan_in_an_update_is_refused():
    with pytest.raises(WireError, match="NaN or infinity"):
        step(
            start(2), replies({0: [np.nan, 0, 0, 0], 1: [0, 0, 0, 0]}), params(),
            server_round=1, use_dtw=False,
        )  # fmt: skip


def test_who_is_missing_takes_room_that_grows_with_clients_not_with_their_square():
    def told(count):
        strategy = toys.resolved("gcfl+", **{"gcfl.min-round": 0}).method.make_strategy(
            toys.resolved("gcfl+").settings, params(min_round=0), experiment="e"
        )
        strategy.clients = dict.fromkeys(range(count))
        strategy.initialise({"w": np.zeros(1, np.float32)})
        for number in (1, 2, 3):
            strategy._look_for_missing(number, [c for c in range(count) if c % 10])
        _, facts = strategy.state()
        (entry,) = strategy.remarks()["clusters_held_up"]
        assert list(entry["missing"].items()) == [
            (str(c), 1) for c in range(0, count, 10)
        ]
        return len(json.dumps(facts))

    assert told(4000) < 12 * told(400)
