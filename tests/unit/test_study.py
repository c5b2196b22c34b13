"""Studies: results as rows of a file, paired differences, tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.errors import ConfigError, FedGraphError
from fedgraph_flwr.resolve import defaults, resolve
from simulations import study
from simulations.compare_runs import EXECUTION_KEYS, find_runs
from simulations.intervals import bootstrap_interval
from simulations.presets import load_preset
from simulations.study_file import FOLDER, load_study
from simulations.study_runs import Result, from_run, merge, read, row_name, write
from simulations.study_stats import pair


def result(row="a", seed=1, score=0.5, **kw):
    entries = {
        "dataset": "BACE",
        "split_seed": seed,
        "split_hash": f"hash{seed}",
        "rounds": 40,
        "final": score - 0.1,
        "best_val_trained": math.nan,
        "validation": 0.75,
        "edge_epsilon": 2.0,
        "weights": "w",
        "commit": "c",
        "wall_s": 1.5,
    }
    return Result(row=row, seed=seed, best_val=score, **{**entries, **kw})


def rows(scores):
    return [result(row, s, v) for row, of in scores.items() for s, v in of.items()]


def test_differences_are_paired_by_both_seeds_and_the_split():
    ours = [result("a", s, v) for s, v in {1: 0.7, 2: 0.6, 3: 0.9}.items()]
    theirs = [result("b", s, v) for s, v in {1: 0.6, 3: 0.85, 2: 0.58}.items()]
    found = pair(ours, theirs, "best_val")
    assert np.allclose(found.values, [10, 2, 5])
    expected = stats.ttest_1samp(found.values, 0).confidence_interval(0.95)
    assert np.allclose(found.interval("t"), expected)
    # Nadeau and Bengio: 1/3 becomes 1/3 + 1/8.
    wider = found.mean + (np.array(expected) - found.mean) * math.sqrt(11 / 8)
    assert np.allclose(found.interval("corrected-t"), wider)
    other = [result("b", 1, 0.6, split_seed=9), result("b", 2, 0.5, split_hash="x")]
    assert pair(ours, other, "best_val").num_pairs == 0
    single = pair(ours, theirs[:1], "final")
    assert single.num_pairs == 1
    low, high = found.interval("bootstrap")
    assert 2 <= low < found.mean < high <= 10
    assert high - low < expected.high - expected.low
    assert bootstrap_interval([1.0, 2.0]) is None
    assert math.isnan(single.interval("t")[0])
    assert np.allclose(found.by_split(), found.values)  # each has a split of its own
    assert single.by_split() == []


def test_differences_on_the_same_split_are_told_together():
    scores = {(1, 7): 0.7, (2, 7): 0.9, (1, 5): 0.5, (2, 5): 0.3}

    def on_splits(row, scores):
        return [
            result(row, s, v, split_seed=k, split_hash=f"hash{k}")
            for (s, k), v in scores.items()
        ]

    found = pair(
        on_splits("a", scores), on_splits("b", dict.fromkeys(scores, 0)), "best_val"
    )
    assert np.allclose(found.by_split(), [40, 80])
    # Two splits are two trials, however many seeds each has.
    expected = stats.ttest_1samp([40, 80], 0).confidence_interval(0.95)
    assert np.allclose(found.interval("split-t"), expected)
    assert np.ptp(found.interval("t")) < np.ptp(expected)
    on_one = pair(
        on_splits("a", {(1, 7): 0.7, (2, 7): 0.9}),
        on_splits("b", {(1, 7): 0.5, (2, 7): 0.5}),
        "best_val",
    )
    assert math.isnan(on_one.interval("split-t")[0])
    single = on_splits("a", {(1, 7): 0.7, (2, 5): 0.9})
    each = pair(single, on_splits("b", {(1, 7): 0.5, (2, 5): 0.6}), "best_val")
    assert np.allclose(each.interval("split-t"), each.interval("t"))


def test_results_survive_their_file_and_new_ones_replace_old(tmp_path):
    path = tmp_path / "new" / "runs.csv"
    kept = [
        result("b, c (x=1)", 2, 0.25, best_val_trained=0.3, start=0.25),
        result("a", 1, 0.5, best_val_trained=0.4, start=0.25),
    ]
    write(path, kept)
    assert read(path) == sorted(kept, key=lambda r: r.key)
    newer = result("a", 1, 0.75)
    assert merge(kept, [newer]) == [kept[0], newer]
    older = path.read_text().replace("wall_s,data,start", "wall_s")
    path.write_text(older.replace("1.5,,0.250000", "1.5"))  # before there were these
    assert [(r.key, r.data, math.isnan(r.start)) for r in read(path)] == [
        (r.key, "", True) for r in sorted(kept, key=lambda r: r.key)
    ]
    path.write_text("row,seed\na,1\n")
    with pytest.raises(FedGraphError, match=r"runs.csv is not a file of results"):
        read(path)


def test_results_on_other_data_replace_none_and_are_refused():
    known = [result("a", 1, 0.5, data="one"), result("b", 1, 0.4)]
    for row in ("a", "b", "c"):
        with pytest.raises(FedGraphError, match=rf"a of one, {row} of two"):
            merge(known, [result(row, 1, 0.6, data="two")])
    assert len(merge(known, [result("c", 1, 0.6), result("a", 2, 0.6, data="x")])) == 4


@pytest.mark.parametrize("name", ["fclg", "fedgkd", "fgcl", "spreadgnn"])
def test_pages_of_results_say_what_their_file_of_runs_says(name):
    docs = FOLDER.parents[1] / "docs"
    text, _ = study.report(load_study(name), read(docs / "runs" / f"{name}.csv"))
    said = set((docs / f"results-{name}.md").read_text(encoding="utf-8").splitlines())
    printed = [line for line in text.splitlines() if line.startswith(("|", "Protocol"))]
    assert [line for line in printed if line not in said] == []


def settings(preset, **overrides):
    config = resolve({**defaults(), **load_preset(preset), **overrides}).to_config()
    return {k: v for k, v in config.items() if k not in EXECUTION_KEYS}


def test_a_row_is_named_after_the_nearest_preset():
    def name(preset, **overrides):
        return row_name("fgcl", "BACE", settings(preset, **overrides))

    for preset in (
        "fgcl-gcn-bace-1",
        "fed-noise-lightgcn-bace-20",
        "no-edges-gcn-bace",
    ):
        assert name(preset) == preset
        assert name(preset, **{"seed": 7, "split-seed": 3}) == preset
    assert (
        name("fgcl-gcn-bace-1", **{"fgcl.temperature": 0.2})
        == "fgcl-gcn-bace-1 (fgcl.temperature=0.2)"
    )
    assert row_name("gcfl", "BACE", {}) == "gcfl on BACE"


def test_a_run_from_before_a_key_was_there_has_its_default():
    known = settings("self-weight-cora-10")
    assert row_name("self-weight", "Cora", known) == "self-weight-cora-10"
    assert known.pop("self-weight.proximal-lambda") != 0
    found = row_name("self-weight", "Cora", known)
    assert found == "self-weight-cora-10 (self-weight.proximal-lambda=0.0)"


def test_a_run_becomes_a_result(run):
    folder = run("fedavg", **{"num-server-rounds": 2}).path
    (one,) = find_runs([folder]).runs
    found = from_run(one)
    assert (found.rounds, found.seed, found.dataset) == (2, one.seed, one.dataset)
    assert found.final == one.summary["final"]["mean"]
    assert found.best_val == one.summary["best_val"]["mean"]
    assert found.validation == one.summary["best_val"]["validation"]
    assert one.summary["weights_sha256"].startswith(found.weights)
    assert found.edge_epsilon == 0
    assert found.data == ""  # toys have no files


def test_a_result_knows_its_own_start(run):
    finished = run("fclg", **{"num-server-rounds": 1, "embedding.evaluation": "pooled"})
    (one,) = find_runs([finished.path]).runs
    at = ("0", "-1", "all", "post_aggregation", "accuracy")
    assert from_run(one).start == finished.values("accuracy")[at] > 0
    (finished.path / "rounds.csv").unlink()
    assert math.isnan(from_run(one).start)


def test_a_row_may_be_compared_with_its_own_start(tmp_path):
    (tmp_path / "own.toml").write_text(
        SMALL.replace('"b-{data}"]]', '"own round 0"]]').replace("best_val", "final")
    )
    given = [
        result("a-x", 1, 0.8, start=0.5),  # final: 0.7
        result("a-x", 2, 0.6, start=0.6),
        result("a-x", 3, 0.6),  # of a file without starts
    ]
    text, _ = study.report(load_study("own", tmp_path), given)
    assert "| a-x - own round 0 | 2 | +5.00 [" in text
    assert "| own round 0 |" not in text  # not known of all
    text, _ = study.report(load_study("own", tmp_path), given[:2])
    assert "0.5500 ± 0.0707 |" in next(t for t in text.splitlines() if "| a-x |" in t)


SMALL = """
paper = "somebody"
rule = "best_val"
[[table]]
title = "{data}"
for = [{ data = "x" }, { data = "y" }]
rows = ["a-{data}", "b-{data}", "c-{data}"]
differences = [["a-{data}", "b-{data}"]]
[targets]
a-x = 0.9
b-x = 0.8
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return load_study("small", tmp_path)


