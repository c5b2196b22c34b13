"""Partitioners and the 80/10/10 split."""

import hashlib
import math

import numpy as np
import pytest
import toys
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

import datasets
from datasets import partitioners, splits
from fedgraph_flwr.core.data import hash_federation, hash_split
from fedgraph_flwr.core.errors import DataError

EXCLUSIVE = sorted(set(partitioners.PARTITIONERS) - {"chunks-overlap"})


def partition(kind, y, num_clients, *, seed=123, alpha=0.5):
    return partitioners.partition_graphs(
        kind, np.asarray(y), num_clients=num_clients, seed=seed, alpha=alpha
    )


def labels(num_graphs, num_classes=2):
    return np.arange(num_graphs) * num_classes // num_graphs  # in order, as TU files


@pytest.mark.parametrize("kind", EXCLUSIVE)
@settings(max_examples=40, deadline=None)
@given(
    num_clients=st.integers(1, 12),
    per_client=st.integers(3, 30),
    more=st.integers(0, 11),
    num_classes=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
    alpha=st.sampled_from([1e-9, 0.05, 0.5, 100.0]),
)
def test_every_graph_goes_to_one_client(
    kind, num_clients, per_client, more, num_classes, seed, alpha
):
    y = labels(num_clients * per_client + more, num_classes)
    is_dirichlet = kind.startswith("dirichlet")
    extra = {"alpha": alpha} if is_dirichlet else {}
    if kind == "dominance":
        extra = {"dominance": min(alpha, 1.0)}
    clients = partitioners.PARTITIONERS[kind](y, num_clients, seed=seed, **extra)
    assert len(clients) == num_clients
    assert sorted(np.concatenate(clients).tolist()) == list(range(len(y)))
    assert all((np.diff(rows) > 0).all() for rows in clients)
    if is_dirichlet:
        assert min(map(len, clients)) >= min(10, len(y) // num_clients)


@pytest.mark.parametrize(("num_graphs", "num_clients"), [(1113, 10), (333, 30)])
def test_reference_chunks_draw_as_the_reference_does(num_graphs, num_clients):
    size = min(50, num_graphs // num_clients)
    expected = [list(range(i * size, (i + 1) * size)) for i in range(num_clients)]
    stream = np.random.RandomState(123)
    for graph in range(num_clients * size, num_graphs):
        expected[stream.randint(0, num_clients)].append(graph)
    chunks = partitioners.reference_chunks(labels(num_graphs), num_clients, seed=123)
    assert [rows.tolist() for rows in chunks] == expected


def test_overlapping_chunks_share_graphs_but_repeat_none():
    chunks = partitioners.overlapping_chunks(labels(200), 20, seed=1)
    assert all(len(np.unique(rows)) == len(rows) < 150 for rows in chunks)
    assert sum(map(len, chunks)) > 200
    assert (
        max(map(len, partitioners.overlapping_chunks(labels(10**6), 99, seed=1))) > 140
    )


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("chunks", "6ebe3acb5a6e"),
        ("chunks-overlap", "4ce536b97698"),
        ("dirichlet-labels", "b374dba34a45"),
        ("dirichlet-quantity", "09d90020f0b1"),
        ("dominance", "b84072835b9d"),
        ("iid", "9e83b8b12922"),
        ("iid-classwise", "e5b9438a04bc"),
        ("quantity-skew", "886c70c102ba"),
    ],
)
def test_pinned_partitions(kind, digest):
    """Another draw is a change of results, and of every published split."""
    if kind == "quantity-skew":
        rows = np.arange(0, 800, 2)
        clients = partitioners.quantity_skew(rows, 6, seed=5, alpha=0.3)
    else:
        clients = partition(kind, np.arange(400) % 7 % 3, 6, seed=5, alpha=0.3)
    told = repr([rows.tolist() for rows in clients])
    assert hashlib.sha256(told.encode()).hexdigest()[:12] == digest


def test_equal_class_shares():
    y = labels(103, 3)
    shares = partitioners.iid_shares(y, 10, seed=1)
    counts = np.array([np.bincount(y[rows], minlength=3) for rows in shares])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize("kind", EXCLUSIVE)
def test_too_many_clients(kind):
    with pytest.raises(DataError, match=r"(?s)20 .*10 .*num-clients|client \d+ gets 2"):
        partition(kind, labels(20), 10)


