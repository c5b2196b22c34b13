"""What features tell of degrees."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import toys

from simulations.feature_leak import guessed, main

GRAPHS = toys.random_graphs(40, seed=3)


def degrees_slowly():
    found = []
    for g, size in enumerate(np.diff(GRAPHS.node_ptr)):
        edges = GRAPHS.edge_index[:, GRAPHS.edge_ptr[g] : GRAPHS.edge_ptr[g + 1]]
        found += [int((edges[0] == v).sum()) for v in range(size)]
    return found


def test_degrees_count_neighbours():
    assert GRAPHS.degrees().tolist() == degrees_slowly()


def test_the_most_frequent_degree_of_equal_features_is_guessed():
    rows = np.stack([GRAPHS.x, GRAPHS.x], 1).astype(np.float32)
    degree = degrees_slowly()
    by_feature = {
        x: Counter(d for d, f in zip(degree, GRAPHS.x, strict=True) if f == x)
        for x in set(GRAPHS.x.tolist())
    }
    right = sum(max(counts.values()) for counts in by_feature.values())
    found = guessed(toys.replace(GRAPHS, x=rows))
    assert found[0] == pytest.approx(right / len(degree))
    assert 0 < found[1] < found[0] < 1


def test_degrees_as_features_tell_all_and_no_features_tell_little():
    telling = np.array(degrees_slowly(), np.float32)[:, None]
    assert guessed(toys.replace(GRAPHS, x=telling)) == (1.0, 1.0)
    most = max(Counter(degrees_slowly()).values())
    mute = guessed(toys.replace(GRAPHS, x=np.zeros_like(telling)))
    assert mute[0] == pytest.approx(most / GRAPHS.num_nodes)


def test_a_set_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["BACE", "--data-dir", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err


def test_real_molecules_tell_almost_all_degrees(data_dir, capsys):
    assert main(["BACE", "--data-dir", data_dir]) == 0
    table = capsys.readouterr().out
    assert "| BACE | atoms-no-degree | 96.5% | 28.1% |" in table
    assert "| BACE | atoms-strict | 56.9% | 0.0% |" in table
