"""Edge noise: distribution, privacy measured on outputs, post-processing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import toys
from scipy import stats

from clients.privacy.laplace import (
    GraphAdjacency,
    Triangles,
    add_noise,
    clamp_bias,
    num_pairs,
    post_process,
)
from fedgraph_flwr.core.privacy_settings import EDGE_POSTS

MANY = 100_000


def rng(seed=0):
    return np.random.default_rng(seed)


def pairs_alone(values):
    """Many graphs of two nodes, one pair each."""
    n = len(values)
    return Triangles(
        values=np.asarray(values, np.float32),
        num_nodes=np.full(n, 2),
        positions=np.arange(n),
    )


# Distribution --------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_noise_is_laplace_with_scale_one_over_epsilon(epsilon):
    clean = (np.arange(MANY) % 2).astype(np.float32)
    noise = add_noise(clean, epsilon, rng()) - clean
    assert stats.kstest(noise, stats.laplace(scale=1 / epsilon).cdf).pvalue > 0.01
    assert noise.var() == pytest.approx(2 / epsilon**2, rel=0.03)
    assert np.isfinite(noise).all()


# Compact form --------------------------------------------------------------------


def test_triangles_are_the_adjacency_and_mirror_to_symmetric_matrices():
    graphs = toys.random_graphs(12)
    sizes = np.diff(graphs.node_ptr)
    clean = toys.clean_triangles(GraphAdjacency(graphs), sizes, np.arange(12))
    noisy = Triangles(
        values=add_noise(clean.values, 1.0, rng()),
        num_nodes=sizes,
        positions=clean.positions,
    )
    for g in range(12):
        n = sizes[g]
        expected = np.zeros((n, n))
        for e in range(graphs.edge_ptr[g], graphs.edge_ptr[g + 1]):
            expected[tuple(graphs.edge_index[:, e])] = 1
        np.testing.assert_array_equal(clean.matrix(g), expected)
        matrix = noisy.matrix(g)
        np.testing.assert_array_equal(matrix, matrix.T)
        assert (matrix.diagonal() == 0).all()
        assert (matrix != 0).sum() == n * (n - 1)
    assert (sizes == 1).any()  # a node alone has an empty triangle
    assert num_pairs(np.array([1, 2, 5])).tolist() == [0, 1, 10]


# Privacy, measured ----------------------------------------------------------------


def largest_ratio(with_edge, without_edge, *, fewest=400):
    """Largest ratio of frequencies of joint outcomes of (u, v) and (v, u)."""
    cuts = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0])

    def histogram(released):
        bins = [np.digitize(side, cuts) for side in released]
        return np.bincount(bins[0] * 8 + bins[1], minlength=64)

    a, b = histogram(with_edge), histogram(without_edge)
    populated = (a >= fewest) & (b >= fewest)
    assert populated.sum() >= 5
    ratio = a[populated] / b[populated]
    return max(ratio.max(), (1 / ratio).max())


def mirrored(edge, epsilon, seed):
    """Our mechanism: one draw per pair, seen from both ends."""
    released = add_noise(np.full(MANY * 4, edge, np.float32), epsilon, rng(seed))
    views = Triangles(
        values=released,
        num_nodes=np.full(len(released), 2),
        positions=np.arange(len(released)),
    )
    assert views.matrix(0)[0, 1] == views.matrix(0)[1, 0] == released[0]
    return released, released


def test_released_entries_obey_epsilon():
    epsilon = 1.0
    ratio = largest_ratio(mirrored(1, epsilon, 1), mirrored(0, epsilon, 2))
    assert math.exp(epsilon) * 0.9 < ratio <= math.exp(epsilon) * 1.1


# Post-processing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("post", "expected"),
    [
        ("clamp01", [0, 0.25, 0.75, 1]),
        ("round", [0, 0, 1, 1]),
        ("relu", [0, 0.25, 0.75, 3]),
        ("abs-degree", [-2, 0.25, 0.75, 3]),
    ],
)
def test_post_processing_by_hand(post, expected):
    noisy = pairs_alone([-2, 0.25, 0.75, 3])
    assert post_process(noisy, 1.0, post).values.tolist() == expected


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_clamping_is_biased_as_stated_and_debiasing_is_not(epsilon, edge):
    noisy = pairs_alone(add_noise(np.full(MANY, edge, np.float32), epsilon, rng(5)))
    c = clamp_bias(epsilon)
    clamped = post_process(noisy, epsilon, "clamp01").values.astype(float)
    assert clamped.mean() == pytest.approx(abs(edge - c), abs=0.006)
    debiased = post_process(noisy, epsilon, "debiased").values.astype(float)
    allowed = 5 * debiased.std() / math.sqrt(MANY)
    assert debiased.mean() == pytest.approx(edge, abs=allowed)
    assert debiased.var() < 2 / epsilon**2


@pytest.mark.parametrize("post", EDGE_POSTS)
def test_without_noise_every_post_processing_gives_the_graph(post):
    clean = pairs_alone(np.array([0, 1, 1, 0]))
    noisy = pairs_alone(add_noise(clean.values, 1e9, rng()))
    found = post_process(noisy, 1e9, post).values
    np.testing.assert_allclose(found, clean.values, atol=1e-6)
