"""The three sites of docs/running.md, from CSV files to predictions.

The SuperLink, both proxies and the SuperNodes are started from the files of
``examples/deployment``. Operators type what the page has them type.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toys
from commands import at_site
from e2e.test_deployment import check_same_run
from e2e.test_proxy import Guarded, deploy, proxies
from typing_extensions import override

from fedgraph_flwr.core.rules import Value
from simulations.example_data import write_examples
from simulations.inline import run_inline

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Flower's client of Fleet, in this process only because `check` is.
    pytest.mark.filterwarnings("ignore:.verify=<str>:DeprecationWarning"),
    pytest.mark.skipif(
        shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") is None,
        reason="nginx is not installed: apt-get install nginx-light",
    ),
]
STATES = ("fine", "worn")
SITES = ("north", "south", "west")
BAD = "west"  # two of its rows fit no schema
RUN: dict[str, Value] = {
    "method": "gcfl+",
    "dataset": "graphs-csv",
    "num-clients": len(SITES),
    "num-server-rounds": 3,
    "hidden-dim": 8,
    "learning-rate": 0.03,
    "held-out": 0.4,
    # A cluster may split from round 2 on: clients end with models of their own.
    "gcfl.mean-norm-threshold": 100.0,
    "gcfl.max-norm-threshold": 0.0,
    "gcfl.seq-length": 2,
    "gcfl.min-round": 1,
}
RUN_CONFIG = " ".join(f"{key}={json.dumps(value)}" for key, value in RUN.items())


def operator(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Type ``python -m fedgraph_flwr.site ...``; return exit code and output."""
    capsys.readouterr()
    code = at_site([str(word) for word in words])
    return code, capsys.readouterr().out


class Hospitals(Guarded):
    """Sites with tables, which check themselves once their keys are admitted."""

    def __init__(self, folder: Path) -> None:
        self.data = {name: folder / "graphs" / name for name in SITES}
        sites = {
            name: f'clients="{client}" data-path="{self.data[name]}"'
            f' cache-dir="{folder}/cache-{client}"'
            f"{' resident=false' if name == BAD else ''}"
            for client, name in enumerate(SITES)
        }
        super().__init__(folder, sites)
        self.given = sites
        self.checked: dict[str, int] = {}
        self.reports: dict[str, dict[str, Any]] = {}

    @override
    def register_keys(self) -> None:
        """Register keys; then, before any SuperNode runs, check each site."""
        super().register_keys()
        for client, name in enumerate(SITES):
            out = self.folder / f"check-{client}.json"
            with pytest.MonkeyPatch.context() as patch, out.open("w") as file:
                patch.setattr("sys.stdout", file)
                self.checked[name] = at_site(self._check(client, name))
            self.reports[name] = json.loads(out.read_text())

    def _check(self, client: int, name: str) -> list[str]:
        state = self.folder / f"site-{client}"
        state.mkdir(mode=0o700)
        site = self.folder / f"certificates-{client}"
        return [
            "check", str(self.data[name]), "--json",
            "--schema", str(self.folder / "graphs" / "schema.toml"),
            "--run-config", RUN_CONFIG,
            "--node-config", f'{self.given[name]} state-dir="{state}"',
            "--superlink", f"127.0.0.1:{self.fleet_port}",
            "--root-certificates", str(site / "ca.crt"),
            "--auth-supernode-private-key", str(site / "site"),
        ]  # fmt: skip


@pytest.fixture
def hospitals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Hospitals]:
    """The federation, whose first site has made the schema of all."""
    write_examples(tmp_path / "example")
    shutil.move(tmp_path / "example" / "graphs", tmp_path / "graphs")
    shared = tmp_path / "graphs" / "schema.toml"
    made = operator(capsys, "schema", tmp_path / "graphs" / SITES[0], "--out", shared)
    assert made[0] == 0, made
    for name in SITES:
        shutil.copy(shared, tmp_path / "graphs" / name)
    guarded = Hospitals(tmp_path)
    with proxies(guarded), guarded:
        yield guarded


