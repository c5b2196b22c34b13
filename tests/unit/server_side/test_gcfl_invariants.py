"""Properties of GCFL that hold for any updates, on random federations."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fedgraph_flwr.core.wire import Parcel
from strategies.gcfl import GCFL, GCFLState, step
from strategies.gcfl_clustering import cosine_weights, min_cut

EAGER = {"gcfl.mean-norm-threshold": 1e9, "gcfl.max-norm-threshold": 0.0}


def params(**overrides):
    return toys.resolved("gcfl+", **{**EAGER, **overrides}).params


def start(num_clients: int) -> GCFLState:
    clients = tuple(range(num_clients))
    return GCFLState(
        clusters=(clients,),
        theta=({"w": np.zeros(3, np.float32)},),
        history=dict.fromkeys(clients, ()),
    )


def replies(rng: np.random.Generator, clients, dtype=np.float32) -> dict[int, Parcel]:
    return {
        c: Parcel(
            arrays={"delta/w": rng.normal(size=3).astype(dtype)},
            metrics={"num-examples": int(rng.integers(1, 30))},
        )
        for c in clients
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
def test_clusters_stay_a_partition_and_only_grow_in_number(seed, n, use_dtw, data):
    rng = np.random.default_rng(seed)
    state, count = start(n), 1
    for t in range(1, 7):
        present = data.draw(st.sets(st.sampled_from(range(n)), min_size=1), "present")
        state, split = step(
            state,
            replies(rng, sorted(present)),
            params(),
            server_round=t,
            use_dtw=use_dtw,
        )
        assert sorted(c for members in state.clusters for c in members) == [*range(n)]
        assert all(list(m) == sorted(m) for m in state.clusters)
        assert len(state.clusters) == len(state.theta) == count + len(split)
        count = len(state.clusters)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("use_dtw", [False, True])
@pytest.mark.parametrize(
    "never",
    [{"gcfl.max-norm-threshold": 1e9}, {"gcfl.mean-norm-threshold": 0.0}],
    ids=["eps_2 is huge", "eps_1 is zero"],
)
def test_neutral_thresholds_add_the_weighted_mean_and_nothing_else(
    never, use_dtw, uniform
):
    rng = np.random.default_rng(0)
    state, expected = start(5), np.zeros(3)
    for t in range(30, 40):
        received = replies(rng, range(5), np.float64)
        state = GCFLState(
            clusters=state.clusters,
            theta=({"w": state.theta[0]["w"].astype(np.float64)},),
            history=state.history,
        )
        state, split = step(
            state,
            received,
            params(**never),
            server_round=t,
            use_dtw=use_dtw,
            uniform=uniform,
        )
        sizes = [p.metrics["num-examples"] for p in received.values()]
        expected += np.average(
            [p.arrays["delta/w"] for p in received.values()],
            axis=0,
            weights=None if uniform else sizes,
        )
        assert split == []
        np.testing.assert_allclose(state.theta[0]["w"], expected, atol=1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
@settings(max_examples=30, deadline=None)
def test_renaming_clients_renames_the_two_sides(seed, n):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(n, 4))
    order = rng.permutation(n)
    there = {frozenset(side) for side in min_cut(cosine_weights(updates))}
    back = min_cut(cosine_weights(updates[order]))
    assert {frozenset(order[list(side)].tolist()) for side in back} == there
    assert {
        frozenset(side) for side in min_cut(1e-6 * cosine_weights(updates))
    } == there


def test_ties_are_always_cut_the_same_way():
    equal = np.ones((5, 5))
    assert min_cut(equal) == min_cut(equal.copy())
    left, right = min_cut(equal)
    assert min(len(left), len(right)) == 1  # the lightest cut of equal weights


def test_an_update_of_zeros_is_neither_like_nor_unlike_the_others():
    weights = cosine_weights(np.array([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]]))
    assert weights[0].tolist() == [1, 1, 1]
    assert weights[1, 2] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("use_dtw", [False, True])
def test_a_state_from_a_file_goes_on_as_if_never_stored(use_dtw):
    run = toys.resolved("gcfl+", **EAGER)

    def strategy(state: GCFLState) -> GCFL:
        made = GCFL(run.settings, run.params, experiment="e", use_dtw=use_dtw)
        made.gcfl = state
        return made

    rng = np.random.default_rng(1)
    state, rounds = start(12), [replies(rng, range(12)) for _ in range(9)]
    for t, received in enumerate(rounds[:5], 1):
        state, _ = step(state, received, run.params, server_round=t, use_dtw=use_dtw)
    assert len(state.clusters) > (1 if use_dtw else 3)
    assert all(state.history.values()), "the histories must matter"

    arrays, facts = strategy(state).state()
    other = strategy(start(1))
    other.restore(load(save(arrays)), json.loads(json.dumps(facts)))
    again = other.gcfl
    for t, received in enumerate(rounds[5:], 6):
        state, split = step(
            state, received, run.params, server_round=t, use_dtw=use_dtw
        )
        again, same = step(again, received, run.params, server_round=t, use_dtw=use_dtw)
        assert same == split
    assert again.clusters == state.clusters
    assert again.history == state.history
    for mine, theirs in zip(again.theta, state.theta, strict=True):
        assert mine["w"].tobytes() == theirs["w"].tobytes()
