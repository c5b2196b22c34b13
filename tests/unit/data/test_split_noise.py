"""Noise of the split: how much of what changes, from which seed, and what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys

from datasets import load_partition, splits
from datasets.splits import add_noise, flipped, rewired, shuffled_rows
from fedgraph_flwr.core.data import GraphSet, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError

KINDS = ("features", "edges", "labels")


def settings(**shares):
    given = {f"split_noise_{kind}": share for kind, share in shares.items()}
    return toys.run_settings(**given)


def noisy(partition, **shares):
    return add_noise(partition, settings(**shares))


def rng(seed=0):
    return np.random.default_rng(seed)


def edge_sets(graphs):
    """Edges of each graph, as a set of pairs."""
    cuts = zip(graphs.edge_ptr[:-1], graphs.edge_ptr[1:], strict=True)
    return [set(zip(*graphs.edge_index[:, a:b].tolist(), strict=True)) for a, b in cuts]


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_a_kind_changes_that_alone_and_both_hashes(kind):
    clean = toys.make_partition(dense=True)
    found = noisy(clean, **{kind: 0.5})
    same = {
        "features": np.array_equal(found.graphs.x, clean.graphs.x),
        "edges": np.array_equal(found.graphs.edge_index, clean.graphs.edge_index),
        "labels": np.array_equal(found.graphs.y, clean.graphs.y),
    }
    assert same == {k: k != kind for k in KINDS}
    for name in ("split_hash", "data_hash"):
        assert getattr(found, name) != getattr(clean, name)
    again = noisy(toys.make_partition(dense=True), **{kind: 0.5})
    assert (again.split_hash, again.data_hash) == (found.split_hash, found.data_hash)
    other = noisy(clean, **{kind: 0.25})
    assert other.split_hash != found.split_hash


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_drawn_from_split_seed_and_client_and_not_from_the_run_seed(kind):
    clean = toys.make_partition(num_graphs=40, dense=True)

    def drawn(client=0, **seeds):
        given = {f"split_noise_{kind}": 0.5, **seeds}
        own = replace(clean, client_id=client)
        graphs = add_noise(own, toys.run_settings(**given)).graphs
        return {"features": graphs.x, "edges": graphs.edge_index, "labels": graphs.y}[
            kind
        ].tolist()

    first = drawn()
    assert drawn(seed=99) == first
    assert drawn(split_seed=99) != first
    assert drawn(client=1) != first


@pytest.mark.parametrize("is_number", [False, True])
def test_features_swap_places_among_a_share_of_the_nodes(is_number):
    x = np.arange(20) if is_number else np.arange(40).reshape(20, 2)
    for seed in range(10):
        found = shuffled_rows(x, 0.3, rng(seed))
        changed = found != x if is_number else (found != x).any(axis=1)
        assert changed.sum() == 6  # none of the chosen keeps its own
        np.testing.assert_array_equal(np.sort(found, axis=0), x)


@pytest.mark.parametrize("few", [splits._FEW_PAIRS, -1])
def test_a_share_of_each_graphs_edges_is_replaced(monkeypatch, few):
    """Free pairs are listed, or of large graphs drawn by rejection."""
    monkeypatch.setattr(splits, "_FEW_PAIRS", few)
    graphs = toys.random_graphs(30, dense=True)
    found = rewired(graphs, 0.25, rng())
    for size, old, new in zip(
        np.diff(graphs.node_ptr), edge_sets(graphs), edge_sets(found), strict=True
    ):
        free = size * (size - 1) // 2 - len(old) // 2
        moved = min(round(0.25 * len(old) / 2), free)
        assert len(old & new) == len(old) - 2 * moved
        assert len(new) == len(old)
        assert new == {(v, u) for u, v in new}
        assert all(u != v and 0 <= u < size for u, v in new)
    for begin, end in zip(found.edge_ptr[:-1], found.edge_ptr[1:], strict=True):
        part = found.edge_index[:, begin:end]
        assert (np.lexsort((part[1], part[0])) == np.arange(end - begin)).all()


def graph(edges, size, *, is_undirected=True):
    edge_index = np.array(sorted(edges), dtype=np.int32).reshape(-1, 2).T
    return GraphSet(
        name="g", x=np.zeros(size, np.int64), edge_index=edge_index,
        node_ptr=pointer([size]), edge_ptr=pointer([len(edges)]), y=np.array([0]),
        num_features=1, num_classes=2, is_undirected=is_undirected,
    )  # fmt: skip


def test_loops_stay_and_a_full_graph_cannot_change():
    pairs = {(u, v) for u in range(3) for v in range(3)}
    full = graph(pairs, 3)
    assert edge_sets(rewired(full, 1.0, rng())) == [pairs]
    chain = {(u, u + 1) for u in range(9)}  # one-way edges stay one-way
    (found,) = edge_sets(rewired(graph(chain, 10, is_undirected=False), 1.0, rng()))
    assert len(found) == 9
    assert not found & chain
    (found,) = edge_sets(rewired(graph({(0, 1), (1, 0), (2, 2)}, 3), 1.0, rng()))
    assert (2, 2) in found
    assert found in ({(2, 2), (0, 2), (2, 0)}, {(2, 2), (1, 2), (2, 1)})
    assert edge_sets(rewired(graph(set(), 1), 1.0, rng())) == [set()]


def test_a_share_of_the_training_labels_becomes_another_class():
    clean = toys.make_node_partition(num_nodes=400)
    found = noisy(clean, labels=0.4)
    changed = np.flatnonzero(found.graphs.y != clean.graphs.y)
    assert len(changed) == 96  # of 240 that train
    assert set(changed) <= set(clean.train)
    assert set(found.graphs.y) == {0, 1, 2}
    ways = set(zip(clean.graphs.y[changed], found.graphs.y[changed], strict=True))
    assert len(ways) == 6  # every class becomes every other


def test_yes_and_no_labels_flip_and_missing_ones_stay():
    clean = toys.with_tasks(toys.make_partition(num_graphs=50))
    before, after = clean.graphs.y, noisy(clean, labels=0.5).graphs.y
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    observed = ~np.isnan(before[clean.train])
    flips = (before != after) & ~np.isnan(before)
    assert flips[clean.train].sum() == round(0.5 * observed.sum())
    assert flips.sum() == flips[clean.train].sum()
    assert after.dtype == before.dtype


def test_labels_that_cannot_be_wrong_are_refused():
    one = replace(toys.make_whole_graph(4, num_classes=1), num_classes=1)
    with pytest.raises(DataError, match=r"labels 0.5 needs two classes .* has 1"):
        flipped(one, np.arange(4), 0.5, rng())
    on_labels = {"split-noise-labels": 0.5}
    with pytest.raises(ConfigError, match="must be 0 for labels that are numbers"):
        toys.resolved("fedavg multi-task", dataset="ESOL", **on_labels)
    with pytest.raises(ConfigError, match="must be 0, as no label is learned from"):
        toys.resolved("fclg", **on_labels)
    with pytest.raises(ConfigError, match="split-noise-edges must be a finite number"):
        toys.resolved("fedavg", **{"split-noise-edges": 1.5})


def test_data_of_a_run_are_made_noisy(tmp_path):
    given = {"held-out": 0.4, "dataset": "planted", "num-clients": 1}
    given["cache-dir"] = str(tmp_path)
    clean = load_partition(toys.resolved(**given).settings, 0)
    shares = {f"split-noise-{kind}": 1.0 for kind in KINDS}
    found = load_partition(toys.resolved(**given, **shares).settings, 0)
    assert found.noise == "features=1,edges=1,labels=1,seed=123"
    assert (found.graphs.y != clean.graphs.y)[clean.train].all()
    for held_out in (clean.val, clean.test):
        np.testing.assert_array_equal(
            found.graphs.y[held_out], clean.graphs.y[held_out]
        )
    assert edge_sets(found.graphs) != edge_sets(clean.graphs)
    assert not np.array_equal(found.graphs.x, clean.graphs.x)
