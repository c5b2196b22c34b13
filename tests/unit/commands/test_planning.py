"""``simulations.run --plan``: estimates from a probe, and no run."""

from __future__ import annotations

import logging

import pytest

from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.kept import memory_share
from simulations import planning
from simulations.planning import Probe, estimate
from simulations.run import main

FOUND = Probe(
    clients=(0, 5, 9),
    seconds=0.5,
    peak_bytes=400_000_000,
    data_bytes=1_000_000.0,
    moved_bytes=2_000_000.0,
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
    plan = estimate(
        FOUND, num_clients=10, clients_per_round=10, rounds=19, nodes=4, actors=2
    )
    # An actor serves 2 of 4 nodes in turn; a node has 3 clients at most.
    assert plan.round_seconds == 2 * 3 * 0.5
    assert plan.seconds == 20 * 3.0
    assert plan.memory_bytes == 2 * (400e6 + 10e6) + 10 * 2e6


def test_a_process_keeps_no_more_data_than_fit():
    plan = estimate(
        FOUND, num_clients=10**6, clients_per_round=1, rounds=1, nodes=1, actors=1
    )
    assert plan.memory_bytes == 400e6 + memory_share() + 2e6


@pytest.mark.parametrize(
    ("engine", "nodes", "cores", "expected"),
    [("inline", 9, 8, 1), ("flower", 9, 8, 8), ("flower", 3, 8, 3)],
)
def test_actors_are_bounded_by_nodes_and_cores(
    monkeypatch, engine, nodes, cores, expected
):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert planning.num_actors(engine=engine, nodes=nodes, gpus=0.0) == expected


@pytest.mark.parametrize(
    ("seconds", "words"), [(45.2, "45 s"), (720.0, "12 min"), (12240.0, "3.4 h")]
)
def test_durations_as_people_say_them(seconds, words):
    assert planning.duration(seconds) == words


@pytest.mark.usefixtures("toy_data", "in_this_process")
def test_a_plan_starts_no_run(tmp_path, capfd):
    results = tmp_path / "results"
    code = main(
        [
            *("gcfl-plus-synthetic", "--plan", "--engine", "inline"),
            *("--results", str(results), "--seeds", "1,2"),
            *("--set", "num-clients=7", "--set", "hidden-dim=4"),
            *("--set", f"state-dir={tmp_path}/state"),
        ]
    )

    assert code == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "7 clients, 50 rounds" in told
    assert "actors 1, for 1 nodes" in told
    assert "of clients 0, 3, 6" in told
    assert "There are 2 such runs" in told
    assert not results.exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_plan_of_what_cannot_run_is_refused(toy_data, capfd):
    def broken(settings, client_id):
        raise DataError("no graphs today")

    toy_data.setattr("datasets.load_partition", broken)

    assert main(["fedavg", "--engine", "inline", "--plan"]) == 2
    assert "no graphs today" in capfd.readouterr().err


def test_a_share_of_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="leaves room for no actor"):
        planning.num_actors(engine="flower", nodes=2, gpus=0.5)
