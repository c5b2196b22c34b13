"""Whole runs on molecules with several labels, by a method that only this test has."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from clients.tasks.graph_classifier import GraphClassifierClient
from fedgraph_flwr import server_app
from fedgraph_flwr.core.config import Settings
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.tasks import GRAPH_CLASSIFICATION
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.node import serve
from fedgraph_flwr.registry import METHODS, Method
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results import provenance
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline
from strategies.fedavg import FedAvg

TASK = replace(
    GRAPH_CLASSIFICATION, name="toy labels", metric="loss", labels=("binary",)
)


class ToyClient(GraphClassifierClient):
    """Cross-entropy of yes/no labels, where they are known."""

    def loss(self, batch, generator):
        known = ~batch.y.isnan()
        logits = self.model(batch, generator)
        return nn.functional.binary_cross_entropy_with_logits(
            logits[known], batch.y[known]
        )

    def scores(self, point):
        metrics = {}
        partition = self.job.data.partition
        for split in ("val", "test"):
            batch = self.job.data.graphs.batch(partition.positions(split))
            metrics[f"eval/{split}/{point}/loss"] = self.loss(batch, None).item()
            metrics[f"count/{split}"] = batch.num_graphs
        return Parcel(metrics=metrics)


@pytest.fixture
def start(tmp_path, monkeypatch, task_identity):
    """Run the toy method: ``start(node_configs, **overrides)``; returns its summary."""
    toy = Method(
        params=Settings, strategy=FedAvg, clients={TASK: f"{__name__}:ToyClient"}
    )
    monkeypatch.setitem(METHODS, "toy", toy)
    monkeypatch.setattr(server_app, "draw_all", lambda _: None)
    monkeypatch.setattr(provenance, "git_commit", lambda: "unknown")

    def run(name, node_configs=None, **overrides):
        serve.kept_data.clear()
        config = {
            "method": "toy",
            "dataset": "smiles-csv",
            "num-clients": 2,
            "csv-label-columns": "*",
            "num-server-rounds": 2,
            "hidden-dim": 8,
            "device": "cpu",
            "cache-dir": str(tmp_path / "cache"),
            "results-dir": str(tmp_path / name / "results"),
            "state-dir": str(tmp_path / name / "state"),
            **overrides,
        }
        path = run_inline(config, num_nodes=1, node_configs=node_configs)
        return load_summary(path)

    yield run
    serve.kept_data.clear()


def write(path, *, seed, columns="toxic,active"):
    rng = np.random.default_rng(seed)
    lines = [f"smiles,{columns}"]
    for _ in range(30):
        labels = ["" if rng.random() < 0.2 else str(rng.integers(2)) for _ in "ab"]
        molecule = "".join(rng.choice(list("CON"), rng.integers(1, 9)))
        lines.append(",".join([molecule, *labels]))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_sites_with_files_of_their_own_compute_what_a_simulation_does(start, tmp_path):
    folder = tmp_path / "all"
    own = []
    for client in range(2):
        write(folder / f"{client}.csv", seed=client)
        own.append(write(tmp_path / f"site-{client}" / "own.csv", seed=client))
    simulated = start("simulated", **{"data-dir": str(folder)})
    sites = [{"clients": str(c), "data-path": own[c]} for c in range(2)]
    deployed = start("deployed", sites)
    assert deployed["weights_sha256"] == simulated["weights_sha256"]
    assert deployed["split_hash"] == simulated["split_hash"]
    assert deployed["final"] == simulated["final"]
    assert simulated["final"]["mean"] > 0
    assert simulated["emd"] is None  # there are no classes to count
    swapped = [{"clients": str(c), "data-path": own[1 - c]} for c in range(2)]
    assert start("swapped", swapped)["weights_sha256"] != simulated["weights_sha256"]


def test_sites_must_have_the_same_tasks(start, tmp_path):
    one = write(tmp_path / "site-0" / "own.csv", seed=0)
    two = write(tmp_path / "site-1" / "own.csv", seed=1, columns="toxic,stable")
    sites = [{"clients": str(c), "data-path": p} for c, p in enumerate((one, two))]
    with pytest.raises(ConfigError, match=r"different tasks.*'active'.*'stable'"):
        start("differ", sites)


def test_one_file_is_one_clients_at_a_site_too(start, tmp_path):
    own = write(tmp_path / "site" / "own.csv", seed=0)
    with pytest.raises(FedGraphError, match="ConfigError: see docs"):
        start("twice", [{"clients": "0,1", "data-path": own}])


def test_a_wrong_file_stops_the_run_with_its_reason(start, tmp_path):
    missing = {"clients": "0,1", "data-path": str(tmp_path / "none.csv")}
    with pytest.raises(
        FedGraphError,
        match=r"client 0 on node \d+ \(north\) is not ready: DataError: see docs",
    ):
        start("missing", [{**missing, "site-name": "north"}])


def test_a_method_for_labels_refuses_classes(start):
    message = r"'toy' is for toy labels, which needs yes/no labels.*'MUTAG' has one cl"
    with pytest.raises(ConfigError, match=message):
        resolve({**defaults(), "method": "toy", "dataset": "MUTAG"})
    with pytest.raises(ConfigError, match=r"dataset 'ESOL' has numbers to predict"):
        resolve({**defaults(), "method": "toy", "dataset": "ESOL"})
    assert resolve({**defaults(), "method": "toy", "dataset": "SIDER"})
