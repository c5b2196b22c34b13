"""Commands and figures around SpreadGNN: fingerprints, topologies, drawings."""

from __future__ import annotations

import json

import pytest

from clients.sealing import KeyRing, fingerprint
from fedgraph_flwr.figures_network import draw_facts, draw_network
from fedgraph_flwr.network import describe_network, facts_of
from fedgraph_flwr.topology import Network, build_topology
from simulations import fingerprint as fingerprint_command
from simulations import topology as topology_command

PNG = b"\x89PNG"


def facts(kind="ring", gone=(), clients=4, **kw):
    network = Network(
        topology=build_topology(kind, clients, **kw), weights="metropolis", gone=gone
    )
    return facts_of(network, dict.fromkeys(range(clients), 5))


# Fingerprints -------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    """Clients 2 and 10 at one site, in an older and a newer run."""
    rings = {}
    for run in ("20250101T000000Z-old", "20260101T000000Z-new"):
        for client in (10, 2):
            ring = KeyRing(tmp_path / run / f"client-{client}", client_id=client)
            rings[run[-3:], client] = ring
            assert ring.public_key
    rings["new", 2].pin({10: rings["new", 10].public_key, 0: "ab" * 32})
    return tmp_path, rings


def test_fingerprints_of_the_last_run(site, capsys):
    folder, rings = site
    assert fingerprint_command.main(["--state-dir", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run 20260101T000000Z-new"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["client", "2"],
        ["neighbour", "0"],
        ["neighbour", "10"],
        ["client", "10"],
    ]
    assert fingerprint(rings["new", 2].public_key) in lines[1]
    assert fingerprint("ab" * 32) in lines[2]
    ten = fingerprint(rings["new", 10].public_key)
    assert ten in lines[3]  # what its neighbour pinned
    assert ten in lines[4]  # is what it says itself


def test_fingerprints_of_another_run(site, capsys):
    folder, rings = site
    given = ["20250101T000000Z-old", "--state-dir", str(folder)]
    assert fingerprint_command.main(given) == 0
    out = capsys.readouterr().out
    assert fingerprint(rings["old", 2].public_key) in out
    assert fingerprint(rings["new", 2].public_key) not in out


def test_no_keys_is_said_with_the_cure(tmp_path, capsys):
    assert fingerprint_command.main(["--state-dir", str(tmp_path)]) == 2
    assert "spreadgnn.seal = true" in capsys.readouterr().err


# Topologies ---------------------------------------------------------------------------


def test_a_topology_is_said_and_drawn(tmp_path, capsys):
    figure = tmp_path / "figures" / "ring.png"
    given = ["ring", "--clients", "4", "--without", "1,3", "--figure", str(figure)]
    assert topology_command.main(given) == 0
    out = capsys.readouterr().out
    assert "ring topology, 4 edges, connected, spectral gap 0.6667" in out
    assert "2 dropped out (clients 1, 3), the 2 others went on and are in parts" in out
    assert "client 0: 1, 3" in out
    assert figure.read_bytes().startswith(PNG)


def test_an_impossible_topology_exits_with_the_reason(capsys):
    given = ["random-regular", "--clients", "5", "--degree", "3"]
    assert topology_command.main(given) == 2
    assert "5 clients with 3 neighbours" in capsys.readouterr().err


def test_words_for_a_network():
    assert describe_network(facts()) == (
        "ring topology, 4 edges, connected, spectral gap 0.6667 with metropolis weights"
    )
    gone = describe_network(facts("star", gone=[0]))
    assert gone.endswith(
        "1 dropped out (clients 0), the 3 others went on and are in parts"
        " [[1], [2], [3]]"
    )
    assert describe_network(facts(gone=[2])).endswith("went on and are connected")


def test_facts_are_json_and_name_the_parts():
    found = facts("random-regular", clients=8, degree=1)
    assert json.loads(json.dumps(found)) == found
    assert found["is_connected"] is False
    assert len(found["rest"]) == 4
    assert found["spectral_gap"] == pytest.approx(0, abs=1e-12)


def test_a_runs_network_is_drawn_from_its_summary(tmp_path):
    assert draw_network(tmp_path) == []
    summary = {"network": facts("star", gone=[3])}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (path,) = draw_network(tmp_path)
    assert path.name == "network.png"
    assert path.read_bytes().startswith(PNG)


def test_who_has_gone_changes_the_picture(tmp_path):
    pictures = [
        draw_facts(given, tmp_path / f"{i}.png").read_bytes()
        for i, given in enumerate([facts(), facts(gone=[2]), facts("star")])
    ]
    assert len(set(pictures)) == 3