def test_from_tables_to_predictions(
    hospitals: Hospitals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SITES:  # each alone, before it joins
        found = {x["what"]: x["state"] for x in hospitals.reports[name]["findings"]}
        is_unfit = found.pop("device") == "problem"  # this machine
        assert hospitals.checked[name] == is_unfit, found
        assert {"certificate", "key", "schema", "data", "training"} <= found.keys()
        assert set(found.values()) == {"ok"}
    alone = {name: tmp_path / f"alone-{name}" for name in SITES}
    for client, name in enumerate(SITES):
        words = ("--run-config", RUN_CONFIG, "--client", client, "--out", alone[name])
        code, told = operator(capsys, "baseline", hospitals.data[name], *words)
        assert code == 0
        assert "trained alone for 3 rounds" in told

    results = tmp_path / "results"
    summary, log = deploy(hospitals, RUN, results)
    assert summary["status"] == "completed", log
    assert summary["sites"] == {name: [c] for c, name in enumerate(SITES)}
    assert len(summary["clusters"]) > 1
    # Files of sites, proxies, TLS and resident workers change no byte.
    places = {
        f"{kind}-dir": str(tmp_path / f"inline-{kind}") for kind in ("results", "state")
    }
    inline = run_inline({**RUN, **places, "data-dir": str(tmp_path / "graphs")})
    (experiment,) = (path.name for path in results.iterdir() if path.is_dir())
    check_same_run(results / experiment, inline)
    for client, name in enumerate(SITES):
        model = tmp_path / f"site-{client}" / experiment / f"client-{client}" / "model"
        check_predictions(
            model, hospitals.data[name], summary["final"]["per_client"][str(client)],
            capsys,
        )  # fmt: skip
        against = ("--out", alone[name], "--against", model)
        code, told = operator(capsys, "baseline", hospitals.data[name], *against)
        assert code == 0
        assert any(verdict in told for verdict in ("join", "cannot tell")), told
        site_log = tmp_path / f"site-{client}" / "audit.jsonl"
        server = ("--server", results / "audit.jsonl")
        code, told = operator(capsys, "audit", site_log, *server)
        assert code == 0, told
        assert "no problem found, and agrees with" in told


def check_predictions(
    model: Path, data: Path, score: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test score is the run's, and follows from the file and the site's labels."""
    label = {row["graph"]: row["state"] for row in toys.csv_rows(data / "graphs.csv")}
    new = model.parent / "new"  # the same graphs, as if nobody knew their state
    new.mkdir()
    for file in ("nodes.csv", "edges.csv", "schema.toml"):
        shutil.copy(data / file, new)
    (new / "graphs.csv").write_text("\n".join(["graph", *label]) + "\n")
    out = model.parent / "new.csv"
    code, told = operator(capsys, "predict", model, new, "--out", out)
    assert code == int(data.name == BAD)
    assert told.count("not predicted: ") == (2 if data.name == BAD else 0)
    found = {row["graph"]: row for row in toys.csv_rows(out) if not row["problem"]}
    assert len(found) == len(label) - (2 if data.name == BAD else 0)
    assert found.keys() <= label.keys()

    out = model.parent / "test.csv"
    code, told = operator(capsys, "predict", model, data, "--test", "--out", out)
    assert code == 0
    assert f"items: {score!r}" in told
    rows = toys.csv_rows(out)
    tested = {row["graph"]: row["prediction"] for row in rows}
    # Accuracy is that of the likelier class; items are called by the threshold.
    likelier = [
        max(STATES, key=lambda k, row=row: float(row[f"p({k})"])) for row in rows
    ]
    right = [
        label[r["graph"]] == state for r, state in zip(rows, likelier, strict=True)
    ]
    assert sum(right) / len(right) == score
    assert tested == {graph: found[graph]["prediction"] for graph in tested}
