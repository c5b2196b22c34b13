"""The benchmark: what it concludes, what it never runs twice, what it writes."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import toys

from clients.store import default_state_dir
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.files import project_root
from simulations.benchmark import run_suite as benchmark
from simulations.benchmark import suite as kept_runs
from simulations.benchmark.output import latex, page
from simulations.benchmark.recommend import recommend
from simulations.benchmark.suite import (
    FOLDER,
    SuiteMethod,
    known_results,
    load_suite,
    same_code,
    trials,
)
from simulations.benchmark.verdict import (
    MAJORITY,
    START,
    Duel,
    sentence,
)
from simulations.cli import main as fedgraph
from simulations.markup import Report
from simulations.tables.frame import read, records, table
from simulations.tables.stats import Difference, ranks

SEEDS = (1, 2, 3, 4, 5)
TINY = """
title = "Tiny"
rule = "best_val"
pairs = [[1, 1], [2, 2]]
settings = { num-server-rounds = 1, patience = 0, local-epochs = 1 }
[[data]]
name = "planted"
drawn = true
set = { dataset = "planted" }
[method.fedavg]
role = "rival"
set = { method = "fedavg" }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """Read the suite above, with as many pairs of seeds as asked for."""

    def make(pairs: int) -> Any:
        path = tmp_path / "tiny.toml"
        of_seeds = str([[s, s] for s in range(1, pairs + 1)])
        path.write_text(TINY.replace("[[1, 1], [2, 2]]", of_seeds))
        return load_suite(str(path))

    return make


def results(row: str, scores: list[float]) -> Any:
    """Make a table of runs of one row: seeds and splits from 1, one score each."""
    same = {"row": row, "dataset": "planted", "rounds": 1}
    return table(
        {**same, "seed": s, "split_seed": s, "split_hash": str(s), "best_val": v}
        for s, v in enumerate(scores, 1)
    )


def participants(suite: Any, names: str) -> Any:
    """Without the controls that every suite has."""
    found = benchmark.participants(suite, names)
    return [m for m in found if m.name not in ("no-edges", "centralized")]


def difference(*values: float) -> Difference:
    return Difference(values, tuple(map(str, SEEDS[: len(values)])))


def test_a_sentence_counts_what_is_shown_against_trained_methods():
    good, none = difference(1, 2, 1, 2, 1.5), difference(0, 0, 0, 0, 0)
    duels = [
        Duel(candidate="a", opponent="b", data=d, difference=x, held_out=0, floor=0.5)
        for d, x in (("D", good), ("E", none))
    ]
    trivial = [replace(duels[0], opponent=name) for name in (START, MAJORITY)]
    assert sentence("a", duels + trivial, 1) == (
        "a in 3 comparisons with trained methods: 1 better, 0 worse, 1 no difference,"
        " 0 not separated, 0 no verdict, 1 incomplete."
    )


def test_what_is_missing_has_no_verdict_and_is_not_claimed(tiny):
    """One failed run of a rival, or all of them: six pairs, of which five are left."""
    suite = tiny(6)
    methods = participants(suite, "fedprox,local")
    chosen = [(t, p) for t in trials(suite, methods) for p in suite.pairs]

    def words(fedavg: int, local: int = 6) -> str:
        found = {
            # differences must vary to be judged
            name: results(name, [0.45, *(score + 0.01 * (s % 3) for s in range(2, 7))])
            for name, score in (("fedprox", 0.9), ("local", 0.5), ("fedavg", 0.4))
        }
        found["fedavg"] = found["fedavg"][:fedavg]
        found["local"] = found["local"][:local]
        reports, duels = benchmark.make_reports(
            suite, methods, chosen, {"planted": found}, {}
        )
        assert all(d.difference.num_pairs == 6 for d in duels)
        return " ".join(part for part in reports[0].parts if isinstance(part, str))

    head = "fedprox in 2 comparisons with trained methods: "
    assert f"{head}2 better" in words(fedavg=6)
    assert "4 of 4 verdicts find a difference; about 0.2 may do so by chance" in words(
        6
    )
    assert "INCOMPLETE" not in words(fedavg=6)
    for count in (5, 0):
        found = words(fedavg=count)
        assert f"{head}1 better" in found
        assert "0 no verdict, 1 incomplete." in found
        assert "INCOMPLETE, no verdict on: fedavg on planted." in found
    assert f"{head}0 better" in words(fedavg=0, local=5)