def test_tables_show_scores_differences_and_what_is_missing(small):
    given = rows({"a-x": {1: 0.7, 2: 0.6}, "b-x": {1: 0.6, 2: 0.58}, "z": {1: 0.1}})
    text, unused = study.report(small, given)
    assert unused == ["z"]
    assert "### y" not in text
    line = "| a-x | 2 | 40 | 2 | 0.6500 ± 0.0707 | 0.5500 ± 0.0707 | 0.7500 ± 0.0000 |"
    assert f"{line} 0.9000 |" in text
    assert "| a-x - b-x | 2 | +6.00 [-44.82, +56.82] | +10.0 +2.0 | +10.00 |" in text
    assert "Not run: c-x." in text
    assert "1/1: hash1, 2/2: hash2" in text
    assert "rule best_val" in text


def test_every_study_of_the_project_names_presets():
    for path in FOLDER.glob("*.toml"):
        found = load_study(path.stem)
        for row in {r for table in found.tables for r in table.rows}:
            preset, _, other = row.partition(" (")
            config = {**defaults(), **load_preset(preset)}
            assert not other or all(
                part.partition("=")[0] in config for part in other[:-1].split(", ")
            )
        for row in found.targets:
            load_preset(row.partition(" (")[0])


def test_the_program_adds_to_its_file_and_prints_from_it_alone(run, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    name = "fgcl-gcn-bace-1"
    write(path, [result(name, 1, 0.5), result(name, 2, 0.7)])
    assert study.main(["fgcl", "--csv", str(path)]) == 0
    scores = "0.6000 ± 0.1414 | 0.5000 ± 0.1414 | 0.7500 ± 0.0000 | 0.6665"
    assert f"| {name} | 2 | 40 | 2 | {scores} |" in capsys.readouterr().out
    folder = run("fedavg", **{"num-server-rounds": 1}).path
    assert study.main(["fgcl", str(folder), "--csv", str(path)]) == 0
    assert len(read(path)) == 3
    assert "not used: fedavg" in capsys.readouterr().err
    assert study.main(["fgcl"]) == 2
    assert "give folders of runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('rule = "best_val"', 'rule = "luck"'), "rule is 'luck'"),
        (('rule = "best_val"', 'rule = "final"\ninterval = "z"'), "interval is 'z'"),
        (('"b-{data}", "c', '"c'), "subtracts 'b-x', which is none of its rows"),
        (('paper = "somebody"', ""), "not a study"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path, change, words):
    (tmp_path / "bad.toml").write_text(SMALL.replace(*change))
    with pytest.raises(ConfigError, match=words):
        load_study("bad", tmp_path)
