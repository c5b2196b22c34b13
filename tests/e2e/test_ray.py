"""Real runs through ``flwr run``, a background SuperLink and Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import environment, free_ports, kill

from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.results.run_file import RunFile
from simulations import flower
from simulations.cli import main as fedgraph
from simulations.inline import run_inline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = {
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
    "shared-group": "all",
}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``FLWR_HOME`` of this module's own SuperLink, which is stopped afterwards."""
    own, port = tmp_path_factory.mktemp("flwr"), free_ports(2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(own).items():
            patch.setenv(name, value)
        patch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(port))
        patch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port + 1))
        yield own
        kill(flower.pids(own))


@pytest.mark.parametrize(
    "given",
    [
        {
            "method": "fedsage+",
            "dataset": "planted",
            "fedsage-plus.cross-client": True,
        },
        {"method": "fclg", "embedding.evaluation": "pooled", "embedding.probe": False},
        {"method": "fedtad", "dataset": "planted"},  # its server trains
    ],
    ids=lambda given: given["method"],
)
def test_ray_and_inline_give_the_same_bytes(
    given: dict[str, Value], tmp_path: Path
) -> None:
    config = {**RUN, **given}
    places = {
        name: {f"{k}-dir": str(tmp_path / name / k) for k in ("results", "state")}
        for name in ("inline", "ray")
    }
    inline = run_inline({**config, **places["inline"]})
    ray = flower.run_flower({**config, **places["ray"]}, num_nodes=3)

    ours, expected = load_summary(ray), load_summary(inline)
    assert ours["weights_sha256"] == expected["weights_sha256"]
    assert (ray / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()
    assert ours["bytes_up"] > 0


def test_a_failed_run_exits_non_zero_although_flower_says_completed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ["num-server-rounds=1", f"data-dir={tmp_path}"]
    code = fedgraph(["run", "fedavg-proteins", "--results", str(tmp_path), *small])

    assert code == 1
    assert "PROTEINS" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []  # no round, no folder


def test_a_dead_actor_stops_the_run_and_what_was_computed_stays(
    home: Path, tmp_path: Path
) -> None:
    overrides = {
        **RUN,
        "method": "fedavg",
        "num-server-rounds": 400,
        "results-dir": str(tmp_path / "results"),
        "state-dir": str(tmp_path / "state"),
    }
    run_id = flower.submit(overrides, num_nodes=2)
    deadline = time.monotonic() + 240
    while not any(
        max(RunFile(p).checkpoints(), default=0) > 1
        for p in tmp_path.glob("results/*-*")
    ):
        assert time.monotonic() < deadline, "the run did not get under way"
        time.sleep(0.2)
    kill(flower.pids(home, "ClientAppActor")[:1])

    assert flower.wait(run_id)[0] == "finished:failed"
    (folder,) = tmp_path.glob("results/*")
    told = load_summary(folder)
    assert told["status"] == "failed"
    assert "actor" in told["error"]
    assert "batch-size" in told["error"]
    assert told["rounds"] >= 2
    assert told["final"]["mean"] > 0
