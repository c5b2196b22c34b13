"""The results folder: complete after a run, usable after a failure, resumable."""

from __future__ import annotations

import json
import os
import shutil
import stat
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import toys

from fedgraph_flwr import server_app
from fedgraph_flwr.core.errors import (
    RunFailedError,
    StorageError,
)
from fedgraph_flwr.results.folder import RunFolder, results_root
from fedgraph_flwr.results.printed import summary_table
from fedgraph_flwr.results.provenance import hash_weights
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.results.run_file import RunFile


def test_others_cannot_enter_the_folder_of_a_run(run):
    """Its group may, as monitoring does."""
    before = os.umask(0o022)
    try:
        assert stat.S_IMODE(run("fedavg").path.stat().st_mode) == 0o750
    finally:
        os.umask(before)


def test_a_folder_holds_everything_and_is_named_after_the_run(run):
    finished = run("gcfl+", seed=3)
    assert "-gcfl+-synthetic-3-" in finished.path.name
    names = {p.name for p in finished.path.iterdir()}
    assert names >= {
        "summary.json", "rounds.csv", "ledger.csv", "clusters.json", "config.json",
        "models", "run.sqlite3",
    }  # fmt: skip
    summary = finished.summary
    assert summary["status"] == "completed"
    assert summary["config"]["seed"] == 3
    assert summary["wall_s"] >= summary["overhead_s"] >= 0
    assert len(summary["weights_sha256"]) == len(summary["split_hash"]) == 64
    assert RunFile(finished.path).checkpoints() == [2, 3]


def test_no_figure_fails_a_run(run, monkeypatch, caplog):
    """Flower would call a run failed whose summary says that it is completed."""

    def finds_a_full_disk(_):
        raise StorageError("cannot write a.png: No space left on device")

    caplog.set_level("WARNING", logger="flwr")
    monkeypatch.setattr(server_app, "draw_all", finds_a_full_disk)
    finished = run("fedavg", **{"tell-statistics": True})
    assert finished.summary["status"] == "completed"
    words = (
        "StorageError: cannot write a.png: No space left on device; `fedgraph figure"
    )
    assert f"not all figures are in {finished.path}: {words}" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageError("No space left"), "what was computed is kept"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_a_run_is_completed_once_all_results_are_written(
    run, monkeypatch, caplog, tmp_path, error, told
):
    """What ends it before, in whatever way, says how to go on."""
    caplog.set_level("WARNING", logger="flwr")

    finish = RunFolder.finish

    def fail(*given, **options):
        if "error" in options:
            return finish(*given, **options)
        raise error

    given = {"results-dir": str(tmp_path), "state-dir": str(tmp_path / "state")}
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", fail)
        with pytest.raises(type(error)):
            run("fedavg", **given)
    (path,) = tmp_path.glob("*fedavg*")
    assert f'{told}; to go on: resume="{path}"' in caplog.text
    assert load_summary(path)["status"] == "failed"
    again = run("fedavg", **given, resume=str(path))
    assert again.path == path
    undisturbed = run("fedavg").summary
    for key in ("status", "rounds", "weights_sha256", "final", "best_val"):
        assert again.summary[key] == undisturbed[key], key


def test_the_table_at_the_end_has_80_columns(run):
    summary = run("fedavg").summary
    table = summary_table(summary)
    assert f"{summary['final']['max']:.4f}" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_three_rules_agree_with_the_rows(run):
    finished = run("fedavg", **{"num-server-rounds": 4})
    rows = finished.values("accuracy")
    at = "post_aggregation", "accuracy"

    def mean(server_round: int, split: str) -> float:
        values = [rows[str(server_round), str(c), split, *at] for c in range(3)]
        return sum(values) / 3

    summary = finished.summary
    assert summary["final"]["mean"] == pytest.approx(mean(4, "test"))
    best = summary["best_val"]["round"]
    assert mean(best, "val") == max(mean(r, "val") for r in range(1, 5))
    assert summary["best_val"]["mean"] == pytest.approx(mean(best, "test"))
    assert summary["best_snapshot"]["mean"] == summary["final"]["mean"]  # no split


@pytest.mark.parametrize("part", ["weights", "model", "client"])
def test_the_weights_hash_sees_every_number_and_name(part):
    models = {"a": {"w": np.float32([1, 2])}}
    hashes = {0: "x", 1: "y"}
    before = hash_weights(models, hashes)
    assert hash_weights(models, dict(reversed(hashes.items()))) == before
    changed = {
        "weights": ({"a": {"w": np.float32([1, 3])}}, hashes),
        "model": ({"b": {"w": np.float32([1, 2])}}, hashes),
        "client": (models, {0: "x", 1: "z"}),
    }[part]
    assert hash_weights(*changed) != before