# --- split_client ---


@settings(max_examples=60, deadline=None)
@given(
    y=st.lists(st.integers(0, 3), min_size=3, max_size=200),
    seed=st.integers(0, 2**31 - 1),
)
def test_split_uses_every_graph_once(y, seed):
    ids = np.arange(len(y)) + 7
    train, val, test = splits.split_client(ids, np.array([9] * 7 + y), seed=seed)
    both = np.concatenate([train, val, test])
    assert sorted(both.tolist()) == list(range(len(y)))
    held_out = max(2, math.ceil(len(y) / 5))
    assert (len(val), len(test)) == (held_out // 2, held_out - held_out // 2)


def test_split_agrees_with_two_calls_of_sklearn():
    y = np.array([0] * 63 + [1] * 46)
    train, rest = train_test_split(
        np.arange(109), test_size=0.2, stratify=y, random_state=123
    )
    val, test = train_test_split(
        rest, test_size=0.5, stratify=y[rest], random_state=123
    )
    ours = splits.split_client(np.arange(109), y, seed=123)
    theirs = [np.sort(part) for part in (train, val, test)]
    assert [p.tolist() for p in ours] == [p.tolist() for p in theirs]


def deepchem(groups, num_train, num_val):
    """Parts as DeepChem's ScaffoldSplitter makes them of lists of rows."""
    train, val, test = [], [], []
    for rows in sorted(groups, key=lambda g: (len(g), g[0]), reverse=True):
        if len(train) + len(rows) <= num_train:
            train += rows
        elif len(train) + len(val) + len(rows) <= num_train + num_val:
            val += rows
        else:
            test += rows
    return train, val, test


@settings(deadline=None)
@example(sizes=[2, 2, 2], singles=0)
@given(sizes=st.lists(st.integers(2, 8), min_size=1), singles=st.integers(0, 40))
def test_scaffolds_are_split_as_by_deepchem(sizes, singles):
    """If single molecules fill what is held out; else groups stay whole, too."""
    sizes = [*[1] * (singles // 2), *sizes, *[1] * (singles - singles // 2)]
    scaffold = np.repeat(np.arange(len(sizes)), sizes)
    held_out = max(2, len(scaffold) // 5)
    counts = len(scaffold) - held_out, held_out - held_out // 2, held_out // 2
    if len(sizes) < 2 + (counts[0] > 0):
        with pytest.raises(DataError, match=r"no toys to validate or to test: all \d+"):
            splits.by_scaffold(scaffold, counts, "toys")
        return
    roles = splits.by_scaffold(scaffold, counts, "toys")
    groups = [np.flatnonzero(scaffold == s).tolist() for s in range(len(sizes))]
    assert all(len(set(roles[rows])) == 1 for rows in groups)
    parts = [np.flatnonzero(roles == role).tolist() for role in range(3)]
    assert all(parts)
    if singles >= held_out:
        assert parts == [sorted(rows) for rows in deepchem(groups, *counts[:2])]


def test_split_refuses_too_few_and_repeats():
    with pytest.raises(DataError, match=r"2 graphs cannot be split .*num-clients"):
        splits.split_client(np.arange(2), np.zeros(2), seed=1)
    with pytest.raises(ValueError, match="repeats"):
        splits.split_client(np.array([0, 0, 1, 2]), np.zeros(3), seed=1)


# --- the published setting ---


def test_pinned_splits_of_proteins(data_dir, tmp_path):
    config = toys.run_settings(data_dir=data_dir, cache_dir=str(tmp_path))
    parts = [datasets.load_partition(config, client) for client in range(10)]
    sizes = [109, 114, 101, 123, 107, 111, 107, 128, 103, 110]
    assert [len(part.graphs) for part in parts] == sizes
    tested = [11, 12, 11, 13, 11, 12, 11, 13, 11, 11]
    assert [len(part.test) for part in parts] == tested
    rows = {p.client_id: hash_split(p, with_files=False) for p in parts}
    assert hash_federation(rows) == (
        "37826d28d8931ca5f1d87dbbba81e705c3b6c5148180559b7a91370d87e230df"
    )
    assert hash_federation({part.client_id: part.split_hash for part in parts}) == (
        "d17e259265ce03d872d0258d46dc92de28df0915bd8d26b9eda16afb2564688d"
    )
