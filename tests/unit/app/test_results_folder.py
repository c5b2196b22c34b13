"""The results folder: complete after a run, usable after a failure, resumable."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest
import toys

from fedgraph_flwr import server_app
from fedgraph_flwr.core.audit_log import AuditLog
from fedgraph_flwr.core.errors import (
    ConfigError,
    FedGraphError,
    RunFailedError,
    StorageError,
)
from fedgraph_flwr.results import progress
from fedgraph_flwr.results.folder import RunFolder, results_root
from fedgraph_flwr.results.printed import summary_table
from fedgraph_flwr.results.provenance import hash_weights, split_hash
from fedgraph_flwr.results.reader import load_summary, read_times
from fedgraph_flwr.results.run_file import RunFile
from strategies.round_report import ClientInfo

FULL = StorageError("cannot write a.png: No space left on device")


def finds_a_full_disk(*_):
    raise FULL


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


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_changes_no_length_of_a_round(run, monkeypatch, hours):
    usual, record, shift = time.time, RunFolder.record, [0.0]

    def record_and_set(self, report, *strategy):
        record(self, report, *strategy)
        if report.server_round < 2:
            shift[0] += 3600 * hours

    monkeypatch.setattr(time, "time", lambda: usual() + shift[0])
    monkeypatch.setattr(RunFolder, "record", record_and_set)
    finished = run("fedavg")
    assert 0 < finished.summary["wall_s"] < 3600
    rows = read_times(finished.path)
    assert all(0 < row.wall_s < 3600 for row in rows)
    assert all(row.busy_s > 0 for row in rows[2:])  # clients go by the clock


@pytest.mark.parametrize("draw", ["draw_all", "draw_statistics"])
def test_no_figure_fails_a_run(run, monkeypatch, draw):
    """Flower would call a run failed whose summary says that it is completed."""
    told = []
    monkeypatch.setattr(server_app, draw, finds_a_full_disk)
    monkeypatch.setattr(server_app, "log", lambda _, *words: told.append(words))
    finished = run("fedavg", **{"tell-statistics": True})
    assert finished.summary["status"] == "completed"
    assert [w[1:] for w in told if w[0].startswith("not all figures")] == [
        (finished.path, "StorageError", FULL, finished.path)
    ]


def test_ctrl_c_while_figures_are_drawn_says_that_the_run_had_completed(
    run, monkeypatch, caplog, tmp_path
):
    caplog.set_level("INFO", logger="flwr")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(server_app, "draw_all", stop)
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", **{"results-dir": str(tmp_path)})
    (path,) = tmp_path.iterdir()
    assert f"stopped after the run had completed: all results are in {path}" in (
        caplog.text
    )
    assert "model of the last round" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageError(FULL), "what was computed is kept"),
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


def test_small_test_sets_and_80_columns(run):
    summary = run("fedavg").summary
    (largest,) = {
        summary["num_examples"][c]
        for c, v in summary["final"]["per_client"].items()
        if v == summary["final"]["max"]
    } or {0}
    table = summary_table(summary)
    assert f"{summary['final']['max']:.4f} (n={largest})" in table
    assert max(map(len, table.splitlines())) <= 80
    summary["num_examples"] = dict.fromkeys(summary["num_examples"], 50)
    assert "(n=" not in summary_table(summary)
    assert "same test graphs" not in summary_table(summary)
    summary["config"]["partition"] = "quantity-skew"
    assert "All clients have the same test graphs" in summary_table(summary)


def test_small_errors_are_not_shown_as_0(run):
    summary = run("fedavg").summary
    for rule in summary["rules"]:
        for key, value in (
            ("mean", 2.5e-6),
            ("std", 1e-17),
            ("min", 0.0),
            ("max", 0.5),
        ):
            summary[rule][key] = value
        summary[rule]["per_client"] = {"0": 0.0, "1": 0.5}
    line = next(x for x in summary_table(summary).splitlines() if "final" in x)
    cells = [cell.split()[0] for cell in line.strip("│").split("│")]
    assert cells == ["final", "2.50e-06", "0.0000", "0.0000", "0.5000"]


def test_the_table_of_a_pooled_run_whose_last_round_has_no_score(run):
    summary = run("fedavg").summary
    for rule in summary["rules"]:
        row = summary[rule]
        row["per_client"] = {"-1": row["max"]}
        row["min"] = row["mean"] = row["max"]
    final = summary["final"]
    final["per_client"], final["mean"], final["std"] = {}, None, None
    final["min"] = final["max"] = None
    table = summary_table(summary)
    assert "all clients together" in table
    assert "(n=" not in table


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


def test_the_split_hash_knows_who_holds_what():
    def info(client: int, text: str) -> ClientInfo:
        return ClientInfo(
            client=client, node_id=9, num_train=1, num_val=1, num_test=1,
            num_features=1, num_classes=2, group=-1, split_hash=text, raw_sha256="",
        )  # fmt: skip

    there = split_hash({0: info(0, "x"), 1: info(1, "y")})
    assert split_hash({1: info(1, "y"), 0: info(0, "x")}) == there
    assert split_hash({0: info(0, "y"), 1: info(1, "x")}) != there


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
def full_at_the_end(monkeypatch):
    """The server's disk is full when the last line of its audit log is due."""
    usual = AuditLog.add

    def add(self, records):
        found = list(records)
        if found[-1]["event"] == progress.ENDED:
            raise FULL
        return usual(self, found)

    monkeypatch.setattr(AuditLog, "add", add)


