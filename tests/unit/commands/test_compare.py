"""Two clients, two seeds: every number of a comparison can be checked by hand."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from made_runs import write_summary
from rich.console import Console

from fedgraph_flwr.core.errors import FedGraphError
from simulations import compare
from simulations.cli import main as fedgraph
from simulations.markup import (
    Report,
    fitting,
    print_terminal,
)
from simulations.tables.runs import find_runs


def write_run(
    root: Path,
    method: str,
    seed: int,
    accuracy: list[float],
    *,
    when: str = "20260101T000000Z",
    dataset: str = "synthetic",
    config: dict[str, object] | None = None,
    **entries: object,
) -> Path:
    """Write a run folder with as many clients as there are accuracies."""
    mean, of_each = sum(accuracy) / len(accuracy), dict(enumerate(accuracy))
    result = {"mean": mean, "std": 0.0, "min": 0.0, "max": 1.0, "per_client": of_each}
    scores = dict.fromkeys(("final", "best_val", "best_snapshot"), result)
    chosen = {"method": method, "dataset": dataset, "seed": seed, **(config or {})}
    own = {"num_clients": len(accuracy), "wall_s": 60.0 + seed, **scores, **entries}
    folder = root / f"{when}-{method}-{dataset}-{seed}-ab"
    return write_summary(folder, chosen, **own)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Self-train, FedAvg and GCFL+ on seeds 1 and 2."""
    write_run(tmp_path, "local", 1, [0.5, 0.9])
    write_run(tmp_path, "local", 2, [0.7, 0.9])
    write_run(tmp_path, "fedavg", 1, [0.6, 0.6])
    write_run(tmp_path, "fedavg", 2, [0.8, 0.6])
    write_run(tmp_path, "gcfl+", 1, [0.8, 0.8], adjusted_rand_index=1.0, num_clusters=2)
    write_run(tmp_path, "gcfl+", 2, [0.9, 1.0], adjusted_rand_index=0.5, num_clusters=3)
    return tmp_path


def groups_of(root: Path) -> list[compare.Group]:
    return compare.group_runs(find_runs([root]))[0]


def sheets_of(root: Path, rule: str = "final") -> list[dict[str, dict[str, str]]]:
    """Scores and differences as printed: name of the row -> heading -> cell."""
    (group,) = groups_of(root)
    sheets = [p for p in compare.compare(group, rule).parts if not isinstance(p, str)]
    return [sheet.set_index(sheet.columns[0]).to_dict("index") for sheet in sheets]


def test_score_is_the_papers_mean_and_std_within_clients(tmp_path):
    write_run(tmp_path, "local", 1, [0.5, 0.9])
    write_run(tmp_path, "local", 2, [0.7, 0.7])
    # Both runs have the mean 0.7; each client moves by 0.2, std (ddof 1) 0.2 / sqrt(2).
    (scores,) = sheets_of(tmp_path)
    assert scores["local"]["final"] == f"0.7000 ± {0.2 / 2**0.5:.4f}"


def test_gains_differences_and_counts(results):
    scores, differences = sheets_of(results)
    # per client 0.85 - 0.6 = 0.25 and 0.9 - 0.9 = 0, a tie, which is not worse
    plus = differences["gcfl+ - local"]
    assert (plus["smallest gain"], plus["not worse"]) == ("+0.0000", "2/2 (1 tied)")
    # 0.7 - 0.6 and 0.6 - 0.9
    fedavg = differences["fedavg - local"]
    assert (fedavg["smallest gain"], fedavg["not worse"]) == ("-0.3000", "1/2")
    # seed 1: 0.8 - 0.6; seed 2: 0.95 - 0.7; two seeds of one split give no interval
    plus = differences["gcfl+ - fedavg"]
    assert (plus["pairs"], plus["points [95 %]"]) == ("2", "+22.50 -")
    assert plus["verdict"] == "1 split: no verdict"
    assert plus["smallest gain"] == "-"  # gains are over self-train
    assert set(differences) == {
        *("fedavg - local", "gcfl+ - local", "local - fedavg", "gcfl+ - fedavg"),
    }
    assert scores["gcfl+"]["clusters"] == "2-3"
    assert scores["gcfl+"]["ARI"] == "0.7500 ± 0.3536"
    assert scores["local"]["ARI"] == "-"
    assert scores["gcfl+"]["wall s (median)"] == "62"  # 61.5