def test_results_go_where_the_config_or_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDGRAPH_HOME", str(tmp_path))
    assert results_root("/elsewhere") == (Path("/elsewhere"), "results-dir")
    path, why = results_root("")
    assert (path, why.split(",")[0]) == (tmp_path / "results", "FEDGRAPH_HOME")
    monkeypatch.delenv("FEDGRAPH_HOME")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert results_root("")[0] == tmp_path / "fedgraph-results"


def test_a_run_that_is_refused_leaves_no_folder(run, tmp_path):
    with pytest.raises(RunFailedError, match=r"clients \[2\] of 3"):
        run(
            "gcfl",
            node_configs=[{"clients": "0,1"}],
            **{"roll-call-timeout-s": 0.01, "results-dir": str(tmp_path)},
        )
    assert [p.name for p in tmp_path.iterdir()] == ["audit.jsonl"]  # says who refused


@pytest.fixture
def labels_of_one_class(toy_data):
    """All validation labels of task b are 1, and client 1 has no test label of a."""

    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = partition.graphs.y.copy()
        y[partition.val, 1] = 1
        if client_id == 1:
            y[partition.test, 0] = np.nan
        return toys.replace(partition, graphs=toys.replace(partition.graphs, y=y))

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        yield


@pytest.mark.usefixtures("labels_of_one_class")
def test_tasks_without_a_score_are_named_once(run, caplog):
    caplog.set_level("WARNING", logger="flwr")
    part = run("fedavg multi-task", **{"num-server-rounds": 2})
    missing = {"val": {"b": [0, 1, 2]}, "test": {"a": [1]}}
    assert part.summary["tasks_without_score"] == missing
    warnings = [
        r.getMessage() for r in caplog.records if "leaves out" in r.getMessage()
    ]
    why = "whose labels there are missing or all of one class"
    assert warnings == [
        f"roc-auc on test graphs leaves out 1 of 2 tasks, {why}: a (client 1)",
        f"roc-auc on val graphs leaves out 1 of 2 tasks, {why}: b",
    ]
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fedavg multi-task", **again, resume=str(part.path))
    assert resumed.summary["tasks_without_score"] == missing


def test_a_failed_run_says_which_round_its_score_is_of(run, monkeypatch, tmp_path):
    toys.fail_when(monkeypatch, lambda _, number: number == 4)
    settings = {"num-server-rounds": 9, "results-dir": str(tmp_path)}
    for every, measured in ((5, 0), (1, 2)):
        with pytest.raises(RunFailedError):
            run("fedavg", **settings, **{"evaluate-every": every})
        (path,) = tmp_path.glob("*/summary.json")
        summary = json.loads(path.read_text())
        assert (summary["status"], summary["rounds"]) == ("failed", 3)
        told = f"model of round {measured}, the last that was measured"
        assert summary["final"]["protocol"] == told
        shutil.rmtree(path.parent)


def test_a_mean_over_some_of_the_clients_is_told(run, monkeypatch):
    toys.fail_when(monkeypatch, lambda *at: at == (1, 3), step="assess")
    summary = run("fedavg", **{"num-server-rounds": 2, "min-fit-replies": 0.5}).summary
    assert summary["final"]["num_clients"] == 2
    told = "model of the last round; mean over 2 of 3 clients"
    assert summary["final"]["protocol"] == told
    assert told in " ".join(summary_table(summary).split())


def test_metrics_beside_accuracy_are_read_at_the_rules_round(run):
    finished = run("fedavg node-classification", **{"num-server-rounds": 4})
    summary = finished.summary
    for metric, rule in product(("macro-f1", "roc-auc"), summary["rules"]):
        point = "post_training" if rule.endswith("trained") else "post_aggregation"
        at = str(summary[rule].get("round", 4))
        values = finished.values(metric)
        expected = {c: values[at, c, "test", point, metric] for c in "012"}
        assert summary[rule]["also_per_client"][metric] == expected
        mean = sum(expected.values()) / 3
        assert summary[rule]["also"][metric] == pytest.approx(mean)
    assert summary["metric"] == "accuracy"
    assert "macro-f1" not in summary_table(summary)
