"""SpreadGNN over real processes: four sealed sites on a ring, one of which dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from e2e.processes import (
    clean_environment,
    federation,
    log_of,
    submit,
    summary_of,
    wait,
)

from fedgraph_flwr.config import Value
from simulations.fingerprint import fingerprints

# A lost SuperNode is noticed after up to a minute.
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1200)]
LOST = 2
RUN: dict[str, Value] = {
    "method": "spreadgnn",
    "num-clients": 4,
    "hidden-dim": 16,
    "spreadgnn.topology": "ring",
    "spreadgnn.seal": True,
    "min-fit-replies": 0.75,
}
SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "CCCl", "OCCO", "CC#N")


def own_files(tmp_path: Path) -> tuple[dict[str, Value], list[str]]:
    """Sites with small files of their own molecules: run config, node configs."""
    sites = []
    for client in range(4):
        rows = ["smiles,a,b,c,d"]
        for i in range(40):
            smiles = "C" * (i % 5) + SMILES[(i + client) % 8]
            labels = [str((i // d + client) % 2) for d in (1, 2, 3, 4)]
            rows.append(",".join([smiles, *labels]))
        path = tmp_path / f"site{client}.csv"
        path.write_text("\n".join(rows) + "\n")
        sites.append(f'clients="{client}" data-path="{path}"')
    config: dict[str, Value] = {
        **RUN,
        "dataset": "smiles-csv",
        "csv-label-columns": "a,b,c,d",
        "task-masks": "0;1;2;3",
        "num-server-rounds": 4,
    }
    return config, sites


def sider(tmp_path: Path) -> tuple[dict[str, Value], list[str]]:
    """SIDER, shared out over four sites."""
    data = os.environ.get("FEDGRAPH_DATA", "")
    if not data or not Path(data).is_dir():
        pytest.skip("real data: set FEDGRAPH_DATA to a folder with MoleculeNet")
    config: dict[str, Value] = {
        **RUN,
        "dataset": "SIDER",
        "data-dir": data,
        "cache-dir": str(tmp_path / "cache"),
        "task-masks": "exclusive",
        "dirichlet-alpha": 1.0,
        "num-server-rounds": 4,
    }
    own = f'data-path="{data}" cache-dir="{tmp_path / "cache"}"'
    return config, [f'clients="{client}" {own}' for client in range(4)]


@pytest.mark.parametrize("data", [own_files, sider], ids=lambda d: d.__name__)
def test_three_of_four_sites_finish_after_one_is_killed(
    tmp_path: Path, own_ports: tuple[int, int], data: object
) -> None:
    assert callable(data)
    environment = clean_environment(tmp_path)
    config, sites = data(tmp_path)
    with federation(tmp_path, environment, own_ports, sites) as nodes:
        run_id, results = submit(tmp_path, environment, config)
        deadline = time.monotonic() + 600
        while not list(results.glob("*/checkpoint/round-*.safetensors")):
            assert time.monotonic() < deadline, "no round was finished"
            time.sleep(0.2)
        os.killpg(nodes[LOST].pid, signal.SIGKILL)
        status, folder = wait(tmp_path, environment, run_id, results, limit_s=600)
        said = " ".join(log_of(environment, run_id).split())  # tables wrap lines

    summary = summary_of(folder)
    assert status == "finished:completed", summary["error"]
    assert summary["status"] == "completed"
    assert summary["rounds"] == 4
    assert {f["client"] for f in summary["failures"]} == {LOST}
    assert set(summary["final"]["per_client"]) == {"0", "1", "3"}
    network = summary["network"]
    assert network["dropped_out"] == [LOST]
    assert network["rest_is_connected"] is True
    assert network["rest"] == [[0, 1, 3]]
    assert f"clients [{LOST}] are gone, their neighbours go on without them" in said
    assert "the 3 others went on and are connected" in said
    # Each site pinned its neighbours, and operators can compare.
    lines = {c: fingerprints(tmp_path / f"state-{c}", folder.name) for c in range(4)}
    assert [line.split()[3] for line in lines[0][2:]] == ["1", "3"]
    zero = lines[0][0].split(maxsplit=2)[2].removesuffix("  (own)")
    assert any(zero in line for line in lines[1])
    assert any(zero in line for line in lines[3])
