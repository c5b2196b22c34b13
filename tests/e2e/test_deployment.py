"""A SuperLink and three SuperNodes as real processes on loopback; plug-ins there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys
from commands import at_site
from federation import Federation, environment

from clients.store import STATES
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
RUN: dict[str, Value] = {
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
}
# Sites with and without a worker, which are to give the same bytes.
SITES = [
    'clients="0" plugins="outside_fgx"',
    'clients="1,3"',
    'clients="2" resident=false',
]
TIMES = "results/2*/times.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of the federation and, in ``site-<number>``, its private state."""
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def federation(folder: Path) -> Iterator[Federation]:
    """Three sites, one with a plug-in on its disk, which serve every run."""
    (folder / "outside_fgx.py").write_text(toys.PLUGIN)
    variables = environment(folder / "flwr")
    path = [variables["PYTHONPATH"], str(folder)]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    with Federation(folder, variables, SITES) as started:
        yield started


def deploy(
    federation: Federation, config: dict[str, Value], results: Path
) -> tuple[str, Path]:
    """Run to the end: Flower's status and the results folder."""
    run_id = federation.submit({**config, "results-dir": str(results)})
    status = federation.wait(run_id, limit_s=600)
    assert results.is_dir(), f"{status}\n{federation.log(run_id)}"
    (path,) = (p for p in results.iterdir() if p.is_dir())  # and the audit log
    return status, path


def test_three_supernodes_give_the_bytes_of_the_inline_run(
    federation: Federation, folder: Path, tmp_path: Path
) -> None:
    config = {**RUN, "method": "fedgkd", "dataset": "planted"}
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("results", "state")}
    inline = run_inline({**config, **places})
    status, deployed = deploy(federation, config, tmp_path / "deployed")

    assert status == "finished:completed", load_summary(deployed)["error"]
    check_same_run(deployed, inline)
    # Private state stays with its site.
    kept = {path.name for path in (folder / "site-1" / deployed.name).iterdir()}
    assert kept - {"states.sqlite3-journal"} == {"client-1", "client-3", STATES}
    check_audit_logs(folder, deployed)


def test_three_supernodes_hand_in_sums_and_give_the_bytes_of_the_inline_run(
    federation: Federation, tmp_path: Path
) -> None:
    """Clients train, and hand in when it is known who has trained."""
    sums: dict[str, Value] = {"secure-aggregation.on": True, "min-fit-replies": 0.7}
    config = {**RUN, **sums, "method": "fedavg"}
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("results", "state")}
    inline = run_inline({**config, **places})
    status, deployed = deploy(federation, config, tmp_path / "deployed")

    assert status == "finished:completed", load_summary(deployed)["error"]
    check_same_run(deployed, inline)


def test_a_bundled_plug_in_runs_and_an_installed_one_needs_every_sites_consent(
    federation: Federation, tmp_path: Path
) -> None:
    own: dict[str, Value] = {
        **RUN,
        "num-server-rounds": 1,
        "method": "examples.pulled:METHOD",
        "plugin.params": "mu = 0.5",
    }
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("results", "state")}
    inline = load_summary(run_inline({**own, **places}))
    status, folder = deploy(federation, own, tmp_path / "own")
    outside = {**RUN, "method": "outside_fgx:METHOD"}
    refused = federation.submit({**outside, "results-dir": str(tmp_path / "outside")})
    federation.wait(refused, limit_s=600)
    told = federation.log(refused)

    deployed = load_summary(folder)
    assert status == "finished:completed", deployed["error"]
    assert deployed["weights_sha256"] == inline["weights_sha256"]
    for key in ("plugin.params", "plugin.method-sha256"):
        assert deployed["config"][key] == inline["config"][key]
    assert "the text stands in the log of the site" in told
    at_sites = "".join(p.read_text() for p in federation.folder.glob("site-*.log"))
    assert "the run's method is in module 'outside_fgx', which is not in" in at_sites
    assert "--node-config 'plugins=" in at_sites
    assert not list((tmp_path / "outside").glob("2*"))  # no round, no folder


def test_a_superlink_that_stalls_leaves_a_failed_run_that_goes_on(
    tmp_path: Path,
) -> None:
    """It has forgotten the run when it wakes, and refuses what the server asks."""
    sites = ['clients="0" site-name="north"', 'clients="1" site-name="south"']
    config = {**RUN, "method": "fedavg", "num-clients": 2, "num-server-rounds": 4}
    places = {f"{k}-dir": str(tmp_path / f"own-{k}") for k in ("results", "state")}
    inline = run_inline({**config, **places})
    results = {"results-dir": str(tmp_path / "results")}
    with Federation(tmp_path, environment(tmp_path / "flwr"), sites) as started:
        run_id = started.submit({**config, **results})
        deadline = time.monotonic() + 240
        while sum(p.read_text().count("\n") for p in tmp_path.glob(TIMES)) < 3:
            assert time.monotonic() < deadline, started.log(run_id)
            time.sleep(0.5)
        os.kill(started.pid("superlink"), signal.SIGSTOP)
        try:
            time.sleep(65)
        finally:
            os.kill(started.pid("superlink"), signal.SIGCONT)

        assert started.wait(run_id, limit_s=120) == "finished:failed"
        (folder,) = (path.parent for path in tmp_path.glob(TIMES))
        summary = load_summary(folder)
        assert summary["status"] == "failed"
        assert "when the SuperLink has not answered for a minute" in summary["error"]
        metrics = (folder / "metrics.prom").read_text()
        assert f'fedgraph_run_status{{run="{run_id}"}} 2' in metrics
        resume = {
            **config,
            **results,
            "resume": str(folder),
            "roll-call-timeout-s": 60.0,
        }
        again = started.submit(resume)
        ended = started.wait(again, limit_s=400)
        if "answered no roll call" in started.log(again):  # see docs/failures.md
            started.restart("site-0", "site-1")
            again = started.submit(resume)
            ended = started.wait(again, limit_s=400)
        assert ended == "finished:completed", started.log(again)
    check_same_run(folder, inline)


def check_same_run(deployed: Path, inline: Path) -> None:
    """Models, data, scores and what was kept of rounds are the same, to the byte."""
    ours, expected = load_summary(deployed), load_summary(inline)
    for key in ("weights_sha256", "split_hash", "data_sha256"):
        assert ours[key] == expected[key], key
    told = ("rounds.csv", "clusters.json", "rounds/*")  # matrices between clients
    kept = [file for name in told for file in inline.glob(name)]
    assert len(kept) > 1
    for file in kept:
        same = deployed / file.relative_to(inline)
        assert same.read_bytes() == file.read_bytes(), file.name


def check_audit_logs(folder: Path, deployed: Path) -> None:
    """Both logs tell the same story as the results and the log of the process."""
    ours, theirs = folder / "site-1" / "audit.jsonl", deployed.parent / "audit.jsonl"
    assert at_site(["audit", str(ours), "--server", str(theirs)]) == 0
    lines = [json.loads(line) for line in ours.read_text().splitlines()]
    own = [
        line
        for line in lines
        if line["event"] == "answered" and line["experiment"] == deployed.name
    ]
    did = [(line["message"], line.get("round"), line["client"]) for line in own]
    rounds = [("train", 1), ("train", 2), ("evaluate", 3)]
    expected = [("roll call", None), *rounds]
    assert did == [(*step, client) for step in expected for client in (1, 3)]
    log = (folder / "site-1.log").read_text()
    for line in own[2:-2]:
        at = f"client {line['client']}, round {line['round']}: trained on"
        assert log.count(f"run {line['run']}, {line['method']}, {at}") == 1
