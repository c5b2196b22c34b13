"""Temperatures, calibration errors, and how unlike items are to known ones."""

from dataclasses import replace

import numpy as np
import pytest
from toy_graphs import make_node_partition, make_partition

from clients.tasks.scores import calibration_error, probabilities
from fedgraph_flwr.core.data import GraphSet, pointer
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.trained.trust import Trust, fit_temperature


def test_the_gap_of_each_bin_counts_by_its_items():
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.35, 0.65], [0.9, 0.1]])
    y = np.array([0, 0, 0, 1])  # of 3 at 0.9 two are right; that at 0.65 is wrong
    assert calibration_error(p, y) == pytest.approx((abs(2 - 2.7) + 0.65) / 4)
    tasks = np.array([[0.2, 1.0], [0.2, 0.0]]), np.array([[1.0, np.nan], [0.0, np.nan]])
    assert calibration_error(*tasks) == pytest.approx(0.3)
    assert np.isnan(calibration_error(np.ones((1, 1)), np.full((1, 1), np.nan)))


@pytest.mark.parametrize("true", [0.5, 3.0])
@pytest.mark.parametrize("width", [4, 1])
def test_a_temperature_undoes_overconfidence(true, width):
    rng = numpy_rng(1, "temperature")
    honest = rng.normal(size=(4000, width)) * 2
    p = probabilities(honest, is_binary=width == 1)
    if width == 1:
        y = (rng.random(4000) < p[:, 0]).astype(float)
    else:
        y = (p.cumsum(1) < rng.random((4000, 1))).sum(1).astype(float)
    logits = honest * true
    found = fit_temperature(logits[:, 0] if width == 1 else logits, y)
    assert found == pytest.approx(true, rel=0.1)
    labels = y[:, None] if width == 1 else y
    before, after = (
        calibration_error(probabilities(logits / t, is_binary=width == 1), labels)
        for t in (1, found)
    )
    assert after < 0.03 < before


def test_few_items_hardly_move_it_and_none_do_not():
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0)) == pytest.approx(1, abs=1e-4)
    right = np.array([[3.0, 0.0]]), np.array([0.0])
    assert 0.9 < fit_temperature(*right) < 1
    many = np.repeat(right[0], 500, 0), np.zeros(500)
    assert fit_temperature(*many) < 0.6
    unknown = np.append(right[0], right[0], 0), np.array([0, np.nan])
    assert fit_temperature(*unknown) == fit_temperature(*right)


def chains(*kinds):
    """Chains of atoms, whose kinds are columns of a one."""
    sizes = [len(k) for k in kinds]
    ends = [np.array([[*range(n - 1), *range(1, n)], [*range(1, n), *range(n - 1)]])
            for n in sizes]  # fmt: skip
    return GraphSet(name="chains", x=np.array([*"".join(kinds)], np.int64),
        edge_index=np.concatenate([e[:, np.lexsort(e[::-1])] for e in ends], 1),
        node_ptr=pointer(sizes), edge_ptr=pointer([2 * n - 2 for n in sizes]),
        y=np.zeros(len(kinds), np.int64), num_features=4, num_classes=2,
        is_undirected=True)  # fmt: skip


def test_unlike_graphs_are_told_by_feature_and_by_distance():
    own = make_partition()
    known = chains("00", "01", "001", "011", "0111", "0011", "33")
    own = replace(own, graphs=known, train=np.arange(6), val=np.arange(6, 7))
    trust = Trust.of(own, np.zeros((1, 2), np.float32), "classes", ["a", "b"])
    found = trust.doubts(chains("001", "012", "22", "0101010101"), np.arange(4))
    # Of two features of each of 3 atoms, and one of the graph, one is new.
    assert found["unseen"] == pytest.approx([0, 1 / 3 / 3, 1 / 3, 0])
    assert found["unlike"][0] == 0
    assert found["unlike"][2] == found["unlike"][3] == 1
    again = trust.doubts(chains("22", "001"), np.array([1]))
    assert again["unlike"].tolist() == [0]


def test_nodes_and_pairs_are_rows_of_their_own():
    own = make_node_partition()
    size = own.graphs.num_nodes
    logits = np.zeros((len(own.val), own.graphs.num_classes), np.float32)
    names = list("abcdefgh")[: own.graphs.num_classes]
    trust = Trust.of(own, logits, "nodes", names)
    found = trust.doubts(own.graphs, np.arange(size))
    assert len(found["unlike"]) == size
    assert not found["unlike"][own.train].any()
    assert (found["unseen"] == found["unseen"][np.arange(size)]).all()
    pairs = own.graphs.edge_index[:, :6].astype(np.int64)
    graphs = replace(own.graphs, pairs=pairs, y=np.ones((6, 1), np.float32))
    of_pairs = replace(own, graphs=graphs, train=np.arange(4), val=np.arange(4, 6))
    trust = Trust.of(of_pairs, np.zeros((2, 1), np.float32), "links", ["link"])
    assert not trust.doubts(graphs, np.arange(6))["unlike"][:4].any()
    assert len(trust.temperatures) == 1