@pytest.mark.parametrize(("idle", "is_judged"), [(0, True), (1, True), (2, False)])
def test_a_method_that_did_nothing_of_its_own_is_not_judged(tiny, idle, *, is_judged):
    """Six pairs, of which five have to be left."""
    suite = tiny(6)
    methods = participants(suite, "fedprox")
    rest = [s % 3 / 100 for s in range(2, 7)]
    found = {
        "fedprox": results("fedprox", [0.95, *(0.9 + v for v in rest)]),
        "fedavg": results("fedavg", [0.41, *(0.4 + v for v in rest)]),
    }
    found["fedavg"].loc[: idle - 1, "inert"] = "never split"
    reports, (duel,) = benchmark.make_reports(
        suite, methods, [], {"planted": found}, {}
    )
    assert duel.word == ("better" if is_judged else "no verdict")
    assert ("1 no verdict" in reports[0].parts[0]) == (not is_judged)
    assert ("1 of 1 verdicts" in reports[0].parts[2]) == is_judged
    notes = " ".join(part for part in reports[-1].parts if isinstance(part, str))
    assert ("fedavg never split (1 of 6 runs)." in notes) == (idle == 1)


@pytest.mark.parametrize("held_out", [0.0, 0.5])
def test_splits_of_one_data_set_widen_intervals_and_fewer_than_five_judge_nothing(
    tiny, held_out
):
    suite = tiny(6)
    settings = {"dataset": "planted", "held-out": 0.5}
    data = replace(suite.data[0], drawn=not held_out, settings=settings)
    suite = replace(suite, data=(data,))
    methods = participants(suite, "local")
    of = {"local": [0.9, 0.92, 0.91, 0.9, 0.93, 0.9], "fedavg": [0.5] * 6}
    rows = {name: results(name, scores) for name, scores in of.items()}
    chosen = [(t, p) for t in trials(suite, methods) for p in suite.pairs]

    def judged():
        made = benchmark.make_reports(suite, methods, chosen, {"planted": rows}, {})
        return made[1][0], made[0][0].parts[2]

    duel, _ = judged()
    assert (duel.word, duel.held_out) == ("better", held_out)
    for of_method in rows.values():  # six pairs of seeds, four splits
        of_method["split_hash"] = ["1", "1", "2", "2", "3", "4"]
    duel, advice = judged()
    assert duel.word == "no verdict"
    assert advice == "planted: no advice, of 4 splits; take 5 or more."


def test_each_method_tries_as_many_settings_in_each_pair_and_keeps_its_best(tiny):
    """Grids of a method's own keys, too; the first values are always tried."""
    lr, mu = (0.1, 0.01, 0.001), (0.5, 0.1)
    suite = replace(tiny(2), grid={"learning-rate": lr}, tries=3)
    own = SuiteMethod(
        name="p", role="rival", settings={}, grid={"fedprox.mu": mu, "local-epochs": mu}
    )
    tried = suite.points(own)
    first = {"learning-rate": 0.1, "fedprox.mu": 0.5, "local-epochs": 0.5}
    assert (tried[0], len(tried), suite.points(own)) == (first, 3, tried)
    fixed = replace(suite.methods[0], settings={"learning-rate": 1.0})
    assert suite.points(fixed) == [{}]
    assert [p["learning-rate"] for p in suite.points(suite.methods[0])] == [*lr]

    planned = list(trials(suite, [suite.methods[0]]))
    best = {(1, 1): 2, (2, 2): 0}
    known: Any = {
        (t.row, *seeds): {"validation": float(k == best[seeds])}
        for k, t in enumerate(planned)
        for seeds in suite.pairs
    }
    chosen = benchmark.chosen_trials(suite, planned, known)
    assert [(t.point["learning-rate"], p) for t, p in chosen] == [
        (0.001, (1, 1)),
        (0.1, (2, 2)),
    ]


