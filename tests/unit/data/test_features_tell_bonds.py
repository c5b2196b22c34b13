"""What features of atoms tell of their bonds: the table of docs/privacy-details.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import toys

from datasets.molecules import FEATURES
from datasets.public.moleculenet import load_moleculenet
from fedgraph_flwr.core.privacy_settings import TELLS_EDGES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "privacy-details.md"
ROWS = re.findall(
    r"^\| (\w+) \| (atoms-[\w-]+) \| (.*)% \| (.*)% \|$", PAGE.read_text(), re.M
)


def guessed(graphs):
    """Shares of nodes and graphs with the commonest degree of their features."""
    kinds = np.unique(graphs.x, axis=0, return_inverse=True)[1].reshape(-1)
    degree = graphs.degrees()
    counts = np.zeros((kinds.max() + 1, degree.max() + 1), int)
    np.add.at(counts, (kinds, degree), 1)
    is_right = counts.argmax(1)[kinds] == degree
    whole = np.logical_and.reduceat(is_right, graphs.node_ptr[:-1])
    return is_right.mean(), whole.mean()


def test_degrees_count_neighbours():
    graphs = toys.random_graphs(40, seed=3)
    slow = []
    for g, size in enumerate(np.diff(graphs.node_ptr)):
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        slow += [int((edges[0] == v).sum()) for v in range(size)]
    assert graphs.degrees().tolist() == slow
    telling = toys.replace(graphs, x=np.array(slow, np.float32)[:, None])
    assert guessed(telling) == (1, 1)


def test_the_page_has_every_set_of_features_that_private_runs_allow():
    assert {row[1] for row in ROWS} == set(FEATURES) - set(TELLS_EDGES)


@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS}))
def test_real_molecules_tell_what_the_page_says(data_dir, name):
    molecules = load_moleculenet(name, data_dir=data_dir)
    for _, features, *printed in (row for row in ROWS if row[0] == name):
        found = guessed(molecules.take(np.arange(len(molecules)), features))
        assert [f"{share:.1%}" for share in found] == [f"{p}%" for p in printed]
