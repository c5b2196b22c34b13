"""Topologies: shapes a reader can draw, connectedness, and files with mistakes."""

from __future__ import annotations

import pytest

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.network import KINDS, build_topology, read_edges


def write(tmp_path, text):
    path = tmp_path / "edges.toml"
    path.write_text(text)
    return str(path)


def test_shapes_of_four_clients():
    edges = {kind: build_topology(kind, 4).edges for kind in KINDS if kind != "file"}
    assert edges["complete"] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert edges["ring"] == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert edges["star"] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("kind", ["random-regular", "watts-strogatz"])
def test_random_kinds_depend_on_their_seed_alone(kind):
    made = [build_topology(kind, 12, degree=4, rewiring=0.5, seed=s) for s in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_random_regular_gives_everybody_as_many_neighbours():
    topology = build_topology("random-regular", 8, degree=3, seed=1)
    assert {len(peers) for peers in topology.neighbours.values()} == {3}


def test_random_regular_is_not_forced_to_be_connected():
    made = [build_topology("random-regular", 8, degree=2, seed=s) for s in range(30)]
    assert {t.is_connected() for t in made} == {True, False}


def test_watts_strogatz_without_rewiring_is_a_ring_lattice():
    topology = build_topology("watts-strogatz", 8, degree=2, rewiring=0.0)
    assert topology.neighbours == build_topology("ring", 8).neighbours
    topology = build_topology("watts-strogatz", 8, degree=4, rewiring=0.0)
    assert topology.neighbours[0] == (1, 2, 6, 7)


def test_impossible_degrees_are_refused():
    for kind, n, degree in (("random-regular", 5, 3), ("watts-strogatz", 4, 4)):
        with pytest.raises(ConfigError, match=f"{n} clients with {degree} neighbours"):
            build_topology(kind, n, degree=degree)


# Files --------------------------------------------------------------------------------


def test_an_edge_list_once_or_both_ways(tmp_path):
    once = read_edges(write(tmp_path, "edges = [[2, 1], [0, 1]]"), 3)
    twice = read_edges(write(tmp_path, "edges = [[0,1], [1,0], [1,2], [2,1]]"), 3)
    assert once.edges == twice.edges == [(0, 1), (1, 2)]


def test_a_client_that_no_edge_names_is_isolated(tmp_path):
    topology = read_edges(write(tmp_path, "edges = [[0, 1]]"), 3)
    assert topology.isolated == [2]
    assert not topology.is_connected()
    assert read_edges(write(tmp_path, "edges = []"), 3).isolated == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("edges = [[0, 3]]", r"has \[0, 3\], which must join two clients of 0 to 2"),
        ("edges = [[1, 1]]", r"has \[1, 1\], which must join two clients"),
        (f"edges = [[0, 0x{'f' * 9999}]]", "which must join two clients"),
        (f"edges = [0x{'f' * 9999}]", r"every edge \[client, client\]"),
        ("edges = [[0, 1, 0.5]]", r"every edge \[client, client\]"),
        ("links = [[0, 1]]", r"must hold edges .* got {'links'"),
        ("edges = [[0, 1]", "is not valid TOML"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_edges(write(tmp_path, text), 3)
    assert "edges.toml" in str(caught.value)


def test_a_file_must_be_named_and_there(tmp_path):
    with pytest.raises(ConfigError, match="edges-file is empty; set it"):
        build_topology("file", 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        build_topology("file", 3, edges_file=str(tmp_path / "none.toml"))
