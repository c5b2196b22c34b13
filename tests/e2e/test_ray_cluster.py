"""A run whose clients train on a Ray cluster that is there already: two raylets."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import environment, free_ports, kill
from federation import parent as parent_of

from fedgraph_flwr.results.reader import load_summary
from simulations import flower
from simulations.inline import run_inline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = {
    "method": "gcfl+",
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
    "shared-group": "all",
    "privacy.edge-epsilon": 1.0,  # noise is drawn in the actors
    "privacy.keep-edge-features": True,
}


def ray(*arguments: str) -> str:
    """Run Ray's own command and return what it says."""
    command = [str(flower.BIN / "ray"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Address of two raylets with one core each, as two machines would have it."""
    home, ports = tmp_path / "flwr", free_ports(3)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(home).items():
            patch.setenv(name, value)
        patch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(ports))
        patch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(ports + 1))
        scratch = Path(f"/tmp/ray-{ports}")  # Ray's sockets need short paths
        address = f"127.0.0.1:{ports + 2}"
        one = ("--num-cpus=1", "--disable-usage-stats", "--include-dashboard=false")
        try:
            ray(
                *("start", "--head", f"--port={ports + 2}", *one),
                *("--node-ip-address=127.0.0.1", f"--temp-dir={scratch}"),
            )
            ray("start", f"--address={address}", *one[:2])
            patch.setenv("RAY_ADDRESS", address)  # which the SuperLink inherits
            yield address
        finally:
            kill(flower.pids(home))
            shutil.rmtree(scratch, ignore_errors=True)


def actors_by_raylet(home: Path) -> dict[int, int]:
    """Parents of the processes that train, and how many each has."""
    found: dict[int, int] = {}
    for pid in flower.pids(home, "ClientAppActor"):
        if parent := parent_of(pid):
            found[parent] = found.get(parent, 0) + 1
    return found


def test_a_cluster_gives_the_bytes_of_one_process(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        name: {f"{k}-dir": str(tmp_path / name / k) for k in ("results", "state")}
        for name in ("inline", "cluster")
    }
    seen: list[dict[int, int]] = []
    look = flower._look

    def watched(run_id: int) -> tuple[str, str]:
        seen.append(actors_by_raylet(tmp_path / "flwr"))
        return look(run_id)

    monkeypatch.setattr(flower, "_look", watched)
    monkeypatch.setattr(flower, "_SELDOM_S", 1.0)

    inline = run_inline({**RUN, **places["inline"]})
    ours = flower.run_flower({**RUN, **places["cluster"]}, num_nodes=3)

    expected, found = load_summary(inline), load_summary(ours)
    assert found["weights_sha256"] == expected["weights_sha256"]
    assert (ours / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()
    assert found["privacy"] == expected["privacy"]
    assert found["privacy"]
    assert sorted(max(seen, key=len).values()) == [1, 1]  # one actor on each raylet