def test_no_last_line_of_the_audit_log_fails_a_run(run, tmp_path, full_at_the_end):
    node = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    assert run("fedavg", node_configs=[node]).summary["status"] == "completed"


def test_no_last_line_of_the_audit_log_hides_an_error_or_keeps_a_folder(
    run, tmp_path, full_at_the_end
):
    node = {"clients": "0,1,2", "state-dir": str(tmp_path / "site")}
    others = {"num-clients": 4, "roll-call-timeout-s": 0.1}
    with pytest.raises(RunFailedError, match=r"clients \[3\] of 4 answered no roll"):
        run(
            "fedavg",
            node_configs=[node],
            **{"results-dir": str(tmp_path / "results"), **others},
        )
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["audit.jsonl"]


def test_nor_does_one_whose_strategy_cannot_be_made(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConfigError("mend the plug-in")

    monkeypatch.setattr("fedgraph_flwr.server_app._make_strategy", fail)
    with pytest.raises(ConfigError, match="mend the plug-in"):
        run("fedavg", **{"results-dir": str(tmp_path)})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("method", ["fedavg", "gcfl"])
def test_a_resumed_run_whose_roll_call_fails_says_so(run, method):
    part = run(method, **{"num-server-rounds": 1})
    with pytest.raises(RunFailedError, match=r"clients \[2\] of 3"):
        run(
            method,
            node_configs=[{"clients": "0,1"}],
            **{
                "resume": str(part.path),
                "state-dir": part.overrides["state-dir"],
                "roll-call-timeout-s": 0.01,
            },
        )


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


@pytest.mark.parametrize("method", ["fedavg multi-task", "fgcl"])
@pytest.mark.usefixtures("labels_of_one_class")
def test_tasks_without_a_score_are_named_once(run, caplog, method):
    caplog.set_level("WARNING", logger="flwr")
    part = run(method, **{"num-server-rounds": 2})
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
    resumed = run(method, **again, resume=str(part.path))
    assert resumed.summary["tasks_without_score"] == missing


def test_where_all_tasks_have_scores_nothing_is_said(run, caplog):
    caplog.set_level("WARNING", logger="flwr")
    summary = run("fedavg multi-task").summary
    assert summary["tasks_without_score"] == {}
    assert "leaves out" not in caplog.text
    assert "tasks_without_score" not in run("fedavg").summary


def test_a_damaged_checkpoint_is_named(run):
    part = run("fedavg", **{"num-server-rounds": 1})
    (part.path / "run.sqlite3").write_bytes(b"damaged" * 1000)
    with pytest.raises(FedGraphError, match=r"run\.sqlite3 cannot be read"):
        run("fedavg", resume=str(part.path))


def test_resuming_with_fewer_rounds_than_done_is_refused(run):
    part = run("fedavg", **{"num-server-rounds": 3})
    with pytest.raises(ConfigError, match="num-server-rounds"):
        run(
            "fedavg",
            **{
                "resume": str(part.path),
                "state-dir": part.overrides["state-dir"],
                "num-server-rounds": 1,
            },
        )


def test_a_failed_resume_keeps_the_hashes_of_what_was_computed(run):
    part = run("gcfl", **{"num-server-rounds": 1})
    before = part.summary
    with pytest.raises(RunFailedError, match=r"clients \[2\] of 3"):
        run(
            "gcfl",
            node_configs=[{"clients": "0,1"}],
            **{
                "resume": str(part.path),
                "state-dir": part.overrides["state-dir"],
                "roll-call-timeout-s": 0.01,
            },
        )
    assert part.summary["split_hash"] == before["split_hash"]
    assert part.summary["weights_sha256"] == before["weights_sha256"]


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


@pytest.mark.parametrize("lost", [False, True])
def test_a_score_on_all_test_sets_is_none_of_some(run, monkeypatch, lost):
    toys.fail_when(monkeypatch, lambda *at: lost and at == (1, 2), step="assess")
    case = {"num-server-rounds": 1, "min-fit-replies": 0.5, "shared-group": "all"}
    summary = run("fedavg", **case, **{"evaluate-on": "all"}).summary
    assert (summary["on_all_clients"]["mean"] is None) == lost
    assert ("on the test sets of all" in summary_table(summary)) != lost


def test_clients_held_out_are_no_missing_scores(run):
    case = {"num-server-rounds": 1, "held-out-clients": "2", "shared-group": "all"}
    summary = run("fedavg", **case).summary
    assert summary["final"]["num_clients"] == 2
    assert summary["final"]["protocol"] == "model of the last round"


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        ("fedavg", ("final", "best_val")),
        ("fedavg node-classification", ("final", "best_val", "best_val_trained")),
    ],
)
def test_metrics_beside_accuracy_are_read_at_the_rules_round(run, case, rules):
    finished = run(case, **{"num-server-rounds": 4})
    summary = finished.summary
    for metric in ("macro-f1", "roc-auc"):
        rows = finished.values(metric)
        for rule in rules:
            point = "post_training" if rule.endswith("trained") else "post_aggregation"
            at = str(summary[rule].get("round", 4))
            expected = {
                client: value
                for (round_, client, split, where, _), value in rows.items()
                if (round_, split, where) == (at, "test", point)
            }
            assert len(expected) == 3
            assert summary[rule]["also_per_client"][metric] == expected
            mean = sum(expected.values()) / 3
            assert summary[rule]["also"][metric] == pytest.approx(mean)
    assert summary["metric"] == "accuracy"
    assert "also" not in summary.get("best_snapshot", {})  # which reads no one round
    assert "macro-f1" not in summary_table(summary)
