"""Clients of one graph: features, classes and edges stay together, roles are global."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import toys
from hypothesis import given, reject
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import datasets
from datasets import node_clients
from datasets.node_clients import TEST, TRAIN, VAL, draw_roles
from datasets.partitioners import NODE_PARTITIONERS, partition_nodes
from datasets.public.node_graphs import load_node_graph, whole_graph
from fedgraph_flwr.core.errors import ConfigError, DataError

DISJOINT = ("dirichlet-labels", "louvain", "louvain-delta", "metis")


def edges_of(graph):
    return set(map(tuple, graph.edge_index.T.tolist()))


@settings_of(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(NODE_PARTITIONERS)),
    st.integers(60, 90),
    st.sampled_from([0.02, 0.1, 0.5]),
    st.integers(0, 10_000),
)
def test_clients_of_any_partition_hold_rows_of_the_whole_graph(kind, size, share, seed):
    """Specification 4.18, through all that a client is made by."""
    whole = toys.make_whole_graph(size, seed=seed, density=share)
    s = toys.run_settings(
        dataset="Cora",
        num_clients=5,
        partition=kind,
        split_seed=seed,
        dirichlet_alpha=0.5,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_clients, "load_node_graph", lambda *_, **__: whole)
        node_clients.cut_graph.cache_clear()
        try:
            held = [datasets.load_partition(s, client) for client in range(5)]
        except DataError:  # too few communities, or a part without nodes
            reject()
        finally:
            node_clients.cut_graph.cache_clear()
    roles = draw_roles(size, toys.run_settings(held_out=0.7), seed=seed)
    for p in held:
        ids = p.graph_ids
        assert (np.diff(ids) > 0).all()  # and with them edges stay sorted
        np.testing.assert_array_equal(p.graphs.x, whole.x[ids])
        np.testing.assert_array_equal(p.graphs.y, whole.y[ids])
        back = {(int(ids[a]), int(ids[b])) for a, b in edges_of(p.graphs)}
        inside = set(ids.tolist())
        assert back == {e for e in edges_of(whole) if inside.issuperset(e)}
        assert p.graphs.edge_index.shape[1] == len(back) == p.graphs.edge_ptr[-1]
        for role, own in ((TRAIN, p.train), (VAL, p.val), (TEST, p.test)):
            np.testing.assert_array_equal(own, np.flatnonzero(roles[ids] == role))
    if kind in DISJOINT:
        together = np.concatenate([p.graph_ids for p in held])
        np.testing.assert_array_equal(np.sort(together), np.arange(size))


@pytest.fixture
def settings(monkeypatch):
    """Settings of a made-up graph of 120 nodes in place of Cora."""
    whole = rings(num_rings=12, size=10)
    monkeypatch.setattr(node_clients, "load_node_graph", lambda *_, **__: whole)
    node_clients.cut_graph.cache_clear()

    def make(**changes):
        base = {"dataset": "Cora", "num_clients": 5, "partition": "metis"}
        return toys.run_settings(**{**base, **changes})

    yield make
    node_clients.cut_graph.cache_clear()


def rings(num_rings: int, size: int):
    """Rings with all chords, joined in a circle by single edges: clear communities."""
    edges = []
    for ring in range(num_rings):
        first = ring * size
        edges += [(first + a, first + b) for a in range(size) for b in range(a)]
        edges.append((first, (first + size) % (num_rings * size)))
    num_nodes = num_rings * size
    x = np.random.default_rng(0).random((num_nodes, 4)).astype(np.float32)
    y = np.arange(num_nodes) // size % 3
    return whole_graph("rings", x, np.array(edges).T, y, normalize=False)


def test_roles_have_the_papers_shares():
    """2485 nodes of Cora: round(0.3 N), round(0.35 N) to test, the rest."""
    roles = draw_roles(2485, toys.run_settings(held_out=0.7), seed=1234)
    assert np.bincount(roles).tolist() == [746, 869, 870]
    assert not np.array_equal(
        roles, draw_roles(2485, toys.run_settings(held_out=0.7), seed=1235)
    )


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    held_out=st.sampled_from([0.1, 0.2, 0.7]),
    seed=st.integers(0, 99),
)
@settings_of(max_examples=60, deadline=None)
def test_roles_by_class_are_as_many_and_each_class_has_its_share(sizes, held_out, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    try:
        plain = draw_roles(len(y), toys.run_settings(held_out=held_out), seed=seed)
    except DataError:
        reject()
    roles = draw_roles(len(y), toys.run_settings(held_out=held_out), seed=seed, y=y)
    counts = np.bincount(roles, minlength=3)
    np.testing.assert_array_equal(counts, np.bincount(plain, minlength=3))
    assert np.array_equal(
        roles, draw_roles(len(y), toys.run_settings(held_out=held_out), seed=seed, y=y)
    )
    if counts.min() < 2 * len(sizes) or held_out > 0.5:
        return
    for k, size in enumerate(sizes):
        of_class = np.bincount(roles[y == k], minlength=3)
        assert of_class[TRAIN] >= 1
        assert size < 3 or of_class.min() >= 1
        assert (np.abs(of_class - size * counts / len(y)) < len(sizes)).all()


def test_draws_with_replacement_leave_fewer_nodes():
    graph = toys.make_whole_graph(2000, density=0.002)
    held = partition_nodes("metis-overlap-replacement", graph, 5, seed=1, alpha=0.5)
    share = np.mean([len(ids) for ids in held]) / 2000
    assert share == pytest.approx(1 - np.exp(-0.5), abs=0.01)  # 39 %
    assert all(len(np.unique(ids)) == len(ids) for ids in held)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        *(
            (kind, 125, "num-clients is 125, but rings has 120")
            for kind in ("louvain", "metis", "metis-overlap")
        ),
        ("metis-overlap", 7, "multiple of 5 for overlapping parts, got 7"),
        ("louvain", 14, "Louvain finds 12 communities in rings, fewer"),
        ("iid", 5, "partition of dataset 'Cora' must be 'diri"),
    ],
)
def test_parts_that_cannot_be_are_refused(settings, partition, clients, message):
    config = settings(partition=partition, num_clients=clients)
    with pytest.raises((ConfigError, DataError), match=message):
        datasets.load_partition(config, 0)


@pytest.mark.parametrize("clients", [5, 10, 20])
def test_louvain_delta_makes_clients_of_nearly_equal_size(data_dir, clients):
    graph = load_node_graph("Cora", "raw", "all", data_dir=data_dir)
    assert graph.num_nodes == 2708  # Planetoid's, with its small components
    parts = partition_nodes("louvain-delta", graph, clients, seed=1, alpha=0.5)
    share = 2708 // clients
    assert max(map(len, parts)) < share + 20
    assert sum(map(len, parts)) == 2708
    # communities stay together: far more edges than a random cut of so many parts has
    owner = np.empty(2708, int)
    for client, nodes in enumerate(parts):
        owner[nodes] = client
    inside = (owner[graph.edge_index[0]] == owner[graph.edge_index[1]]).mean()
    assert inside > 3 / clients


def test_roles_within_each_class_of_a_client_are_counted_as_floors(settings):
    config = settings(split="classes", held_out=0.8)
    for client in range(5):
        p = datasets.load_partition(config, client)
        for label in np.unique(p.graphs.y):
            n = int((p.graphs.y == label).sum())
            found = [int((p.graphs.y[ids] == label).sum()) for ids in (p.train, p.val)]
            assert found == [n * 2 // 10, n * 6 // 10 - n * 2 // 10]
        assert len(p.train) + len(p.val) + len(p.test) == p.graphs.num_nodes
    with pytest.raises(ConfigError, match="'classes': it is for nodes of public"):
        toys.resolved("fedavg", dataset="planted", split="classes")


def test_a_client_or_a_role_without_nodes_is_refused():
    with pytest.raises(DataError, match=r"nodes with held-out 0.7 leave .* to train"):
        draw_roles(2, toys.run_settings(held_out=0.7), seed=0)
    crowded = toys.make_whole_graph(12, density=0.5)
    with pytest.raises(DataError, match=r"leaves \d+ of 12 clients without a node \("):
        partition_nodes("metis", crowded, 12, seed=0, alpha=0.5)


@pytest.mark.parametrize(
    ("kind", "seed", "digest"),
    [
        ("dirichlet-labels", 1, "17e8b6b3b00e"),
        ("louvain-delta", 1, "2919657aaab7"),
        ("louvain", 1, "4da6bb5332d7"),
        ("louvain", 2, "9d0aa311270f"),
        ("metis", 1, "97500980c68d"),  # of no seed
        ("metis", 2, "97500980c68d"),
        ("metis-overlap", 1, "c9958cf1f6c2"),
        ("metis-overlap", 2, "3e8b1e9a1ee5"),
        ("metis-overlap-replacement", 1, "c27d706a108e"),
        ("metis-overlap-replacement", 2, "f66be4aa758d"),
    ],
)
def test_pinned_cuts_of_a_graph(kind, seed, digest):
    """Whoever changes one changes the split hash of every run on it."""
    whole = toys.make_whole_graph(120, seed=3, density=0.04)
    parts = partition_nodes(kind, whole, 5, seed=seed, alpha=0.5)
    text = "".join(str(part.tolist()) for part in parts)
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)