def test_no_difference_below_that_of_fedavg_from_itself_is_judged(tiny):
    suite = tiny(len(SEEDS))
    methods = participants(suite, "fedprox")
    of = list(trials(suite, methods))
    scores = {"fedprox": 0.83, "fedavg": 0.80}
    known: Any = {}
    for t in of:
        jitter = (0.0, 0.001, 0.002, 0.001, 0.003) if t.method == "fedprox" else [0] * 5
        made = results(t.row, [scores[t.method] + j for j in jitter])
        known |= {(t.row, r["seed"], r["seed"]): r for r in records(made)}
    chosen = [(t, p) for t in of for p in suite.pairs]
    moved = benchmark.moved_starts(suite, chosen)
    assert len(moved) == 20
    assert {t.config["start-noise"] for t, _ in moved} == {1, 2, 3, 4}
    words = []
    for size in (0.01, 0.05):
        for t, (seed, _) in moved:
            up = size * (-1) ** seed
            r = records(results(t.row, [0.0] * (seed - 1) + [0.80 + up]))[-1]
            known[t.row, seed, seed] = r
        found = benchmark.collect(suite, chosen, known)
        floors = benchmark.noise_floors(suite, moved, known, found)
        assert floors["planted"] == pytest.approx(100 * size, abs=0.4)
        _, (duel,) = benchmark.make_reports(suite, methods, chosen, found, floors)
        words.append(duel.word)
    assert words == ["better", "not separated"]


def test_the_simplest_method_that_nothing_beats_is_recommended():
    """Scores of five pairs; differences have to vary to be judged."""

    def words(fedavg, best, *, floor=0.1):
        wave = (0.0, 0.001, -0.001, 0.002, -0.002)
        scores = {"local": 0.5, "fedavg": fedavg, "best": best, "centralized": 0.9}
        rows = {
            name: results(name, [score + k * w for w in wave])
            for k, (name, score) in enumerate(scores.items())
        }
        for name, of in rows.items():  # clients decide, where they are known
            up = 0.0 if name == "local" else 0.2
            of["best_val per client"] = [{0: v + up, 7: v - up} for v in of["best_val"]]
        how = {"rule": "best_val", "held_out": 0.0, "floor": floor}
        return recommend("D", ["fedavg", "best"], rows, **how)

    assert words(0.6, 0.6).startswith("D: take fedavg. It is better than training")
    assert words(0.6, 0.7).startswith("D: take best. ")
    assert "on average clients 7 lose; all data in one place: +20" in words(0.6, 0.7)
    assert "clients 7 lose" not in words(0.8, 0.8)
    assert words(0.6, 0.7, floor=1.5).endswith("more; noise floor 1.50.")
    alone = words(0.5, 0.5)
    assert alone.startswith("D: train alone. No method is shown to be better; the")
    assert "in 80 % of such comparisons; all data in one place: +40" in alone
    assert words(0.6, 0.7, floor=30).startswith("D: train alone.")


