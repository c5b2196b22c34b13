"""FedGKD's server: relatedness, kernel, attention and mixing (spec Sec. 5)."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import fedgkd as oracle
from scipy.linalg import expm
from threadpoolctl import threadpool_limits

from fedgraph_flwr.core.errors import RunFailedError
from strategies import fedgkd
from strategies.fedgkd import (
    attention,
    collapse_risk,
    relatedness,
    similarity,
)
from strategies.personal import mix

FIGURE_3 = np.array([[1, 0.01, 0.9], [0.01, 1, 0.9], [0.9, 0.9, 1]])
KERNELS = ["local", "square", "exponential"]
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=30, deadline=None)


def random_features(seed, num_clients=4, num_rows=6, num_columns=9):
    """Task features of which some columns are constant in one client or in all."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(num_clients, num_rows, num_columns))
    found[0, :, 2] = 0
    found[:, :, 5] = 7.25
    return list(found.astype(np.float32))


def random_relation(seed, n=5):
    return relatedness(random_features(seed, num_clients=n))


# R ---------------------------------------------------------------------------------


@quick
@given(seeds)
def test_relatedness_agrees_with_corrcoef_column_by_column(seed):
    features = random_features(seed)
    found = relatedness(features)
    np.testing.assert_allclose(found, oracle.relatedness(features), atol=1e-10)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 1.0)
    assert np.abs(found).max() <= 1


def test_relatedness_has_the_same_bytes_on_any_number_of_cores(monkeypatch):
    features = random_features(5, num_clients=30, num_columns=40)
    monkeypatch.setattr(fedgkd, "_BLOCK", 30 * 6 * 4)  # ten blocks
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        with threadpool_limits(limits=1, user_api="blas"):
            found.append(relatedness(features).tobytes())
    assert len(set(found)) == 1


def test_without_a_valid_column_entries_are_zero_and_the_diagonal_one():
    still = [np.zeros((4, 3)), np.full((4, 3), 2.5)]
    np.testing.assert_array_equal(relatedness(still), np.eye(2))
    for std, r in ((1e-9, 0), (1e-7, 1)):  # constant up to 1e-8
        nearly = std * np.array([[1.0], [-1.0], [1.0], [-1.0]])
        np.testing.assert_allclose(relatedness([nearly, nearly])[0, 1], r)


# S ---------------------------------------------------------------------------------


def test_figure_3_of_the_paper():
    s = similarity(FIGURE_3, "exponential", tau=0.5)
    assert s[0, 1] == pytest.approx(0.1815, abs=1e-3)
    np.testing.assert_allclose(s[:2, 2], 0.795, atol=1e-3)
    # Printed: 0.18 and 0.79, where the direct links are 0.01 and 0.9.
    assert f"{s[0, 1]:.2f}" == "0.18"
    assert math.floor(100 * s[0, 2]) == 79


@quick
@given(seeds, st.floats(0, 1))
def test_the_exponential_is_its_series_and_scipys(seed, tau):
    r = random_relation(seed)
    s = similarity(r, "exponential", tau=tau)
    series = oracle.exponential(r, tau)
    np.testing.assert_allclose(s, series, atol=1e-10)
    np.testing.assert_allclose(s, expm(tau * r), atol=1e-10)


def test_local_and_square_kernels():
    np.testing.assert_array_equal(similarity(FIGURE_3, "local", tau=9), FIGURE_3)
    square = similarity(FIGURE_3, "square", tau=9)
    assert square[0, 1] == pytest.approx(0.01 + 0.01 + 0.81)


def test_an_exponential_beyond_all_numbers_says_what_to_lower():
    with pytest.raises(RunFailedError, match=r"fedgkd.tau = 10; it grows"):
        similarity(np.ones((100, 100)), "exponential", tau=10)


# q ---------------------------------------------------------------------------------


@quick
@given(seeds, st.floats(0, 9), st.sampled_from(KERNELS), st.floats(-50, 50))
def test_attention_is_a_softmax_of_rows(seed, tau_s, kernel, shift):
    s = similarity(random_relation(seed), kernel, tau=0.5)
    q = attention(s, tau_s)
    np.testing.assert_allclose(q, oracle.attention(s, tau_s), rtol=1e-9)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-12)
    assert q.min() > 0
    np.testing.assert_allclose(attention(s + shift, tau_s), q, atol=1e-10)


def test_when_tiny_differences_may_decide():
    assert not collapse_risk(50, 0.1)
    assert collapse_risk(51, 0.1)


# W ---------------------------------------------------------------------------------


def random_models(seed, n):
    rng = np.random.default_rng(seed)
    return [
        {
            "a": rng.normal(size=(3, 2)).astype(np.float32),
            "b": rng.normal(size=40_000).astype(np.float32),
            "count": np.array([7 + i]),
        }
        for i in range(n)
    ]


def test_personal_means_agree_with_the_oracle():
    models, q = random_models(0, 4), attention(random_relation(5, 4), 2.0)
    mixed = mix(models, q * np.array([[1], [3], [0.5], [7]]))  # rows of any sum
    for name in ("a", "b"):  # b spans two blocks
        want = oracle.averages([m[name].astype(np.float64) for m in models], q)
        for mean, row in zip(mixed, want, strict=True):
            np.testing.assert_allclose(mean[name], row, atol=1e-6)
            assert mean[name].dtype == np.float32
    assert [int(m["count"][0]) for m in mixed] == [7] * 4
