"""Private client updates: clipping, noise, and accounting against closed forms."""

from __future__ import annotations

import math
import time
from itertools import product

import numpy as np
import pytest
from oracles.gaussian import gaussian_delta
from scipy import stats
from scipy.optimize import brentq

from fedgraph_flwr.core.errors import ConfigError, DataError

pytest.importorskip("dp_accounting")

from clients.privacy.gaussian import (  # after the skip
    clip_update,
    epsilon_of,
    privatise_update,
    release_name,
    update_norm,
)

DELTA = 1e-5


def update(dtype=np.float32):
    return [np.array([[3.0, 0.0]], dtype), np.array([4.0], dtype)]  # norm 5


def test_clipping_scales_all_tensors_together():
    clipped = clip_update(update(), 1.0)
    assert update_norm(clipped) == pytest.approx(1.0)
    np.testing.assert_allclose(clipped[0], [[0.6, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [0.8], rtol=1e-6)
    assert [a.dtype for a in clipped] == [np.float32] * 2


def test_short_and_zero_updates_are_left_alone():
    for given, bound in product((update(), [np.zeros(3, np.float32)]), (5.0, 7.0)):
        for a, b in zip(clip_update(given, bound), given, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_cannot_be_clipped_is_refused():
    for value in (math.nan, math.inf):
        with pytest.raises(DataError, match="must be finite"):
            clip_update([np.array([1.0, value])], 1.0)
    with pytest.raises(DataError, match="of floats, got a tensor of int64"):
        privatise_update(
            [np.array([1])],
            clip_norm=1.0,
            noise_multiplier=1.0,
            rng=np.random.default_rng(0),
        )


def test_noise_has_standard_deviation_sigma_c_around_the_clipped_update():
    given = [np.full((200, 200), 1.0, np.float32), np.zeros(40_000, np.float32)]
    noisy = privatise_update(
        given, clip_norm=2.0, noise_multiplier=1.5, rng=np.random.default_rng(1)
    )
    clipped = clip_update(given, 2.0)
    noise = np.concatenate(
        [(a - b).ravel() for a, b in zip(noisy, clipped, strict=True)]
    )
    assert stats.kstest(noise, stats.norm(scale=3.0).cdf).pvalue > 0.01
    assert [a.dtype for a in noisy] == [np.float32] * 2
    assert [a.shape for a in noisy] == [(200, 200), (40_000,)]


CONTENT = {
    "server_round": 3,
    "inputs": [np.ones(2, np.float32)],
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
    "secret": "",
}


@pytest.mark.parametrize(
    "change",
    [
        {"update": [np.array([[3.0, 0.0]], np.float32), np.array([4.5], np.float32)]},
        {"update": update(np.float64)},
        {"update": [np.array([3.0, 0.0, 4.0], np.float32)]},
        {"server_round": 4},
        {"inputs": [np.zeros(2, np.float32)]},
        {"inputs": []},
        {"clip_norm": 2.0},
        {"noise_multiplier": 1.0},
        {"secret": "s"},
    ],
    ids=lambda c: f"{next(iter(c))}",
)
def test_a_release_is_named_by_all_that_makes_it(change):
    given = {"update": update(), **CONTENT}
    assert release_name(**given) == release_name(**given)
    assert release_name(**{**given, **change}) != release_name(**given)


# Accounting ----------------------------------------------------------------------


def balle_wang(effective):
    """Epsilon of one Gaussian release, solved from the exact delta."""
    return brentq(lambda e: gaussian_delta(e, effective) - DELTA, 0, 200, xtol=1e-10)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 6.0])
def test_one_round_is_the_analytic_gaussian_mechanism_of_replacing_a_client(sigma):
    exact = balle_wang(sigma / 2)
    assert epsilon_of({sigma: 1}, DELTA) == pytest.approx(exact, rel=1e-9)


def test_rounds_compose_like_one_release_with_less_noise():
    exact = balle_wang((5 / 8.0**2 + 3 / 4.0**2) ** -0.5 / 2)
    found = epsilon_of({8.0: 5, 4.0: 3}, DELTA)
    assert found == pytest.approx(exact, rel=1e-9)
    assert found == epsilon_of({4.0: 3, 8.0: 5, 1.0: 0}, DELTA)
    assert epsilon_of({}, DELTA) == 0


@pytest.mark.parametrize(
    ("updates", "epsilon"),
    [({0.1: 1}, 284.39), ({0.01: 1}, 20852.0), ({0.5: 10**5}, 805394.0)],
)
def test_little_noise_and_many_rounds_cost_no_time_and_no_memory(updates, epsilon):
    """A run chooses both: by discretised losses these took minutes, and gigabytes."""
    begin = time.process_time()
    assert epsilon_of(updates, DELTA) == pytest.approx(epsilon, rel=1e-4)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("multiplier", [1e-7, 1e-300])
def test_next_to_no_noise_is_refused(multiplier):
    with pytest.raises(ConfigError, match="too little to account for: it bounds noth"):
        epsilon_of({multiplier: 1}, DELTA)