@pytest.mark.parametrize(
    ("metric", "scores", "floor"),
    [
        ("accuracy", {"best_val:accuracy-of-commonest": 0.85}, 0.85),
        ("roc-auc", {"final": 0.7}, 0.5),
    ],
)
def test_a_constant_prediction_stands_beside_every_method(tiny, metric, scores, floor):
    suite = tiny(len(SEEDS))
    methods = participants(suite, "fedavg")
    trial = next(trials(suite, methods))
    chosen = [(trial, p) for p in suite.pairs]
    of_all = results(trial.row, [0.9 + 0.01 * s for s in SEEDS])
    known = {
        (one["row"], one["seed"], one["seed"]): {**one, "metric": metric, **scores}
        for one in records(of_all)
    }
    found = benchmark.collect(suite, chosen, known)
    reports, (duel,) = benchmark.make_reports(suite, methods, chosen, found, {})
    assert (duel.opponent, duel.word) == ("majority", "better")
    expected = [100 * (0.9 + 0.01 * s - floor) for s in SEEDS]
    assert duel.difference.values == pytest.approx(expected)
    sheet = next(p for p in reports[-1].parts if not isinstance(p, str))
    assert ["majority", "5", "0", f"{floor:.4f} ± 0.0000"] == [*sheet.iloc[1]][:4]
    assert "majority (control, trains nothing)" in str(reports[0].parts)


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ('dataset = "QM8"', (), "larger is better, got mae of fedavg on QM8; compare"),
        (
            'dataset = "planted", client-fraction = 0.5',
            (),
            "fedavg on planted report only final",
        ),
        ('dataset = "planted"', ("--methods", "moon,moon"), "each once"),
        ('dataset = "planted"', ("--methods", "moon"), "'moon' fits no data set of"),
        ('dataset = "planted"', ("--keep",), "with that of abc+dirty; commit your"),
        ('dataset = "planted"', ("--results", "README.md"), "'--results': Directory"),
    ],
)
def test_what_makes_no_benchmark_is_refused_before_any_run(
    tmp_path, monkeypatch, capsys, settings, options, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept_runs, "git_commit", lambda: "abc+dirty")
    Path("README.md").write_text("# Mine\n")
    Path("tiny.toml").write_text(TINY.replace('dataset = "planted"', settings))
    given = ["tiny.toml", "--methods", "fedavg", "--results", "runs", *options]
    assert fedgraph(["benchmark", *given]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()
    assert Path("README.md").read_text() == "# Mine\n"


def test_ranks_and_critical_difference_are_those_of_demsar():
    # Demšar 2006, Sec. 3.2.2: k = 4 and N = 14 have the critical difference 1.25
    scores = {str(d): {"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.1} for d in range(14)}
    found = ranks(scores)
    assert found is not None
    assert dict(found.mean) == {"a": 1.0, "b": 2.5, "c": 2.5, "d": 4.0}
    assert found.critical == pytest.approx(1.25, abs=0.005)
    assert found.p_value < 0.001
    assert ranks({"D": {"a": 1.0, "b": 0.0}}) is None


def test_suites_that_cannot_be_read_are_refused(tmp_path):
    for old, new, words in (
        ('"best_val"', '"best_test"', "rule is 'best_test'"),
        ('"rival"', '"friend"', "role is 'friend'"),
        ("[[1, 1], [2, 2]]", "[[1, 1], [1, 1]]", "twice"),
        ("[[1, 1], [2, 2]]", "[]", "must not be empty"),
        ("title", "titel", "not a suite"),
        ("drawn = true", 'interval = "t"', "not a suite"),
    ):
        (tmp_path / "bad.toml").write_text(TINY.replace(old, new))
        with pytest.raises(ConfigError, match=words):
            load_suite(str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match=r"one of few, graphs, .*, got 'none'"):
        load_suite("none")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_every_trial_of_a_suite_can_be_run(name):
    suite = load_suite(name)
    found = list(trials(suite, list(suite.methods)))
    places = sum(len(m.only or suite.data) for m in suite.methods)
    assert len(found) >= places * min(suite.tries or 1, 2)
    changed = replace(found[0], config={**found[0].config, "hidden-dim": 7})
    assert changed.row != found[0].row


def test_results_of_changed_code_are_not_taken(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=b"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        done = subprocess.run(command, capture_output=True, check=True)
        return done.stdout.decode().strip()

    for name in ("clients", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")[:12]
    monkeypatch.setattr(kept_runs, "project_root", lambda: tmp_path)
    for name, is_same in (("docs", True), ("clients", False)):
        (tmp_path / name / "a.py").write_text("2")
        same_code.cache_clear()
        assert same_code(commit) is is_same
        assert not any(map(same_code, ("", "unknown", f"{commit}+", "0123456789ab")))
    same_code.cache_clear()


def test_results_on_other_files_are_not_mixed(tiny):
    """Of a folder in which older runs read files that have changed since."""
    suite = tiny(2)
    planned = list(trials(suite, participants(suite, "local")))
    of_all = {"dataset": "planted", "rounds": 1, "split_hash": "new", "data": "new"}
    known = {
        (t.row, *pair): {"row": t.row, "seed": pair[0], "split_seed": pair[1], **of_all}
        for t in planned
        for pair in suite.pairs
    }
    benchmark.check_same_data(planned, known)
    key = next(k for k in known if k[0].startswith("fedavg") and k[1:] == (2, 2))
    for name, words in (
        ("split_hash", "planted, seed 2, split_seed 2 are of different split_hash"),
        ("data", "planted are of different data"),
    ):
        other = {**known, key: {**known[key], name: "old"}}
        with pytest.raises(FedGraphError, match=words):
            benchmark.check_same_data(planned, other)


def test_words_are_escaped():
    sheet = pd.DataFrame({"a_b": ["[0] & <x>"]})
    reports = [Report(title="50 %", parts=[sheet, "#1 <y>"])]
    found = latex(reports)
    assert r"a\_b" in found
    assert r"[0] \& <x>" in found
    assert r"\caption{50 \%}" in found


def test_each_kept_suite_has_its_page():
    runs = project_root() / "docs" / "runs"
    for rows in runs.glob("benchmark-*.csv"):
        text = rows.with_suffix(".md").read_text()
        (source,) = (line for line in text.splitlines() if line.startswith("Rows: "))
        named = source.partition("code of ")[2].rstrip(".").split(", ")
        assert {*named} <= {*read(rows)["commit"]}
    assert page("T", [Report(title="R", parts=["Words."])], "Rows: x.") == (
        "# T\n\nRows: x.\n\n### R\n\nWords.\n"
    )


def folders(results: Path) -> set[Path]:
    return {path.parent for path in results.rglob("summary.json")}


@pytest.mark.slow  # half a minute: three benchmarks of four runs
def test_a_killed_benchmark_goes_on(tmp_path):
    suite = str(tmp_path / "tiny.toml")
    Path(suite).write_text(TINY.replace("settings =", 'also = ["roc-auc"]\nsettings ='))
    results, whole = tmp_path / "runs", tmp_path / "whole"
    arguments = [suite, "--methods", "examples.placebo:METHOD", "--results"]
    command = [sys.executable, "-m", "simulations.cli", "benchmark", *arguments]
    command += [str(results), "--jobs", "2"]
    with subprocess.Popen(
        command, cwd=project_root(), stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and not folders(results):
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children()
        process.kill()
    assert len(workers) == 3  # one tracks resources
    assert psutil.wait_procs(workers, 20)[1] == []
    before = folders(results)
    assert before

    assert fedgraph(["benchmark", *arguments, str(results)]) == 0
    after = folders(results)
    assert before < after
    found = known_results("tiny", results)
    assert len(found) == 2 * 4 + 20  # two controls beside, and the noise floor
    fields = ("wall_s", "edge_epsilon")
    numbers = [(k, v) for r in found.values() for k, v in r.items() if k not in fields]
    scores = [v for _, v in numbers if isinstance(v, float)]
    assert scores == [float(f"{s:.6f}") for s in scores]  # as kept rows have them

    assert fedgraph(["benchmark", *arguments, str(results)]) == 0
    assert folders(results) == after
    assert fedgraph(["benchmark", *arguments, str(whole)]) == 0
    for folder in folders(whole):  # what a run leaves for a resume is not kept
        assert not (default_state_dir() / folder.name).exists()
    undisturbed = known_results("tiny", whole)
    alike = ("weights", "best_val", "final", "MB")
    assert {k: [r[a] for a in alike] for k, r in found.items()} == {
        k: [r[a] for a in alike] for k, r in undisturbed.items()
    }
    differences = (results / "differences.csv").read_text()
    assert differences == (whole / "differences.csv").read_text()
    for name in ("benchmark.md", "benchmark.tex"):
        words = " ".join((results / name).read_text().split())
        assert "no difference" in words
    text = (results / "benchmark.md").read_text()
    table = text[text.index("## planted") :]
    head = next(line for line in table.splitlines() if line.startswith("| row"))
    assert "| best_val | roc-auc |" in head
    assert "macro-f1" not in text
    assert "a method tried up to 1 settings, and kept" in " ".join(text.split())


@pytest.mark.slow  # a minute of CPU: README's case in which federating pays
def test_clients_that_are_too_small_alone_gain_in_every_pair(tmp_path):
    given = ["few", "--methods", "fedavg", "--results", str(tmp_path)]
    assert fedgraph(["benchmark", *given]) == 0
    rows = toys.csv_rows(tmp_path / "differences.csv")
    (alone,) = (row for row in rows if row["opponent"] == "local")
    assert (alone["pairs"], alone["won"], alone["word"]) == ("5", "5", "better")
    assert float(alone["points"]) > 4
