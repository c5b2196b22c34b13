"""Attacks on privacy: right about sound mechanisms, and able to find broken ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import toys

from clients.privacy import noisy_views
from clients.privacy.laplace import add_noise
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve
from simulations.leak_game import Setting, known_game, make_game, play
from simulations.leaks import (
    Size,
    attack,
    attack_all,
    clopper_pearson,
    judge,
)

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast

LEVEL = 0.05
ONE = {"fgcl.views": "one"}
CLEAN = {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}


def game(*, method="fgcl", **overrides):
    """One training graph, of two nodes, and toy graphs to validate and test."""
    noise = {"num-clients": 1, "privacy.edge-epsilon": 1.0}
    if method != "fgcl":
        noise |= {"dataset": "MUTAG", "features": "labels"}
    resolved = resolve({**defaults(), **toys.tiny(method, **noise), **overrides})
    return make_game(resolved, toys.federation(resolved.settings, 0), 1)


def attacked(own=40, victims=120, **overrides):
    found = game(**overrides)
    privacy = found.resolved.privacy
    return attack(
        lambda trials: [play(found, *trial) for trial in trials],
        Size(own, victims, LEVEL),
        "",
        privacy.edge_epsilon,
    )


# Statistics ----------------------------------------------------------------------


def test_clopper_pearson_by_its_definition():
    assert clopper_pearson(0, 50, 0.1) == (0.0, pytest.approx(1 - 0.05 ** (1 / 50)))
    assert clopper_pearson(50, 50, 0.1) == (pytest.approx(0.05 ** (1 / 50)), 1.0)
    low, high = clopper_pearson(7, 20, 0.05)  # Clopper & Pearson's own kind of table
    assert low == pytest.approx(0.1539, abs=1e-4)
    assert high == pytest.approx(0.5922, abs=1e-4)


def laplace_scores(epsilon, trials, seed):
    """Scores of the best attack on one Laplace view."""
    rng = np.random.default_rng(seed)
    has_edge = np.arange(trials) % 2 == 1
    return np.clip(has_edge + rng.laplace(0, 1 / epsilon, trials), 0, 1), has_edge


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_what_is_shown_is_near_the_truth_and_seldom_above(epsilon):
    verdicts = [
        judge(
            laplace_scores(epsilon, 1000, f),
            laplace_scores(epsilon, 4000, f + 1),
            level=0.05,
        )
        for f in range(0, 100, 2)
    ]
    shown = np.array([v.epsilon for v in verdicts])
    assert (shown > epsilon).sum() <= 5  # of 50; the level allows 2.5
    assert np.median(shown) > 0.6 * epsilon
    possible = 1 - math.exp(-epsilon / 2)
    covers = [v.low <= possible <= v.high for v in verdicts]
    assert np.mean(covers) > 0.9
    assert np.mean([v.advantage for v in verdicts]) == pytest.approx(possible, abs=0.02)


# The game ------------------------------------------------------------------------


def test_the_worlds_differ_in_one_edge_and_in_nothing_else():
    found = game()
    without, present = (w.graphs for w in found.worlds)
    removed = present.edge_index.shape[1] - without.edge_index.shape[1]
    assert removed == 2  # both directions of one edge
    edges = [
        set(map(tuple, g.edge_index[:, : g.edge_ptr[1]].T)) for g in (without, present)
    ]
    ((u, v), (w, x)) = sorted(edges[1] - edges[0])
    assert (u, v) == (x, w)
    assert edges[0] < edges[1]
    rest = [g.edge_index[:, g.edge_ptr[1] :] for g in (without, present)]
    np.testing.assert_array_equal(*rest)
    np.testing.assert_array_equal(without.x, present.x)
    np.testing.assert_array_equal(without.y, present.y)
    assert 0 in found.worlds[0].train


def test_one_graph_has_no_game():
    setting = Setting((("method", "fedavg"), ("dataset", "planted")), 2, 0)
    with pytest.raises(ConfigError, match="one of many graphs, got planted"):
        known_game(setting)


# The client, attacked --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "claimed"),
    [
        (ONE, 1.0),
        ({"fgcl.views": "two"}, 2.0),
        ({"method": "fedavg"}, 1.0),
    ],
)
def test_a_sound_client_loses_what_its_noise_allows_and_no_more(options, claimed):
    row = attacked(**options)
    assert row.claimed == claimed
    assert not row.is_broken
    view, upload = row.verdicts["view"], row.verdicts["upload"]
    assert view.low < row.bound
    assert view.low > 0  # of 120 trials per world: the attacks do find something
    assert 0 < upload.low < upload.advantage < row.bound


def test_without_noise_the_attacker_wins():
    row = attacked(60, 30, **CLEAN)
    assert row.claimed == math.inf
    assert row.verdicts["upload"].advantage > 0.9
    assert "view" not in row.verdicts


def halved(triangle, epsilon, rng):
    return add_noise(triangle, 2 * epsilon, rng)


def hardly_any(triangle, epsilon, rng):
    return add_noise(triangle, 1e3 * epsilon, rng)


@pytest.mark.parametrize(
    ("method", "wrong", "trials"),
    [
        ("fgcl", halved, 150),
        ("fedavg", hardly_any, 40),
    ],
)
def test_too_little_noise_is_found(monkeypatch, method, wrong, trials):
    monkeypatch.setattr(noisy_views, "add_noise", wrong)
    row = attacked(40, trials, method=method, **(ONE if method == "fgcl" else {}))
    assert row.claimed == 1.0
    assert row.is_broken
    assert row.verdicts["view"].epsilon > 1


def test_real_molecules_lose_no_more_than_their_noise_allows(data_dir, tmp_path):
    base = {"method": "fgcl", "dataset": "BACE", "features": "atoms-no-degree"}
    base |= {"data-dir": str(data_dir), "cache-dir": str(tmp_path)}
    few = {"own_trials": 80, "victims": 40, "processes": 1}
    rows, _ = attack_all(base, [0.1, 1.0, 10.0], client=0, graphs=2, **few)
    clean, *noisy = rows
    # Without noise more is lost than epsilon 1 allows.
    assert clean.verdicts["upload"].low > noisy[1].bound
    assert [row.view_epsilon for row in noisy] == [0.1, 1.0, 10.0] * 2
    assert [row.claimed for row in noisy] == [0.1, 1.0, 10.0, 0.2, 2.0, 20.0]
    assert not any(row.is_broken for row in rows)
    for row in noisy:
        found = row.verdicts["upload"]
        assert found.low <= row.bound
        assert found.epsilon <= row.claimed
    strong = [row.verdicts["upload"].advantage for row in noisy[2::3]]
    assert min(strong) > 0.8  # the attack is one that can succeed
