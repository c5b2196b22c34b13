"""Edges as items: who trains, what is hidden, and what a hidden link stands beside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys
from toy_graphs import make_node_partition

from datasets.edge_items import draw_targets, edge_items
from fedgraph_flwr.core.data import GraphPartition, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError

SPLITS = ("train", "val", "test")


def graph_of_edges(*, directed: bool, num_nodes: int = 30, count: int = 150, seed=0):
    """A graph with repeated edges, loops, features, times and classes of edges."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(num_nodes, size=(2, count))
    row = np.arange(count)
    if not directed:
        ends, row = np.concatenate([ends, ends[::-1]], axis=1), np.tile(row, 2)
    order = np.lexsort((row, ends[1], ends[0]))
    row, ends = row[order], ends[:, order]
    plain = make_node_partition(num_nodes=num_nodes)
    graphs = replace(
        plain.graphs,
        edge_index=ends.astype(np.int32),
        edge_ptr=pointer([ends.shape[1]]),
        is_undirected=not directed,
        is_simple=False,
        edge_attr=row[:, None].astype(np.float32),
        num_edge_features=1,
        edge_time=rng.permutation(count)[row].astype(float),
        edge_y=np.where(row % 7 == 0, -1, row % 3).astype(np.int64),
        edge_classes=["a", "b", "c"],
    )
    return replace(plain, graphs=graphs)


def made(task: str, *, directed: bool, **changes) -> tuple[GraphPartition, ...]:
    whole = graph_of_edges(directed=directed)
    settings = toys.run_settings(dataset="planted", task=task, held_out=0.4, **changes)
    return whole, edge_items(whole, settings)


@pytest.mark.parametrize("split", ["random", "time"])
@pytest.mark.parametrize("directed", [True, False])
def test_edges_with_a_class_are_items_once_each(directed, split):
    whole, found = made("edge-classification", directed=directed, split=split)
    graphs = found.graphs
    ids = np.sort(np.concatenate([found.positions(s) for s in SPLITS]))
    np.testing.assert_array_equal(ids, np.arange(len(graphs.y)))
    np.testing.assert_array_equal(graphs.edge_index, whole.graphs.edge_index)
    np.testing.assert_array_equal(graphs.pairs, graphs.edge_index[:, graphs.item_edge])
    rows = graphs.edge_attr[graphs.item_edge, 0].astype(int)
    loops = graphs.pairs[0] == graphs.pairs[1]
    assert len(np.unique(rows[~loops])) == len(rows[~loops])
    np.testing.assert_array_equal(graphs.y, rows % 3)
    assert (rows % 7 != 0).all()
    if split == "time":
        of = [graphs.edge_time[graphs.item_edge[found.positions(s)]] for s in SPLITS]
        assert of[0].max() < of[1].min()
        assert of[1].max() < of[2].min()


@pytest.mark.parametrize("split", ["random", "time"])
@pytest.mark.parametrize("directed", [True, False])
def test_hidden_links_have_no_edge_and_stand_before_pairs_that_are_none(
    directed, split
):
    whole, found = made("link-prediction", directed=directed, split=split, negatives=5)
    graphs, size = found.graphs, whole.graphs.num_nodes
    all_pairs = set(zip(*whole.graphs.edge_index.tolist(), strict=True))
    shown = set(zip(*graphs.edge_index.tolist(), strict=True))
    assert len(found.val) % 6 == len(found.test) % 6 == 0
    train = set(zip(*graphs.pairs[:, found.train].tolist(), strict=True))
    assert train <= shown
    for part in (found.val, found.test):
        pairs = graphs.pairs[:, part].T.reshape(-1, 6, 2)
        y = graphs.y[part, 0].reshape(-1, 6)
        assert (y == [1, 0, 0, 0, 0, 0]).all()
        for group in pairs.tolist():
            link, *others = map(tuple, group)
            assert link in all_pairs
            assert link not in shown
            assert directed or link[::-1] not in shown
            for other in others:
                assert other[0] == link[0] != other[1] < size
                assert other not in all_pairs
                assert directed or other[::-1] not in all_pairs
    if split == "time":
        first: dict[tuple[int, int], float] = {}
        for pair, time in zip(
            whole.graphs.edge_index.T.tolist(), whole.graphs.edge_time, strict=True
        ):
            key = tuple(pair) if directed else tuple(sorted(pair))
            first[key] = min(time, first.get(key, np.inf))
        of = [
            [
                first[tuple(p) if directed else tuple(sorted(p))]
                for p in graphs.pairs[:, part[:: 6 if k else 1]].T.tolist()
            ]
            for k, part in enumerate((found.train, found.val, found.test))
        ]
        assert max(of[0]) < min(of[1])
        assert max(of[1]) < min(of[2])
        assert graphs.edge_time.max() <= max(of[0])


def test_other_targets_are_drawn_alike():
    """Source 1 is joined to all nodes but the last two, which are as likely."""
    for size in (5, 100_000):
        joined = size + np.delete(np.arange(size - 2), 1)
        rng = np.random.default_rng(0)
        drawn = draw_targets(np.ones(1, np.int64), joined, size, 4000, rng)[0] - size
        assert set(drawn.tolist()) == {size - 2, size - 1}
        assert abs((drawn == size - 1).sum() - 2000) < 150


def test_what_cannot_be_learned_is_refused():
    whole = graph_of_edges(directed=True)
    none = {"edge_y": None, "edge_time": None}
    bare = replace(whole, graphs=replace(whole.graphs, **none))
    same = replace(whole.graphs, edge_time=np.ones(len(whole.graphs.edge_time)))
    ends = np.argwhere(~np.eye(30, dtype=bool)).T.astype(np.int32)
    full = {"edge_index": ends, "edge_ptr": pointer([870]), "edge_attr": None, **none}
    complete = replace(whole, graphs=replace(whole.graphs, **full))
    cases = [
        (complete, {}, DataError, "too few nodes of .* have a pair that no edge joins"),
        (bare, {"task": "edge-classification"}, DataError, "has no classes of edges"),
        (bare, {"split": "time"}, DataError, "have no time"),
        (replace(whole, graphs=same), {"split": "time"}, DataError, "the same time"),
        (whole, {"partition": "metis-overlap"}, ConfigError, "clients would share"),
    ]
    for partition, changes, error, words in cases:
        given = {"task": "link-prediction", "held_out": 0.4, **changes}
        settings = toys.run_settings(dataset="planted", **given)
        with pytest.raises(error, match=words):
            edge_items(partition, settings)