def test_runs_on_five_splits_have_a_verdict(tmp_path):
    for s in range(1, 6):
        of_split = {"split_seed": s, "split_hash": f"{s}" * 64}
        held_out = {"config": {"held-out": 0.5}}
        write_run(tmp_path, "local", s, [0.5, 0.5], **of_split, **held_out)
        write_run(tmp_path, "fedavg", s, [0.6, 0.7 + s / 100], **of_split, **held_out)
    _, differences = sheets_of(tmp_path)
    found = differences["fedavg - local"]
    assert found["verdict"] == "shown"
    # +15.5 to +17.5: 2.7764 times the std times the root of 1/5 + 0.25/0.5
    assert found["points [95 %]"] == "+16.50 [+14.66, +18.34]"


def test_of_errors_less_is_a_gain(tmp_path, capsys):
    errors = {"metric": "mae", "larger_is_better": False}
    write_run(tmp_path, "gcfl", 1, [0.5, 0.6], **errors)
    write_run(tmp_path, "local", 1, [0.8, 0.5], **errors)
    write_run(tmp_path, "fedavg", 1, [0.7, 0.7], **errors)
    _, differences = sheets_of(tmp_path)
    found = differences["gcfl - local"]
    assert (found["smallest gain"], found["not worse"]) == ("-0.1000", "1/2")
    assert found["points [95 %]"] == "-10.00 -"
    assert differences["gcfl - fedavg"]["points [95 %]"] == "-15.00 -"
    assert fedgraph(["compare", str(tmp_path), "--markdown"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a point is 0.01 of their unit, and a negative difference is an" in said


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            {"split_hash": "b" * 64},
            "split_seed 123 are of different split_hash: .* gcfl of bbbbbbbbbbbb;",
        ),
        # the same labels may be learned as classes and as numbers
        ({"metric": "mae", "larger_is_better": False}, "different metric: .* of mae;"),
    ],
)
def test_what_cannot_be_subtracted_is_refused(results, capsys, entries, words):
    write_run(results, "gcfl", 1, [0.5, 0.5], **entries)
    assert fedgraph(["compare", str(results)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(f"dataset synthetic.*{words} give only runs of one", said)


def test_a_strangers_folder_commands_no_terminal(tmp_path, capsys):
    hostile = "\x1b[31m\u202e"
    folder = write_run(tmp_path, "fedavg", 1, [0.5, 0.9])
    write_run(tmp_path, "fedavg", 2, [0.5, 0.9])
    summary = json.loads((folder / "summary.json").read_text())
    summary["config"]["optimizer"] = f"mine{hostile}"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert fedgraph(["compare", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert r"mine\x1b[31m\u202e" in out.replace("\n", "")
    assert not set(hostile[:1] + hostile[-1:]) & set(out)


def test_failed_and_unfinished_runs_are_listed(results, capsys):
    write_run(results, "gcfl", 1, [0.5, 0.5], status="failed", error="node 3 vanished")
    (results / "killed").mkdir()
    (results / "killed" / "rounds.csv").write_text("round,client\n")
    (results / "broken").mkdir()
    (results / "broken" / "summary.json").write_text("{")
    assert fedgraph(["compare", str(results), "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "| gcfl |" not in out
    assert "failed: node 3 vanished" in err
    assert "killed: unfinished" in err
    assert "broken/summary.json cannot be read" in err


@pytest.mark.parametrize(
    ("status", "options", "words"),
    [
        ("failed", [], "none of the 1 runs found was completed"),
        (
            "completed",
            ["--metric", "roc-auc"],
            "unknown metric 'roc-auc'. Take one of these",
        ),
        ("completed", ["--figure", "gain.png"], "gain.png was not drawn: no method"),
        ("", [], "no run found"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, capsys, status, options, words):
    if status:
        write_run(tmp_path, "fedavg", 1, [0.7, 0.9], status=status, error="no")
    assert fedgraph(["compare", str(tmp_path), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_newest_of_equal_runs_is_used_and_said(results):
    again = write_run(
        results / "again",
        "gcfl+",
        1,
        [1.0, 1.0],
        when="20270101T000000Z",
        config={"results-dir": "/elsewhere"},
        weights_sha256="1",
    )
    found = find_runs([results, results / "again"])
    used = [r.path for r in found.runs if (r.method, r.seed) == ("gcfl+", 1)]
    assert used == [again.resolve()]
    (said,) = found.left_out
    assert f"newer {again.name}" in said
    assert "DIFFERENT weights" in said


def test_settings_apart_make_rows_apart(results):
    odd = results / "odd"
    write_run(odd, "gcfl+", 1, [0.5, 0.5], config={"gcfl.standardize": True})
    write_run(odd / "short", "gcfl+", 1, [0.5, 0.5], config={"num-server-rounds": 9})
    write_run(odd, "local", 1, [0.1, 0.1], config={"local.epochs": 50})
    write_run(odd, "gcfl", 1, [0.5, 0.5], config={"gcfl.min-round": 5})
    scores, differences = sheets_of(results)
    assert set(scores) == {
        "local",
        "local (epochs=50)",
        "fedavg",
        "gcfl+",
        "gcfl+ (standardize=true)",
        "gcfl+ (num-server-rounds=9)",
        "gcfl (min-round=5)",  # a variant alone is named, too
    }
    # plain self-train stays the baseline
    assert differences["gcfl+ - local"]["smallest gain"] == "+0.0000"


def test_a_default_sets_nothing_apart_on_own_data(tmp_path):
    """Also of a method whose thresholds have no default there."""
    thresholds = ("mean-norm-threshold", "max-norm-threshold", "seq-length")
    own = {f"gcfl.{key}": 2 for key in thresholds}
    for method, value in (("fedavg", False), ("gcfl+", True)):
        config = {"edge-features": value, **own}
        write_run(tmp_path, method, 1, [0.5], dataset="graphs-csv", config=config)
    (group,) = groups_of(tmp_path)
    assert set(group.rows) == {"fedavg (edge-features=false)", "gcfl+"}


def test_runs_that_began_from_other_models_are_other_rows(tmp_path):
    """Even if the path is the same: the model there may have changed."""
    for seed, sha in ((1, "a" * 64), (2, "b" * 64)):
        config = {"init-from": "/abs/model"}
        lineage = [{"sha256": sha}]
        write_run(tmp_path, "fedavg", seed, [0.5], config=config, lineage=lineage)
    groups = groups_of(tmp_path)
    assert [sorted(g.rows) for g in groups] == [
        [f"fedavg (init-from=/abs/model@{c * 12})" for c in "ab"]
    ]


def test_runs_on_other_data_share_no_table_and_replace_nothing(results, capsys):
    """Two files of the same number of rows may have one split hash."""
    one, two = ({"data_sha256": {"0": x * 64, "1": "c" * 64}} for x in "ab")
    first = write_run(results / "one", "gcfl", 1, [0.5, 0.5], **one)
    newer = {"when": "20270101T000000Z", **two}
    second = write_run(results / "two", "gcfl", 1, [0.6, 0.6], **newer)
    found = find_runs([results])
    assert {first.resolve(), second.resolve()} <= {run.path for run in found.runs}
    assert found.left_out == []
    with pytest.raises(FedGraphError, match="are of different data: gcfl of"):
        compare.group_runs(found)
    assert fedgraph(["study", "fgcl", str(results)]) == 2
    assert "are of different data" in capsys.readouterr().err
    # A run that does not tell, e.g. a private one, goes with those that do.
    shutil.rmtree(second)
    (together,) = groups_of(results)
    assert len(together.runs) == 7


def test_the_headline_of_the_task_is_compared(tmp_path, capsys):
    node = {"rules": ["best_val", "final"], "best_val": {"per_client": {"0": 0.9}}}
    write_run(tmp_path, "gcfl", 1, [0.5], **node)
    write_run(tmp_path, "local", 1, [0.4], **node)
    for rule, words in (
        ([], "rule best_val: round with"),
        (["--rule", "final"], "rule final: model of the last round"),
    ):
        assert fedgraph(["compare", str(tmp_path), "--markdown", *rule]) == 0
        assert f"Note: {words}" in capsys.readouterr().out
    write_run(tmp_path, "fedavg", 1, [0.4], rules=["final"])  # a share of the clients
    (group,) = groups_of(tmp_path)
    assert group.headline == "final"


def test_paper_stands_beside_ours(tmp_path, capsys):
    for seed in (1, 2):
        write_run(tmp_path, "local", seed, [0.5] * 10, dataset="PROTEINS")
        write_run(tmp_path, "gcfl+", seed, [0.6] * 10, dataset="PROTEINS")
    assert fedgraph(["compare", str(tmp_path), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| gcfl+ | 1, 2 | 200 | 0.6000 ± 0.0000 |" in out
    scores, differences = sheets_of(tmp_path)
    assert scores["gcfl+"]["paper"] == "0.7776 ± 0.037"
    assert scores["local"]["paper"] == "0.7213 ± 0.058"
    found = differences["gcfl+ - local"]
    assert (found["smallest gain"], found["paper's smallest"]) == ("+0.1000", "-0.0154")
    assert (found["not worse"], found["paper's not worse"]) == ("10/10", "9")
    assert found["paper"] == "+5.63"
    # Under the paper's own rule its score stands beside that one.
    scores, differences = sheets_of(tmp_path, "best_snapshot")
    assert scores["gcfl+"]["paper"] == "0.7776 ± 0.037"
    assert differences["gcfl+ - local"]["paper"] == "+5.63"
    for words in (
        "Protocol: rule final",
        "Seeds 1, 2 on split aaaaaaaaaaaa (split seed 123)",
        "PROTEINS: test accuracy, 10 clients",
        "GCFL and GCFL+ by best_snapshot",
        "tables 3 and 4",
    ):
        assert words in " ".join(out.split())


@pytest.mark.parametrize(
    ("method", "key", "value", "is_left_out"),
    [
        ("gcfl+", "num-clients", 2, True),
        ("fedavg", "shared-group", "all", True),  # the paper averages the middle
        ("local", "shared-group", "all", False),  # which shares nothing
    ],
)
def test_paper_is_left_out_for_other_settings(
    tmp_path, method, key, value, *, is_left_out
):
    others = {"shared-group": "convs"} if method in ("fedavg", "fedprox") else {}
    chosen = {"dataset": "PROTEINS", "config": {**others, key: value}}
    write_run(tmp_path, method, 1, [0.6, 0.6], **chosen)
    (group,) = groups_of(tmp_path)
    report = compare.compare(group, "final")
    (sheet,) = [part for part in report.parts if not isinstance(part, str)]
    assert ("paper" not in sheet) == is_left_out


def test_rows_with_other_settings_are_named_after_them(tmp_path):
    write_run(tmp_path, "local", 1, [0.5, 0.5])
    write_run(tmp_path, "gcfl", 1, [0.5, 0.5], config={"learning-rate": 0.01})
    (group,) = groups_of(tmp_path)
    assert [*group.rows] == ["local", "gcfl (learning-rate=0.01)"]


def test_gains_are_paired_by_seed_and_drawn(results, monkeypatch):
    write_run(results, "fedavg", 3, [0.6, 0.6])  # has no partner
    kept = []
    monkeypatch.setattr(compare, "gain_figure", lambda *given: kept.append(given))
    monkeypatch.setattr(compare, "save", lambda _, path: path)
    png = results / "gain.png"
    assert fedgraph(["compare", str(results), "--figure", str(png)]) == 0
    ((panels, dataset, rule, metric, unit),) = kept
    assert (dataset, rule, metric, unit.name) == (
        *("synthetic", "final", "accuracy", "points"),
    )
    assert panels["fedavg"] == [
        pytest.approx({0: 0.1, 1: -0.3}),
        pytest.approx({0: 0.1, 1: -0.3}),
    ]
    monkeypatch.undo()
    assert fedgraph(["compare", str(results), "--figure", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_wide_table_becomes_several_that_fit(capsys):
    headings = ["row", *(f"measure number {k}" for k in range(9))]
    cells = [["fedavg", *(f"0.{k}234 ± 0.0123" for k in range(9))]]
    sheet = pd.DataFrame(cells, columns=headings)
    print_terminal(Report(title="title", parts=[sheet]), Console(width=80))
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert all(text in told for text in [*headings, *cells[0]])  # none is broken
    assert told.count("fedavg") == 3
    assert fitting(sheet, 500) == [list(range(10))]


def beside(accuracy: list[float], f1: list[float]) -> dict[str, object]:
    """Entries of a run whose macro-F1 differs from its accuracy."""
    row = {
        "mean": sum(accuracy) / 2,
        "per_client": {str(c): a for c, a in enumerate(accuracy)},
        "also": {"macro-f1": sum(f1) / 2},
        "also_per_client": {"macro-f1": {str(c): v for c, v in enumerate(f1)}},
    }
    return {"final": row}


def test_another_metric_is_compared_only_if_asked_for(tmp_path, capsys):
    for method, f1 in (("local", [0.2, 0.4]), ("fedavg", [0.5, 0.3])):
        more = beside([0.7, 0.9], f1)
        write_run(tmp_path, method, 1, [0.7, 0.9], dataset="PROTEINS", **more)
    given = [str(tmp_path), "--markdown"]
    assert fedgraph(["compare", *given]) == 0
    told = capsys.readouterr().out
    assert "macro-f1" not in told
    assert "0.8000" in told
    png = tmp_path / "gain.png"
    assert (
        fedgraph(["compare", *given, "--metric", "macro-f1", "--figure", str(png)]) == 0
    )
    out = capsys.readouterr().out
    assert "## PROTEINS: test macro-f1" in out
    assert "| fedavg | 1 | 200 | 0.4000 |" in out
    assert "0.8000" not in out
    assert "Paper:" not in out  # which states accuracies
    # per client 0.5 - 0.2 and 0.3 - 0.4, mean 0.1
    assert "| 1 | +10.00 - | +10.0 | 1 split: no verdict | -0.1000 | 1/2 |" in out
    assert png.is_file()


def test_clients_held_out_from_training_have_a_column(tmp_path):
    apart = {"mean": 0.25, "per_client": {"2": 0.25}, "also": {"macro-f1": 0.125}}
    more = beside([0.7, 0.9], [0.5, 0.3])
    write_run(tmp_path, "fedavg", 1, [0.7, 0.9], held_out_clients=apart, **more)
    write_run(tmp_path, "moon", 1, [0.7, 0.9], held_out_clients=None, **more)
    scores, _ = sheets_of(tmp_path)
    assert scores["fedavg"]["held-out clients"] == "0.2500"
    assert scores["moon"]["held-out clients"] == "-"
    (group,) = groups_of(tmp_path)
    sheet = compare.compare(group, "final", "macro-f1").parts[0]
    assert "0.1250" in [*sheet.iloc[0]]


def test_attacked_runs_are_left_out_unless_asked_for(tmp_path, capsys):
    write_run(tmp_path, "fedavg", 1, [0.7, 0.9])
    attacked = {"says": "attack.kind sign, by clients 1", "shares": {}}
    chosen = {"attack.kind": "sign", "attack.clients": "1"}
    write_run(tmp_path, "fedavg", 2, [0.5, 0.1], attacked=attacked, config=chosen)
    assert [run.seed for run in find_runs([tmp_path]).runs] == [1]
    assert fedgraph(["compare", str(tmp_path)]) == 0
    assert "sign, by clients 1; `compare --attacked` reads" in capsys.readouterr().err
    assert fedgraph(["compare", str(tmp_path), "--attacked", "--markdown"]) == 0
    assert "| fedavg (clients=1, kind=sign) |" in capsys.readouterr().out
