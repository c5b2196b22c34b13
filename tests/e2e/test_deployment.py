"""A SuperLink and three SuperNodes as real processes on loopback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from e2e.processes import clean_environment, federation, submit, summary_of, wait

from fedgraph_flwr.config import Value
from simulations.inline import run_inline

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]
RUN: dict[str, Value] = {
    "method": "gcfl+",
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 2,
    "hidden-dim": 8,
}
SITES = [f'clients="{clients}"' for clients in ("0", "1,3", "2")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return clean_environment(tmp_path)


def _run(
    tmp_path: Path, env: dict[str, str], config: Mapping[str, Value]
) -> tuple[str, Path]:
    """Submit a run and wait for its end: Flower's status and the results folder."""
    return wait(tmp_path, env, *submit(tmp_path, env, config), limit_s=400)


@pytest.mark.parametrize(
    "given",
    [{}, {"method": "fedgkd", "dataset": "planted"}],
    ids=lambda given: given.get("method", "gcfl+"),
)
def test_three_supernodes_give_the_bytes_of_the_inline_run(
    tmp_path: Path,
    environment: dict[str, str],
    own_ports: tuple[int, int],
    given: dict[str, Value],
) -> None:
    config = {**RUN, **given}
    inline = run_inline(
        {
            **config,
            "results-dir": str(tmp_path / "inline"),
            "state-dir": str(tmp_path / "state-inline"),
        }
    )
    with federation(tmp_path, environment, own_ports, SITES):
        status, deployed = _run(tmp_path, environment, config)

    ours, expected = summary_of(deployed), summary_of(inline)
    assert status == "finished:completed", ours["error"]
    assert ours["weights_sha256"] == expected["weights_sha256"]
    assert ours["split_hash"] == expected["split_hash"]
    assert (deployed / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()
    for file in inline.glob("rounds/*"):  # matrices between clients
        assert (deployed / "rounds" / file.name).read_bytes() == file.read_bytes()
    # Private state stays with its site.
    kept = {path.name for path in (tmp_path / "state-1" / deployed.name).iterdir()}
    assert kept == {"client-1", "client-3"}


def test_embeddings_and_labels_stay_at_sites_that_did_not_agree(
    tmp_path: Path, environment: dict[str, str], own_ports: tuple[int, int]
) -> None:
    fclg = {**RUN, "method": "fclg", "embedding.probe": False}
    with federation(tmp_path, environment, own_ports, SITES):
        pooled = {**fclg, "embedding.evaluation": "pooled"}
        _, refused = _run(tmp_path, environment, pooled)
        _, local = _run(tmp_path, environment, fclg)

    summary = summary_of(refused)
    assert summary["status"] == "failed"
    assert "'share-embeddings=true'" in summary["error"]
    assert summary["rounds"] == 0
    summary = summary_of(local)
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
    with federation(tmp_path, environment, own_ports, sites):
        status, deployed = _run(tmp_path, environment, clean)
        noisy = {**config, "privacy.edge-epsilon": 2.0}
        noisy_status, private = _run(tmp_path, environment, noisy)

    ours, expected = summary_of(deployed), summary_of(inline)
    assert status == "finished:completed", ours["error"]
    assert ours["weights_sha256"] == expected["weights_sha256"]
    assert ours["split_hash"] == expected["split_hash"]
    assert len(set(ours["data_sha256"].values())) == 2
    assert ours["data_sha256"] == expected["data_sha256"]
    assert (deployed / "rounds.csv").read_text() == (inline / "rounds.csv").read_text()

    summary = summary_of(private)
    assert noisy_status == "finished:completed", summary["error"]
    spent = summary["privacy"]["per_client"]
    assert {c: s["edge-epsilon"] for c, s in spent.items()} == {"0": 4.0, "1": 4.0}
    assert set(summary["data_sha256"].values()) == {""}
    for client in "01":  # ledger and noise stay with their site
        kept = tmp_path / f"state-{client}" / private.name / f"client-{client}"
        assert (kept / "privacy-ledger.json").is_file()
        assert not list(tmp_path.glob(f"state-{client}/*/client-{1 - int(client)}"))
