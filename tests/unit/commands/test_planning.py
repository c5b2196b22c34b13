"""``simulations.run --plan``: estimates from a probe, and no run."""

from __future__ import annotations

import logging
import re

import pytest

from simulations import planning
from simulations.cli import main as fedgraph
from simulations.planning import Probe, estimate

FEW = Probe(
    clients=(0, 5, 9), seconds=0.6, peak_bytes=400_000_000, kept_bytes=390_000_000
)
MORE = Probe(
    clients=(0, 2, 5, 7, 9), seconds=0.5, peak_bytes=410_000_000, kept_bytes=394_000_000
)


@pytest.fixture
def in_this_process(monkeypatch):
    """Probe here, and put the level of the log back."""
    monkeypatch.setattr(planning, "in_own_process", lambda call, *given: call(*given))
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)


def test_time_and_memory_by_hand():
    memory, seconds = estimate(
        FEW,
        MORE,
        num_clients=10,
        clients_per_round=8,
        nodes=4,
        actors=2,
        processes=3,
    )
    # An actor serves 2 of 4 nodes in turn; a node asks 2 clients at most.
    assert seconds == 2 * 2 * 0.5
    # A client costs 5 MB, of which an actor keeps 2; 7 more are kept, 5 more answer.
    assert memory == 3 * 400e6 + 2 * 7 * 2e6 + 5 * 3e6


@pytest.mark.parametrize(
    ("there", "nodes", "gpus", "expected"),
    [
        ((8, 0), 9, 0.0, 8),
        ((8, 0), 3, 0.0, 3),
        ((8, 1), 50, 0.1, 8),
        ((8, 1), 50, 0.25, 4),
    ],
)
def test_actors_are_bounded_by_nodes_cores_and_gpus(there, nodes, gpus, expected):
    assert planning.num_actors(there, nodes=nodes, gpus=gpus) == expected


def test_a_plan_counts_the_server_and_takes_a_second_probe(monkeypatch):
    asked = []

    def probe(overrides, at_most):
        asked.append(at_most)
        return FEW if len(asked) == 1 else MORE

    monkeypatch.setattr(planning, "in_own_process", lambda _, *given: probe(*given))
    monkeypatch.setattr(planning, "machine", lambda: (2, 0))
    told = planning.describe_plan(
        {"method": "fedavg", "num-clients": 10, "client-fraction": 0.8},
        inline=False,
        nodes=4,
        gpus=0.0,
    )
    assert asked == [3, 3 + 8]  # 10 s for two rounds of 0.6 s
    assert "actors  2, for 4 nodes" in told
    assert "about 1.2 GB" in told  # three processes of 0.4 GB
    assert "time    about 1:42, or 2.00 s per round" in told  # 50 and one


def test_a_plan_knows_no_cluster(monkeypatch, capfd):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert fedgraph(["run", "fedavg", "--plan"]) == 2
    assert "RAY_ADDRESS='127.0.0.1:1' names a cluster" in capfd.readouterr().err


@pytest.mark.usefixtures("toy_data", "in_this_process")
def test_a_plan_starts_no_run(tmp_path, capfd):
    results = tmp_path / "results"
    code = fedgraph(
        [
            *("run", "gcfl-plus-synthetic", "--plan", "--inline"),
            *("--results", str(results), "--seeds", "1,2"),
            *("num-clients=7", "hidden-dim=4", f"state-dir={tmp_path}/state"),
        ]
    )

    assert code == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "7 clients, 50 rounds" in told
    assert "actors 1, for 1 nodes" in told
    assert "of 7 clients" in told
    assert "There are 2 such runs" in told
    assert not results.exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("toy_data", "in_this_process")
def test_a_plan_tells_of_samples(capfd):
    given = [
        "num-clients=1",
        "dataset=planted",
        "fanout=1,1",
        "batch-size=5",
        "hidden-dim=4",
    ]
    assert fedgraph(["run", "fedavg", "--plan", "--inline", *given]) == 0
    told = " ".join(capfd.readouterr().err.split())
    found = re.search(r"(\d+) batches .* of 5 items reads (\d+) nodes and (\d+)", told)
    batches, nodes, edges = map(int, found.groups())
    assert batches == 3  # 12 of the toy's 20 nodes train
    assert 5 < nodes <= 5 + 5 + 5
    assert nodes - 5 <= edges <= 5 + 5
