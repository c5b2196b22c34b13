"""A SuperLink and its SuperNodes as real processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgraph_flwr.config import Value
from fedgraph_flwr.registry import project_root
from simulations import flower
from simulations.inline import run_inline

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]
RUN: dict[str, Value] = {
    "method": "gcfl+",
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
}
SITES = ('clients="0"', 'clients="1,3"', 'clients="2"')


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment of Flower's processes: a home of their own, no installations."""
    home = tmp_path / "flwr"
    home.mkdir()
    return {
        **flower.environment(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


@contextmanager
def _process(command: list[str], log: Path, env: dict[str, str]) -> Iterator[None]:
    with log.open("w") as out:
        started = subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=log.parent,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


@contextmanager
def _federation(
    tmp_path: Path,
    env: dict[str, str],
    ports: tuple[int, int],
    sites: Sequence[str] = SITES,
) -> Iterator[None]:
    """SuperLink on ``ports[0]``, SuperNodes beside it, and an entry called "site".

    ``sites`` are the SuperNodes' node-configs, to which a state folder is added.
    """
    address = f"127.0.0.1:{ports[0]}"
    (Path(env["FLWR_HOME"]) / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n\n[superlink.site]\naddress = "{address}"\n'
        "insecure = true\n"
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1"]
    link += ["--port", str(ports[0]), "--disable-runtime-dependency-installation"]
    with _process(link, tmp_path / "superlink.log", env):
        time.sleep(5)
        nodes = []
        try:
            for number, site in enumerate(sites):
                state = tmp_path / f"state-{number}"
                command = ["flower-supernode", "--insecure", "--superlink", address]
                command += ["--port", str(ports[1] + number), "--node-config"]
                command += [f'{site} state-dir="{state}"']
                node = _process(command, tmp_path / f"node{number}.log", env)
                node.__enter__()
                nodes.append(node)
            yield
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


def _flwr(env: dict[str, str], *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    begin = done.stdout.find("{")
    assert begin >= 0, done.stdout + done.stderr
    answer: dict[str, object] = json.JSONDecoder().raw_decode(done.stdout[begin:])[0]
    return answer


def _run(
    tmp_path: Path, env: dict[str, str], config: Mapping[str, Value]
) -> tuple[str, Path]:
    """Submit a run and wait for its end: Flower's status and the results folder."""
    results = tmp_path / f"deployed-{len(list(tmp_path.glob('deployed-*')))}"
    file = tmp_path / "run.toml"
    given = {**config, "results-dir": str(results)}
    file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in given.items()))
    root = str(project_root())
    answer = _flwr(env, "run", root, "site", "--run-config", str(file))
    run_id = str(answer["run-id"])
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        (run,) = _flwr(env, "ls", "site", "--run-id", run_id)["runs"]
        if run["status"].startswith("finished"):
            break
        time.sleep(2)
    logs = "\n".join(p.read_text()[-3000:] for p in tmp_path.glob("*.log"))
    assert results.is_dir(), f"{run['status']}\n{logs}"
    (folder,) = results.iterdir()
    return run["status"], folder


def _summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return loaded


def test_three_supernodes_give_the_bytes_of_the_inline_run(
    tmp_path: Path, environment: dict[str, str], own_ports: tuple[int, int]
) -> None:
    inline = run_inline(
        {
            **RUN,
            "results-dir": str(tmp_path / "inline"),
            "state-dir": str(tmp_path / "state-inline"),
        }
    )
    with _federation(tmp_path, environment, own_ports):
        status, deployed = _run(tmp_path, environment, RUN)

    ours, expected = _summary(deployed), _summary(inline)
    assert status == "finished:completed", ours["error"]
    assert ours["weights_sha256"] == expected["weights_sha256"]
    assert ours["split_hash"] == expected["split_hash"]
    assert (deployed / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()
    # Private state stays with its site.
    kept = {path.name for path in (tmp_path / "state-1" / deployed.name).iterdir()}
    assert kept == {"client-1", "client-3"}


def test_embeddings_and_labels_stay_at_sites_that_did_not_agree(
    tmp_path: Path, environment: dict[str, str], own_ports: tuple[int, int]
) -> None:
    fclg = {**RUN, "method": "fclg", "embedding.probe": False}
    with _federation(tmp_path, environment, own_ports):
        pooled = {**fclg, "embedding.evaluation": "pooled"}
        _, refused = _run(tmp_path, environment, pooled)
        _, local = _run(tmp_path, environment, fclg)

    summary = _summary(refused)
    assert summary["status"] == "failed"
    assert "'share-embeddings=true'" in summary["error"]
    assert summary["rounds"] == 0
    summary = _summary(local)
    assert summary["status"] == "completed"
    assert summary["emd"] is summary["class_counts"] is None
    assert set(summary["final"]["per_client"]) == {"0", "1", "2", "3"}
    assert not (local / "embeddings").exists()
    assert "evaluation" not in (local / "ledger.csv").read_text()
    kept = tmp_path / "state-1" / local.name / "client-3" / "embeddings.npz"
    assert kept.is_file()


def test_two_sites_with_a_file_of_molecules_each(
    tmp_path: Path, environment: dict[str, str], own_ports: tuple[int, int]
) -> None:
    """Each SuperNode's ``data-path`` is a file; inline they lie in one folder."""
    files = [tmp_path / "north" / "own.csv", tmp_path / "south" / "other-name.csv"]
    together = tmp_path / "together"
    together.mkdir()
    for number, (file, first) in enumerate(zip(files, (1, 4), strict=True)):
        file.parent.mkdir()
        rows = [f"{'C' * (first + r)}O,{r % 2},{r % 3 % 2}" for r in range(24 + first)]
        file.write_text("\n".join(["smiles,toxic,active", *rows, ""]))
        (together / f"{number}.csv").write_bytes(file.read_bytes())
    config: dict[str, Value] = {
        "method": "fgcl",
        "dataset": "smiles-csv",
        "features": "atoms-no-degree",
        "num-clients": 2,
        "num-server-rounds": 2,
        "hidden-dim": 8,
    }
    clean: dict[str, Value] = {**config, "fgcl.views": "clean"}
    inline = run_inline(
        {
            **clean,
            "data-dir": str(together),
            "results-dir": str(tmp_path / "inline"),
            "state-dir": str(tmp_path / "state-inline"),
        }
    )
    sites = [
        f'clients="{client}" data-path="{file}"' for client, file in enumerate(files)
    ]
    with _federation(tmp_path, environment, own_ports, sites):
        status, deployed = _run(tmp_path, environment, clean)
        noisy = {**config, "privacy.edge-epsilon": 2.0}
        noisy_status, private = _run(tmp_path, environment, noisy)

    ours, expected = _summary(deployed), _summary(inline)
    assert status == "finished:completed", ours["error"]
    assert ours["weights_sha256"] == expected["weights_sha256"]
    assert ours["split_hash"] == expected["split_hash"]
    assert len(set(ours["data_sha256"].values())) == 2
    assert ours["data_sha256"] == expected["data_sha256"]
    assert (deployed / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()

    summary = _summary(private)
    assert noisy_status == "finished:completed", summary["error"]
    spent = summary["privacy"]["per_client"]
    assert {c: s["edge-epsilon"] for c, s in spent.items()} == {"0": 4.0, "1": 4.0}
    assert set(summary["data_sha256"].values()) == {""}
    for client in "01":  # ledger and noise stay with their site
        kept = tmp_path / f"state-{client}" / private.name / f"client-{client}"
        assert (kept / "privacy-ledger.json").is_file()
        assert not list(tmp_path.glob(f"state-{client}/*/client-{1 - int(client)}"))
