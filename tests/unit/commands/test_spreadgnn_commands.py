"""Fingerprints of keys, and words for a network."""

from __future__ import annotations

import os

import pytest

from clients.sealing import KeyRing, fingerprint
from clients.store import bind_run
from fedgraph_flwr.core.network import Network, build_topology
from fedgraph_flwr.node.node_config import trusted_peers
from fedgraph_flwr.results.printed import describe_network, facts_of
from simulations.cli import main as fedgraph

# Fingerprints -------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    """Clients 2 and 10 at one site, in an older and a newer run of misleading names."""
    rings = {}
    for at, (number, run) in enumerate([(8, "20270101T000000Z-old"), (5, "0-new")]):
        bind_run(tmp_path, number, run)
        for client in (10, 2):
            ring = KeyRing(tmp_path / run / f"client-{client}", client_id=client)
            rings[run[-3:], client] = ring
            assert ring.public_key
            os.utime(ring.folder / "run.key", (at, at))
    other = KeyRing(tmp_path / "other-site" / "0-new" / "client-0", client_id=0)
    rings["new", 0] = other
    rings["new", 2].pin({c: rings["new", c].public_key for c in (0, 10)})
    return tmp_path, rings


def printed(capsys, *given):
    assert fedgraph(["site", "fingerprint", *map(str, given)]) == 0
    return capsys.readouterr().out.splitlines()


def test_fingerprints_of_all_runs_newest_first(site, capsys):
    folder, rings = site
    lines = printed(capsys, "--state-dir", folder)
    own = {c: fingerprint(rings["new", c].public_key) for c in (0, 2, 10)}
    assert own[2] == fingerprint(rings["old", 2].public_key)
    assert lines == [
        f"client 2    {own[2]}  (own)",
        f"client 10   {own[10]}  (own)",
        "run 0-new",
        f"  client 2: neighbour 0    {own[0]}  (pinned)",
        f"  client 2: neighbour 10   {own[10]}  (pinned)",
        "run 20270101T000000Z-old",
    ]


def test_a_key_is_made_before_any_run_and_used_by_all(tmp_path, capsys):
    given = ("--state-dir", tmp_path, "--client", 3)
    assert fedgraph(["site", "fingerprint", *map(str, given)]) == 2
    assert "client 3 has no key in" in capsys.readouterr().err
    (made,) = printed(capsys, *given, "--make")
    assert printed(capsys, *given) == printed(capsys, *given, "--make") == [made]
    ring = KeyRing(tmp_path / "run" / "client-3", client_id=3)
    assert fingerprint(ring.public_key) == made
    config = {"peers": f"3:{made}", "state-dir": "s"}
    assert trusted_peers(config) == {3: made}


def test_no_keys_is_said_with_the_cure(site, capsys):
    folder, _ = site
    assert fedgraph(["site", "fingerprint", "--state-dir", str(folder / "none")]) == 2
    assert "a run whose letters are sealed" in capsys.readouterr().err


# Networks -----------------------------------------------------------------------------


def test_a_network_is_described():
    network = Network(
        topology=build_topology("ring", 4), weights="metropolis", gone=(1, 3)
    )
    assert describe_network(facts_of(network, dict.fromkeys(range(4), 5))) == (
        "ring topology, 4 edges, connected, spectral gap 0.6667 with metropolis"
        " weights; 2 dropped out (clients 1, 3), the 2 others went on and are in parts"
        " [[0], [2]]"
    )
