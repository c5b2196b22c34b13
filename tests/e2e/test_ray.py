"""Real runs through ``flwr run``, a background SuperLink and Ray."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgraph_flwr.config import Value
from simulations import flower
from simulations.inline import run_inline
from simulations.run import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = {
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
    "shared-group": "all",
}


@pytest.fixture(scope="module", autouse=True)
def superlink(
    tmp_path_factory: pytest.TempPathFactory, own_ports: tuple[int, int]
) -> Iterator[None]:
    """A SuperLink of this module's own, stopped afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path_factory.mktemp("flwr")))
        patch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(own_ports[0]))
        patch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(own_ports[1]))
        patch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        patch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        yield
        flower.stop_superlink()


def _summary(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return loaded


@pytest.mark.parametrize(
    "given",
    [
        {"method": "gcfl+"},
        {"method": "local"},
        {
            "method": "fedsage+",
            "dataset": "planted",
            "fedsage-plus.cross-client": True,
        },
        {"method": "fclg", "embedding.evaluation": "pooled", "embedding.probe": False},
        {"method": "fedgkd", "dataset": "planted"},
    ],
    ids=lambda given: given["method"],
)
def test_ray_and_inline_give_the_same_bytes(
    given: dict[str, Value], tmp_path: Path
) -> None:
    overrides = {**RUN, **given, "state-dir": str(tmp_path / "state")}
    inline = run_inline({**overrides, "results-dir": str(tmp_path / "inline")})
    ray = flower.run_flower(
        {**overrides, "results-dir": str(tmp_path / "ray")}, num_nodes=3
    )

    assert _summary(ray)["weights_sha256"] == _summary(inline)["weights_sha256"]
    assert (ray / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()
    assert _summary(ray)["bytes_up"] > 0


def _own_molecules(data: Path, num_clients: int) -> dict[str, Value]:
    """Write a CSV file per client; return what reads them."""
    data.mkdir()
    for client in range(num_clients):
        rows = [f"{'C' * (1 + r)}O,{r // 2 % 2},{r % 2}" for r in range(20 + client)]
        (data / f"{client}.csv").write_text("\n".join(["smiles,a,b", *rows, ""]))
    return {
        "dataset": "smiles-csv",
        "data-dir": str(data),
        "num-clients": num_clients,
    }


def test_ray_draws_the_noise_of_own_molecules_as_inline_does(tmp_path: Path) -> None:
    overrides: dict[str, Value] = {
        **_own_molecules(tmp_path / "data", 2),
        "method": "fgcl",
        "privacy.edge-epsilon": 1.0,
        "num-server-rounds": 2,
        "hidden-dim": 8,
    }
    places = {
        name: {f"{k}-dir": str(tmp_path / name / k) for k in ("results", "state")}
        for name in ("inline", "ray")
    }
    inline = run_inline({**overrides, **places["inline"]})
    ray = flower.run_flower({**overrides, **places["ray"]}, num_nodes=2)
    assert _summary(ray)["weights_sha256"] == _summary(inline)["weights_sha256"]
    assert _summary(ray)["privacy"] == _summary(inline)["privacy"]
    assert "epsilon 2 in total per graph" in _summary(ray)["privacy"]["says"]


def test_ray_relays_sealed_parcels_of_own_molecules(tmp_path: Path) -> None:
    overrides: dict[str, Value] = {
        **_own_molecules(tmp_path / "data", 4),
        "method": "spreadgnn",
        "features": "atoms-no-degree",
        "num-server-rounds": 3,
        "hidden-dim": 8,
        "task-masks": "0;1;0;1",
        "spreadgnn.topology": "ring",
    }
    found = []
    for name, start in (
        ("inline", run_inline),
        ("ray", lambda config: flower.run_flower(config, num_nodes=3)),
    ):
        places = {f"{k}-dir": str(tmp_path / name / k) for k in ("results", "state")}
        seal = {"spreadgnn.seal": name == "ray"}
        found.append(start({**overrides, **places, **seal}))
    inline, ray = found
    assert _summary(ray)["status"] == "completed"
    assert _summary(ray)["weights_sha256"] == _summary(inline)["weights_sha256"]
    assert (ray / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()


def test_a_failed_run_exits_non_zero_although_flower_says_completed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(
        [
            "fedavg-proteins",
            *("--results", str(tmp_path)),
            *("--set", "num-server-rounds=1"),
            *("--set", f"data-dir={tmp_path}"),
        ]
    )

    assert code == 1
    assert "PROTEINS" in capfd.readouterr().err
    (summary,) = tmp_path.glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "failed"


def _actors() -> list[int]:
    """Process ids of this SuperLink's Ray actors."""
    home = f"FLWR_HOME={os.environ['FLWR_HOME']}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_actor = b"ClientAppActor" in (entry / "cmdline").read_bytes()
            if is_actor and home in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_dead_actor_stops_the_run_and_what_was_computed_stays(tmp_path: Path) -> None:
    overrides = {
        **RUN,
        "method": "fedavg",
        "num-server-rounds": 400,
        "results-dir": str(tmp_path / "results"),
        "state-dir": str(tmp_path / "state"),
    }
    run_id = flower.submit(overrides, num_nodes=2)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob("results/*/checkpoint/round-00000[2-9]*")):
        assert time.monotonic() < deadline, "the run did not get under way"
        time.sleep(0.2)
    os.kill(_actors()[0], signal.SIGKILL)

    assert flower.wait(run_id)[0] == "finished:failed"
    (summary,) = tmp_path.glob("results/*/summary.json")
    told = json.loads(summary.read_text())
    assert told["status"] == "failed"
    assert "actor" in told["error"]
    assert "batch-size" in told["error"]
    assert told["rounds"] >= 2
    assert told["final"]["mean"] > 0
