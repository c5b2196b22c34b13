"""Four SuperNodes, each with a file of molecules of its own; at last one dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import Federation, environment
from small import write_molecules

from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.results.run_file import RunFile
from simulations.fingerprint import fingerprints

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
CLIENTS, LOST = range(4), 2
RUN: dict[str, Value] = {
    "dataset": "smiles-csv",
    "csv-label-columns": "*",
    "features": "atoms-no-degree",
    "num-clients": len(CLIENTS),
    "hidden-dim": 8,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of the federation and, in ``site-<number>``, its private state."""
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def federation(folder: Path) -> Iterator[Federation]:
    """Four sites, whose files have names and folders of their own."""
    sites, together = [], write_molecules(folder / "together")
    for client in CLIENTS:
        own = folder / f"hospital-{client}" / f"table-{client}.csv"
        own.parent.mkdir()
        own.write_bytes((together / f"{client}.csv").read_bytes())
        stays = str(client != LOST).lower()
        sites.append(f'clients="{client}" data-path="{own}" resident={stays}')
    with Federation(folder, environment(folder / "flwr"), sites) as started:
        yield started


def test_three_of_four_sealed_sites_on_a_ring_finish_after_one_is_killed(
    federation: Federation, folder: Path, tmp_path: Path
) -> None:
    config: dict[str, Value] = {
        **RUN,
        "method": "spreadgnn",
        "csv-label-columns": "a,b,c,d",
        "task-masks": "0;1;2;3",
        "spreadgnn.topology": "ring",
        "spreadgnn.seal": True,
        "num-server-rounds": 3,
        "min-fit-replies": 0.75,
    }
    run_id = federation.submit({**config, "results-dir": str(tmp_path)})
    deadline = time.monotonic() + 300
    while not any(RunFile(p).checkpoints() for p in tmp_path.glob("*-spreadgnn-*")):
        assert time.monotonic() < deadline, "no round was finished"
        time.sleep(0.2)
    os.killpg(federation.pid(f"site-{LOST}"), signal.SIGKILL)
    status = federation.wait(run_id, limit_s=600)
    said = " ".join(federation.log(run_id).split())  # tables wrap lines

    (path,) = (p for p in tmp_path.iterdir() if p.is_dir())  # and the audit log
    summary = load_summary(path)
    assert status == "finished:completed", summary["error"]
    assert summary["status"] == "completed"
    assert summary["rounds"] == 3
    assert {f["client"] for f in summary["failures"]} == {LOST}
    assert set(summary["final"]["per_client"]) == {"0", "1", "3"}
    network = summary["network"]
    assert network["dropped_out"] == [LOST]
    assert network["rest_is_connected"] is True
    assert network["rest"] == [[0, 1, 3]]
    assert f"clients [{LOST}] are gone, their neighbours go on without them" in said
    assert "the 3 others went on and are connected" in said
    # Each site pinned its neighbours, and operators can compare.
    lines = {c: fingerprints(folder / f"site-{c}") for c in CLIENTS}
    assert [line.split()[3] for line in lines[0][2:]] == ["1", "3"]
    zero = lines[0][0].split(maxsplit=2)[2].removesuffix("  (own)")
    assert any(zero in line for line in lines[1])
    assert any(zero in line for line in lines[3])
