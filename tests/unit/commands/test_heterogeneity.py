"""How graphs differ: walks and cosines, groups, the command."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import toys
from oracles import anonymous_walks as oracle

from simulations import heterogeneity
from simulations.cli import main as fedgraph
from simulations.graph_measures import (
    anonymous_walks,
    divergences,
    feature_distributions,
    walk_distributions,
)
from simulations.heterogeneity import contrast, pair_table

GRAPHS = toys.random_graphs(12, seed=5)
TRIANGLE = np.array([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
QUICK = ("--graphs", "6", "--shuffles", "9")


def rng():
    return np.random.default_rng(3)


def edges_of(graphs, g):
    edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
    return list(zip(*edges.tolist(), strict=True))


def walks(graphs, length, exact_up_to=10**6, num_samples=1, rng=None):
    return walk_distributions(
        graphs, length=length, exact_up_to=exact_up_to, num_samples=num_samples,
        rng=rng or np.random.default_rng(0),
    )  # fmt: skip


def one_graph(num_nodes, edges, x=None):
    x = np.zeros(num_nodes, np.uint8) if x is None else x
    order = np.lexsort(edges[::-1])
    return toys.replace(
        GRAPHS, x=x, edge_index=np.asarray(edges)[:, order], y=np.zeros(1, np.int64),
        node_ptr=np.array([0, num_nodes]), edge_ptr=np.array([0, edges.shape[1]]),
    )  # fmt: skip


def test_anonymous_walks_are_counted_by_bell_numbers():
    assert [len(anonymous_walks(k)) for k in range(1, 6)] == [2, 5, 15, 52, 203]
    assert list(anonymous_walks(4)) == sorted(set(anonymous_walks(4)))
    every = {oracle.anonymous(w) for w in itertools.product(range(4), repeat=4)}
    assert set(anonymous_walks(3)) == every


@pytest.mark.parametrize("length", [1, 2, 4])
def test_exact_distributions_agree_with_enumeration(length):
    shares, is_exact = walks(GRAPHS, length)
    assert is_exact.all()
    for g, size in enumerate(np.diff(GRAPHS.node_ptr)):
        slow = oracle.distribution(int(size), edges_of(GRAPHS, g), length)
        expected = [float(slow.get(w, 0)) for w in anonymous_walks(length)]
        np.testing.assert_allclose(shares[g], expected, rtol=1e-12)


def test_divergences_agree_with_their_definition():
    shares, _ = walks(GRAPHS, 4)
    dicts = [dict(enumerate(row)) for row in shares]
    slow = [[oracle.jensen_shannon(p, q) for q in dicts] for p in dicts]
    found = divergences(shares, shares)
    np.testing.assert_allclose(found, slow, rtol=1e-9, atol=1e-12)
    unknown = divergences(np.eye(2), np.full((1, 2), np.nan))
    assert np.isnan(unknown).all()


def test_drawn_walks_come_close_and_repeat():
    exact, _ = walks(GRAPHS, 3)
    drawn, is_exact = walks(GRAPHS, 3, exact_up_to=0, num_samples=20_000, rng=rng())
    again, _ = walks(GRAPHS, 3, exact_up_to=0, num_samples=20_000, rng=rng())
    assert not is_exact.any()
    assert np.abs(drawn - exact).max() < 0.015  # four standard errors
    np.testing.assert_array_equal(drawn, again)
    assert (drawn != exact).any()


def test_cosines_along_edges_by_hand():
    x = np.array([[1, 0], [2, 0], [0, 3]], np.float32)
    shares = feature_distributions(one_graph(3, TRIANGLE, x), bins=4)
    np.testing.assert_allclose(shares, [[0, 0, 4 / 6, 2 / 6]])
    column = np.array([0, 0, 1], np.uint8)  # the same directions as one-hot rows
    np.testing.assert_array_equal(
        feature_distributions(one_graph(3, TRIANGLE, column), bins=4), shares
    )
    nothing = feature_distributions(one_graph(3, TRIANGLE[:, :0], x), bins=4)
    assert np.isnan(nothing).all()
    opposite = np.array([[1, 0], [-1, 0], [0, 0]], np.float32)
    shares = feature_distributions(one_graph(3, TRIANGLE, opposite), bins=4)
    np.testing.assert_allclose(shares, [[2 / 6, 0, 4 / 6, 0]])


APART = np.array(
    [
        [9, 1, 4, 6],
        [1, 9, 8, np.nan],
        [4, 8, 9, 3],
        [6, np.nan, 3, 9],
    ]
)


def test_pairs_are_averaged_by_group_without_the_diagonal():
    table = pair_table(APART, np.array([0, 0, 1, 1]))
    assert table["pairs"].to_dict() == {(0, 0): 1, (0, 1): 3, (1, 1): 1}
    assert [*table["mean"]] == [1, 6, 3]
    assert [*table["std"]] == [0, np.std([4, 6, 8]), 0]
    alone = pair_table(APART, np.array([0, 0, 0, 1]))
    assert alone["pairs"][1, 1] == 0
    assert math.isnan(alone["mean"][1, 1])
    means = contrast(APART, np.array([0, 0, 1, 1]), shuffles=9, rng=rng())
    assert means[:3] == (2.0, 6.0, 22 / 5)


def test_groups_that_are_alike_are_no_chance_and_mixed_ones_are():
    spot = np.concatenate([rng().normal(0, 1, 8), rng().normal(9, 1, 8)])
    apart = np.abs(spot[:, None] - spot)
    groups, graphs = np.repeat([0, 1], 8), np.arange(16)

    def p(alike):
        return contrast(apart, alike, shuffles=99, rng=rng())[3]

    assert p(groups) == 0.01
    assert p(graphs % 2) > 0.2
    assert math.isnan(p(0 * groups))


@pytest.mark.slow
def test_clients_of_a_federation_are_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("simulations.markup.PIPE_WIDTH", 80)
    monkeypatch.setattr(heterogeneity, "load_partition", toys.federation)
    command = ["dataset=PROTEINS", "num-clients=3", *QUICK]
    assert fedgraph(["heterogeneity", *command, "--out", str(tmp_path / "a.csv")]) == 0
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 80
    assert "structure: mean 0." in out
    assert "of graphs drawn at random" in " ".join(out.split())
    found = toys.csv_rows(tmp_path / "a.csv")
    assert [(r["group"], r["other_group"]) for r in found] == [
        (f"client {a} toy", f"client {b} toy")
        for a, b in itertools.combinations_with_replacement(range(3), 2)
    ]
    assert [r["structure_pairs"] for r in found] == [
        "15", "36", "36", "15", "36", "15"
    ]  # fmt: skip
    for seed, is_same in (("0", True), ("1", False)):
        other = [*command, "--seed", seed, "--out", str(tmp_path / seed)]
        assert fedgraph(["heterogeneity", *other]) == 0
        assert (toys.csv_rows(tmp_path / seed) == found) is is_same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of: names of data sets, e.g. COX2"),
        (["COX2", "dataset=MUTAG"], "give one of: names of data sets"),
        (["Nonsense"], "Nonsense"),
        (["dataset=synthetic", "nonsense=1"], "nonsense"),
        (["dataset=synthetic"], "too many to compare all pairs (at most 10); set --g"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(heterogeneity, "_MAX_GRAPHS", 10)
    assert fedgraph(["heterogeneity", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
