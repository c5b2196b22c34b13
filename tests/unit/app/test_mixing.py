"""Mixing weights and mixing, against the equations and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracles import spreadgnn as oracle

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.mixing import (
    MOST_ENTRY,
    Peer,
    check_layout,
    mix,
    mix_rows,
    mixing_matrix,
    mixing_row,
    spectral_gap,
)
from fedgraph_flwr.core.network import build_topology

TOPOLOGIES = {
    "complete": build_topology("complete", 8),
    "ring": build_topology("ring", 8),
    "star": build_topology("star", 8),
    "random-regular": build_topology("random-regular", 8, degree=3, seed=1),
    "watts-strogatz": build_topology("watts-strogatz", 8, degree=4, rewiring=0.3),
    "apart": build_topology("random-regular", 8, degree=1),
}
COUNTS = {k: 10 + 7 * k for k in range(8)}
ALL = pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)


def matrix(topology, kind="metropolis"):
    return mixing_matrix(kind, topology, COUNTS)


@ALL
def test_every_kind_agrees_with_the_equations(topology):
    near = topology.neighbours
    for kind, expected in (
        ("metropolis", oracle.metropolis(near)),
        ("uniform", oracle.uniform(near)),
        ("samples", oracle.samples(near, COUNTS)),
    ):
        np.testing.assert_allclose(matrix(topology, kind), expected, atol=1e-15)


def test_spectral_gaps_in_closed_form():
    """Of a ring: eigenvalues (1 + 2 cos(2 pi i / n)) / 3."""
    assert spectral_gap(matrix(TOPOLOGIES["complete"])) == pytest.approx(1)
    assert spectral_gap(matrix(TOPOLOGIES["ring"])) == pytest.approx(
        1 - (1 + 2 * math.cos(2 * math.pi / 8)) / 3
    )
    assert spectral_gap(matrix(TOPOLOGIES["apart"])) == pytest.approx(0)
    assert spectral_gap(matrix(build_topology("complete", 1))) == 1


@ALL
def test_mixing_preserves_the_mean_over_clients(topology):
    rng = np.random.default_rng(0)
    x = {k: {"w": rng.normal(size=5)} for k in range(8)}
    m = matrix(topology)
    mixed = [
        mix(
            {j: x[j] for j in (k, *topology.neighbours[k])},
            {j: m[k, j] for j in (k, *topology.neighbours[k])},
            k,
        )["w"]
        for k in range(8)
    ]
    before = np.stack([x[k]["w"] for k in range(8)])
    np.testing.assert_allclose(np.mean(mixed, 0), before.mean(0), atol=1e-15)
    np.testing.assert_allclose(mixed, oracle.mix(m.tolist(), before.tolist()))


# A client that is gone ----------------------------------------------------------------

PEERS = {
    0: Peer(num_neighbours=2, num_examples=10),
    1: Peer(num_neighbours=3, num_examples=30),
    2: Peer(num_neighbours=1, num_examples=60),
}


@pytest.mark.parametrize(
    ("kind", "whole", "without"),
    [
        ("metropolis", [5 / 12, 1 / 4, 1 / 3], [3 / 4, 1 / 4]),
        ("uniform", [1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2]),
        ("samples", [0.1, 0.3, 0.6], [0.25, 0.75]),
    ],
)
def test_weights_without_a_neighbour(kind, whole, without):
    row = mixing_row(kind, 0, PEERS)
    assert list(row) == [0, 1, 2]
    assert list(row.values()) == pytest.approx(whole)
    left = {j: p for j, p in PEERS.items() if j != 2}
    row = mixing_row(kind, 0, left)
    assert list(row.values()) == pytest.approx(without)


# Mixing -------------------------------------------------------------------------------


def model(value, **more):
    return {"w": np.full((2, 2), value, np.float32), **more}


def test_counters_are_the_clients_own():
    own, other = model(1, n=np.array([7])), model(2, n=np.array([9]))
    assert mix({0: own, 1: other}, {0: 0.5, 1: 0.5}, 0)["n"].tolist() == [7]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"v": np.zeros(1)}, r"model of client 1 differs in v, w"),
        ({"w": np.zeros((2, 3), np.float32)}, r"model of client 1 differs in w: got"),
        ({"w": np.zeros((2, 2))}, r"float64.* run the same settings"),
        (model(math.nan), r"model of client 1: array 'w' holds NaN or infinity"),
        (model(math.inf), r"model of client 1: array 'w' holds NaN or infinity"),
        (model(-3e38), r"array 'w' holds .* or numbers beyond \+-1000; lower"),
    ],
)
def test_models_that_cannot_be_mixed(other, message):
    check_layout(1, model(MOST_ENTRY), model(1))
    with pytest.raises(WireError, match=message):
        check_layout(1, other, model(1))


def test_rows_are_mixed_over_the_owners_of_their_task():
    heads = {j: {"b": np.array([j, j, j], np.float32)} for j in (1, 2, 4)}
    row = {1: 0.5, 2: 0.25, 4: 0.25}
    owners = {1: (0,), 2: (1,), 4: (1,)}
    mixed = mix_rows(heads, row, owners, ["b"])
    # task 0: client 1 alone; task 1: clients 2 and 4 alike; task 2: nobody's, all
    assert mixed["b"].tolist() == [1, 3, 0.5 + 0.5 + 1]
