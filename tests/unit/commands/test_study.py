"""Studies: results as rows of a file, paired differences, tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.core.command import STOPPED
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import read_series
from simulations import study
from simulations.cli import main as fedgraph
from simulations.markup import markdown
from simulations.presets import load_preset
from simulations.tables import frame
from simulations.tables.captions import chance_of, make_reports
from simulations.tables.frame import from_run, read, records, table
from simulations.tables.runs import EXECUTION_KEYS, find_runs, row_name
from simulations.tables.stats import Difference
from simulations.tables.studies import FOLDER, load_study

DOCS = FOLDER.parents[1] / "docs"
SEEDS = range(1, 6)


def result(row="a", seed=1, score=0.5, *, start=None, trained=None, **kw):
    entries = {
        "dataset": "BACE",
        "split_seed": seed,
        "split_hash": f"hash{seed}",
        "rounds": 40,
        "edge_epsilon": 2.0,
        "weights": "w",
        "commit": "c",
        "wall_s": 1.5,
    }
    scores = {"best_val": score, "final": score - 0.1, "validation": 0.75}
    scores |= {} if start is None else {"start": start}
    scores |= {} if trained is None else {"best_val_trained": trained}
    (one,) = records(table([{"row": row, "seed": seed, **entries, **scores, **kw}]))
    return one


def by_row(results):
    return frame.by_row(table(results))


def pair(ours, theirs, measure):
    return frame.pair(table(ours), table(theirs), measure)


def write(path, results):
    frame.write(path, table(results))


def merge(old, new):
    return records(frame.merge(table(old), table(new)))


def text_of(study, results):
    return "\n\n".join(map(markdown, make_reports(study, by_row(results))))


def rows(scores):
    return [result(row, s, v) for row, of in scores.items() for s, v in of.items()]


def test_differences_are_paired_by_both_seeds_and_the_split():
    ours = [result("a", s, v) for s, v in {1: 0.7, 2: 0.6, 3: 0.9}.items()]
    theirs = [result("b", s, v) for s, v in {1: 0.6, 3: 0.85, 2: 0.58}.items()]
    found = pair(ours, theirs, "best_val")
    assert np.allclose(found.values, [10, 2, 5])
    expected = stats.ttest_1samp(found.values, 0).confidence_interval(0.95)
    assert np.allclose(found.interval(0), expected)
    # Nadeau and Bengio: 1/3 becomes 1/3 + 10/80, 1/3 + 35/30 or 1/3 + 20/60.
    for held_out, times in ((0.2, 11 / 8), (0.7, 9 / 2), (0.4, 2), (0.8, 7)):
        wider = found.mean + (np.array(expected) - found.mean) * math.sqrt(times)
        assert np.allclose(found.interval(held_out), wider)
    other = [result("b", 1, 0.6, split_seed=9), result("b", 2, 0.5, split_hash="x")]
    assert pair(ours, other, "best_val").num_pairs == 0
    single = pair(ours, theirs[:1], "final")
    assert single.num_pairs == 1
    assert math.isnan(single.interval(0)[0])


def test_a_split_is_one_trial_however_many_seeds_it_has():
    """Five seeds on split 123, one on each of 124 to 127; by hand."""
    gains = {(s, 123): g for s, g in enumerate(range(1, 6))}
    gains |= {(10, 124): 4.0, (10, 125): 5.0, (10, 126): 6.0, (10, 127): 7.0}

    def row(name, share):
        of = [(s, k, share * g / 100) for (s, k), g in gains.items()]
        clients = [{0: v + 0.01 * share * (k > 123), 1: v} for s, k, v in of]
        return [
            result(
                name,
                s,
                v,
                split_seed=k,
                split_hash=f"h{k}",
                **{"best_val per client": c},
            )
            for (s, k, v), c in zip(of, clients, strict=True)
        ]

    found = pair(row("a", 1), row("b", 0), "best_val")
    means = [3, 4.5, 5.5, 6.5, 7.5]  # half a point of client 0 beside
    assert (found.num_pairs, found.num_splits) == (9, 5)
    assert found.by_split() == pytest.approx(means)
    assert found.mean == pytest.approx(5.4)
    assert found.gains == pytest.approx((5.8, 5.0))
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert np.allclose(found.interval(0), expected)
    # so far from 0 that t with four degrees of freedom exceeds 2.7764 in 80 % of draws
    assert found.detectable(0) == pytest.approx(stats.sem(means) * 3.7611, rel=1e-4)
    one_split = Difference((5.0, 6.0), ("x", "x"))
    assert math.isnan(one_split.interval(0.2)[0])
    assert math.isnan(one_split.detectable(0.2))


@pytest.mark.parametrize("held_out", [0, 0.2])
def test_what_is_seen_with_80_percent_is_seen_so_often(held_out):
    """Of three splits, whose means share what the correction says that they share."""
    rng = np.random.default_rng(1)
    splits = ("x", "y", "z")
    size = Difference((-1.0, 0.0, 1.0), splits).detectable(held_out)
    shared = rng.normal(size, math.sqrt(held_out / 2 / (1 - held_out)), (6000, 1))
    drawn = shared + rng.normal(size=(6000, 3))
    lows = [Difference(tuple(v), splits).interval(held_out)[0] for v in drawn.tolist()]
    assert np.mean(np.array(lows) > 0) == pytest.approx(0.8, abs=0.015)


def test_scores_of_a_table_are_means_of_splits(small):
    given = [
        result("a-x", s, v, split_seed=k, split_hash=f"h{k}")
        for s, k, v in ((1, 1, 0.5), (2, 1, 0.7), (1, 2, 0.8))
    ]
    assert "| a-x | 3 | 40 | 2 | 0.7000 ± 0.1528 |" in text_of(small, given)
    by_client = [r | {"best_val per client": {0: r["best_val"]}} for r in given]
    study = replace(small, spread="clients")
    assert "| a-x | 3 | 40 | 2 | 0.7000 ± 0.1528 |" in text_of(study, by_client)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 1.1, 0.9, 1.0, 1.0), "shown"),
        ((-1.0, -1.1, -0.9, -1.0, -1.0), "shown below 0"),
        ((1.0, -1.0, 0.5, 0.0, 0.0), "not shown"),
        ((5.0,), "1 split: no verdict"),
        ((1.0, 1.1, 0.9, 1.0), "4 splits: no verdict"),
        ((0.0,) * 5, "not shown"),
        ((2.0,) * 5, "not shown"),  # an interval without width
    ],
)
def test_verdicts(values, verdict):
    splits = tuple(map(str, range(len(values))))
    assert Difference(values, splits).verdict(0) == verdict
    again = Difference(values * 2, splits * 2)  # more seeds are no more splits
    assert again.verdict(0) == verdict


def test_results_survive_their_file_and_new_ones_replace_old(tmp_path):
    path = tmp_path / "new" / "runs.csv"
    kept = [
        result("b, c (x=1)", 2, 0.25, trained=0.3, metric="mae"),
        result("a", 1, 0.5, start=0.25, **{"final per client": {0: 0.25, 3: -0.5}}),
    ]
    write(path, kept)
    assert records(read(path)) == sorted(kept, key=lambda r: r["row"])
    newer = result("a", 1, 0.75)
    assert merge(kept, [newer]) == [kept[0], newer]
    path.write_text("row,seed\na,1\n")
    with pytest.raises(FedGraphError, match=r"runs.csv is not a file of results"):
        read(path)


def test_a_seed_counts_once_in_a_row():
    with pytest.raises(FedGraphError, match="row 'a' has seed 1 on split seed 1 twice"):
        merge([], [result("a", 1, 0.5), result("b", 1, 0.5), result("a", 1, 0.6)])


def test_results_on_other_data_replace_none_and_are_refused():
    known = [result("a", 1, 0.5, data="one"), result("b", 1, 0.4)]
    for row in ("a", "b", "c"):
        with pytest.raises(FedGraphError, match=rf"a of one, {row} of two"):
            merge(known, [result(row, 1, 0.6, data="two")])
    assert len(merge(known, [result("c", 1, 0.6), result("a", 2, 0.6, data="x")])) == 4


@pytest.mark.parametrize(
    "name",
    [
        "fclg",
        "fedgkd",
        "fgcl",
        "gcfl",
        "gcfl-other-processor",
        "hostile",
        "natural",
        "nodes",
        "spreadgnn",
    ],
)
def test_pages_of_runs_are_made_from_their_files(name):
    """Make them again by the command in their heading if this fails."""
    csv, place = (Path("docs/runs", f"{name}.{end}") for end in ("csv", "md"))
    found = frame.by_row(read(DOCS.parent / csv))
    made = study.page_text(load_study(name.partition("-")[0]), found, place, csv)
    assert (DOCS.parent / place).read_text(encoding="utf-8") == made


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


def test_a_run_becomes_a_result(run):
    folder = run("fedavg", **{"num-server-rounds": 6}).path
    (one,) = find_runs([folder]).runs
    found, partial = from_run(one, "a", per_client=True)
    assert partial == []
    assert (found["row"], found["rounds"], found["seed"]) == ("a", 6, one.seed)
    assert found["metric"] == "accuracy"
    for rule in ("final", "best_val", "best_snapshot"):
        assert found[rule] == one.summary[rule]["mean"]
        assert found[f"{rule} per client"] == one.per_client(rule)
    assert found["validation"] == one.summary["best_val"]["validation"]
    assert one.summary["weights_sha256"].startswith(found["weights"])
    tests = read_series(
        folder, split="test", point="post_aggregation", metric="accuracy"
    )
    best = {c: max(of[1:]) for c, of in tests.items()}
    assert found["best_round per client"] == best != one.per_client("final")
    assert found["best_round"] == pytest.approx(sum(best.values()) / len(best))
    assert found["edge_epsilon"] == 0
    assert found["data"] == ""  # toys have no files
    without, _ = from_run(one, "a", per_client=False)
    assert not [name for name in without if name.endswith("per client")]


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
    text = text_of(small, given)
    assert study.rest(small, by_row(given)) == ["z"]
    assert "### y" not in text
    line = "| a-x | 2 | 40 | 2 | 0.6500 ± 0.0707 | 0.5500 ± 0.0707 | 0.7500 ± 0.0000 |"
    assert f"{line} 0.9000 |" in text
    line = "| a-x - b-x | 2 | +6.00 [-50.82, +62.82] | 73.05 | +10.0 +2.0 |"
    assert f"{line} 2 splits: no verdict | +10.00 |" in text
    assert "Not run: c-x." in text
    seeds = "1 on split hash1 (split seed 1); 2 on split hash2 (split seed 2)"
    assert seeds in " ".join(text.split())
    assert "rule best_val" in text


def test_a_floor_is_that_of_a_row_from_starts_that_differ(small):
    """Four draws of five pairs; a mean within it, and chance, show nothing."""
    of = {"a-x": (0.7, 0.01), "b-x": (0.6, 0.02), "c-x": (0.5, 0.0)}
    given = rows({k: {s: v + w * (s % 3) for s in SEEDS} for k, (v, w) in of.items()})
    draws = {f"b-x (start-noise={k})": k / 50 for k in range(1, 5)}
    moved = [
        {**r, "row": k, "best_val": r["best_val"] + v}
        for k, v in draws.items()
        for r in given[5:10]
    ]

    def told(results):
        reports = make_reports(small, by_row(results))
        return " ".join(chance_of(reports).split()), text_of(small, results)

    head, text = told(given)
    assert "1 of 1 verdicts find a difference; about 0.1 may do so by chance" in head
    assert "| shown |" in text
    assert "The noise floor was not measured." in " ".join(text.split())
    head, text = told(given + moved)
    assert "1 of 1 verdicts" in head
    assert "The noise floor is 8.00 points" in " ".join(text.split())
    assert study.rest(small, by_row(given + moved)) == []
    moved = [{**r, "best_val": r["best_val"] + 0.02} for r in moved]
    head, text = told(given + moved)
    assert "0 of 1 verdicts" in head
    assert "| not shown |" in text
    assert "not measured" in told(given + moved[:19])[1].replace("\n", " ")


def test_a_grid_crosses_rows_over_the_clients_that_all_runs_of_a_pair_have(tmp_path):
    """By hand: client 0 is hostile on seed 1; seed 3 lacks a run and counts nowhere."""
    grid = ['title = "g"', 'grid = ["none", "sign"]', 'rows = ["mean-x", "median-x"]']
    head = ['paper = ""', 'rule = "final"', 'spread = "clients"', "[[table]]"]
    (tmp_path / "s.toml").write_text("\n".join([*head, *grid]))
    study = load_study("s", tmp_path)
    assert study.tables[0].rows[1:3] == ("mean-x-sign", "median-x-none")
    of_rows = {
        "mean-x-none": [{0: 0.9, 1: 0.6, 2: 0.8}, {0: 0.4, 1: 0.6}, {0: 1.0}],
        "mean-x-sign": [{1: 0.2, 2: 0.4}, {0: 0.1, 1: 0.3}],
        "median-x-none": [{0: 0.9, 1: 0.5, 2: 0.7}, {0: 0.4, 1: 0.4}, {0: 1.0}],
        "median-x-sign": [{1: 0.5, 2: 0.9}, {0: 0.4, 1: 0.8}, {0: 1.0}],
    }
    results = [
        result(row, seed, **{"final per client": known})
        for row, of in of_rows.items()
        for seed, known in enumerate(of, 1)
    ]
    shown = make_reports(study, by_row(results))[0].parts[0].set_index("row")
    assert [*shown.loc["mean-x"]] == [
        "0.6000 ± 0.1414",
        "0.2500 ± 0.0707",
        "0.2500 (sign)",
    ]
    assert [*shown.loc["median-x"]][1:] == ["0.6500 ± 0.0707", "0.5000 (none)"]
    of_runs = make_reports(replace(study, rule="wall_s"), by_row(results))[0].parts[0]
    assert {*of_runs["row"]} == {*of_rows}  # no clients: a row for each cell


def test_the_program_adds_to_its_file_and_prints_from_it_alone(run, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    name = "fgcl-gcn-bace-1"
    write(path, [result(name, 1, 0.5), result(name, 2, 0.7)])
    assert fedgraph(["study", "fgcl", "--csv", str(path)]) == 0
    scores = "0.6000 ± 0.1414 | 0.5000 ± 0.1414 | 0.7500 ± 0.0000 | 0.6665"
    assert f"| {name} | 2 | 40 | 2 | {scores} |" in capsys.readouterr().out
    folder = run("fedavg", **{"num-server-rounds": 1}).path
    assert fedgraph(["study", "fgcl", str(folder), "--csv", str(path)]) == 0
    assert len(read(path)) == 3
    assert "not used: fedavg" in capsys.readouterr().err
    assert fedgraph(["study", "fgcl", "--csv", str(path), "--rule", "validation"]) == 0
    assert "Protocol: rule validation" in capsys.readouterr().out
    assert fedgraph(["study", "fgcl", "--csv", str(path), "--rule", "finl"]) == 2
    assert "Did you mean 'final'?" in " ".join(capsys.readouterr().err.split())
    assert fedgraph(["study", "fgcl"]) == 2
    assert "give folders of runs" in capsys.readouterr().err


def test_the_program_writes_a_page_and_draws_differences(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    for_page = {"fgcl-gcn-bace-10": 0.5, "fed-noise-gcn-bace-20": 0.6}
    write(path, [result(row, s, v) for row, v in for_page.items() for s in (1, 2)])
    page, folder = tmp_path / "fgcl.md", tmp_path / "img"
    options = ["--csv", str(path), "--page", str(page), "--figures", str(folder)]
    assert fedgraph(["study", "fgcl", *options]) == 0
    made = study.page_text(load_study("fgcl"), frame.by_row(read(path)), page, path)
    assert page.read_text() == made
    assert "from [runs.csv](runs.csv); do not edit." in " ".join(made.split())
    (drawn,) = folder.iterdir()
    assert drawn.name == "fgcl-differences.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    write(path, [result("fgcl-gcn-bace-10", 1)])
    assert fedgraph(["study", "fgcl", *options]) == 2
    assert "no difference of [[figure]]" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('paper = "somebody"', ""), "not a study"),
        (
            ('paper = "somebody"', 'paper = "x"\nheldout = 0.2'),
            "not a study.*heldout",
        ),
        (('title = "{data}"', 'title = "{data}"\ncolums = {}'), "not a study.*colums"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path, change, words):
    (tmp_path / "bad.toml").write_text(SMALL.replace(*change))
    with pytest.raises(ConfigError, match=words):
        load_study("bad", tmp_path)


def test_results_outlive_a_write_that_is_interrupted(tmp_path, monkeypatch):
    """Rows of the file may be all that is left of their runs."""
    csv, page = tmp_path / "gcfl.csv", tmp_path / "gcfl.md"
    write(csv, [result("a"), result("b")])
    given = ["gcfl", "--csv", str(csv), "--page", str(page)]
    assert fedgraph(["study", *given]) == 0
    before = csv.read_bytes(), page.read_bytes()
    with pytest.raises(ValueError, match="format code 'f'"):
        write(csv, [result("a"), result("b", trained="no number")])

    def stop(path, text, **_):
        path.write_bytes(text.encode()[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stop)
    assert fedgraph(["study", *given]) == STOPPED
    assert (csv.read_bytes(), page.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2
