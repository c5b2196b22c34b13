"""Cross-validation within each client: parts, tables, join-or-not."""

from __future__ import annotations

import json
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import toys
from commands import at_site

from datasets import load_partition
from datasets.splits import check_is_drawn, fold_roles
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import load_summary
from simulations.compare import _notes, group_runs
from simulations.run import How, execute, plan
from simulations.tables.frame import join_folds
from simulations.tables.runs import find_runs

FOLDS = 4
DATA = {
    "graphs": {"dataset": "synthetic"},
    "nodes": {"dataset": "planted"},
    "links": {"dataset": "planted", "task": "link-prediction", "negatives": 2},
}


@pytest.mark.parametrize("kind", DATA)
def test_each_item_tests_once_and_validates_in_the_run_before(kind):
    config = {**defaults(), "method": "fedavg", "folds": FOLDS, **DATA[kind]}
    found = [
        load_partition(resolve({**config, "fold": fold}).settings, 1)
        for fold in range(FOLDS)
    ]
    tests, vals, trains = (
        [p.graph_ids[p.positions(name)] for p in found]
        for name in ("test", "val", "train")
    )
    every = np.unique(np.concatenate([*tests]))
    if kind == "links":  # of which each stands before others that are none
        tests, vals = [np.unique(t) for t in tests], [np.unique(v) for v in vals]
    assert len(np.concatenate(tests)) == len(every)
    sizes = [len(t) for t in tests]
    assert max(sizes) - min(sizes) <= 1
    for fold in range(FOLDS):
        assert np.array_equal(np.sort(vals[fold]), np.sort(tests[(fold + 1) % FOLDS]))
        parts = np.concatenate([trains[fold], vals[fold], tests[fold]])
        assert np.array_equal(np.sort(parts), every)


def test_parts_have_as_many_of_each_class():
    y = np.repeat([0, 1, 2], [21, 9, 2])
    seen = []
    for fold in range(5):
        settings = toys.run_settings(folds=5, fold=fold)
        roles = fold_roles(len(y), settings, 7, "graphs", y)
        counts = np.bincount(y[roles == 2], minlength=3)
        assert counts[0] in (4, 5)
        assert counts[1] in (1, 2)
        seen.append(counts)
    assert np.array_equal(np.sum(seen, axis=0), [21, 9, 2])


def test_what_is_no_cross_validation_is_refused():
    for keys, words in (
        ({"folds": 2}, "folds must be 1, or 3 or more"),
        ({"folds": 3, "fold": 3}, "fold must be below folds, 3, got 3"),
        ({"fold": 1}, "fold must be below folds, 1, got 1"),
        (
            {"folds": 3, "split": "time", "dataset": "graphs-csv"},
            "folds must be 1 with split 'time'",
        ),
        ({"folds": 3, "dataset": "BACE"}, "folds must be 1 with partition 'quantity"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve({**defaults(), "method": "fedavg", **keys})
    with pytest.raises(DataError, match="folds is 20, but there are 5 graphs"):
        fold_roles(5, toys.run_settings(folds=20), 1, "graphs", None)
    with pytest.raises(DataError, match="folds cannot decide which items test"):
        check_is_drawn(toys.run_settings(folds=5), "column 'split' of x")
    with pytest.raises(ConfigError, match="either --folds or folds="):
        plan("fedavg", {"fold": 1}, folds=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods on two sites' molecules, cross-validated by ``--folds``."""
    root = tmp_path_factory.mktemp("folds")
    (root / "data").mkdir()
    rng = np.random.default_rng(0)
    for site in (0, 1):
        rows = ["".join(rng.choice([*"CNO"], rng.integers(2, 8))) for _ in range(40)]
        text = "".join(f"{m},{int('N' in m)}\n" for m in rows)
        (root / "data" / f"site-{site}.csv").write_text("smiles,amine\n" + text)
    places = {f"{k}-dir": str(root / k) for k in ("data", "state", "cache", "results")}
    own = {**toys.TINY, **places, "shared-group": "all", "num-clients": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_CACHE", str(root / "cache"))
        for method in ("local", "fedavg"):
            keys = {**own, "method": method, "dataset": "smiles-csv"}
            for _, outcome in execute(plan(method, keys, folds=3), How(inline=True)):
                assert not isinstance(outcome, Exception), outcome
        yield root


def test_a_table_has_the_mean_of_all_folds_or_none(runs):
    results = runs / "results"
    (group,), problems = group_runs(find_runs([results]))
    assert not problems
    for row, folds in group.rows.items():
        scores = [load_summary(run.path)["final"] for run in folds]
        line = group.results.set_index("row").loc[row]
        assert sorted(run.fold for run in folds) == [(0, 3), (1, 3), (2, 3)]
        assert line["final"] == statistics.fmean(s["mean"] for s in scores)
        of_client = [s["per_client"]["1"] for s in scores]
        assert line["final per client"][1] == statistics.fmean(of_client)
    names = ["dataset", "row", "seed", "split_seed"]
    full = dict.fromkeys(names, "x") | {"final": 1.0, "final:roc-auc": 0.5}
    lines = [full, dict([*full.items()][:-1]), full]  # a fold without one class
    (joined,), problems = join_folds(zip(folds, lines, strict=True))
    assert (joined["final"], joined.get("final:roc-auc")) == (1.0, None)
    assert problems[0].startswith("roc-auc of x on x, seed x: a fold has none, as")
    some = [
        SimpleNamespace(fold=(k, 3), summary={"final": {"also_per_client": {"f1": of}}})
        for k, of in enumerate([{"0": 1}, {}, {"0": 1}])
    ]
    (*_, note) = _notes(SimpleNamespace(runs=some), "final")
    assert note.startswith("f1: a client whose test items of a fold are of one class")
    fedavg = results.glob("*fedavg*")
    some = [run for run in fedavg if load_summary(run)["config"]["fold"]]
    most = [*results.glob("*local*"), *some]
    (group,), problems = group_runs(find_runs(most))
    assert group.results["row"].tolist() == ["local"]
    assert problems == [
        "fedavg on smiles-csv, seed 10: of 3 folds there is no completed run of fold 0,"
        " so that none is used"
    ]


def test_join_or_not_is_read_from_the_test_items_of_all_folds(runs, capsys):
    data = str(runs / "data" / "site-1.csv")
    out, given = str(runs / "alone"), ["baseline", data, "--client", "1", "--out"]
    folders = [
        str(path / "client-1" / "model")
        for path in sorted((runs / "state").glob("*fedavg*"))
    ]

    def told(*folds):
        models = [word for k in folds for word in ("--against", folders[k])]
        code = at_site([*given, out, *models, "--json"])
        said = capsys.readouterr()
        return said.err if code else json.loads(said.out)

    for folds in ((1, 2), (0, 0, 2), (0,)):
        assert "one model of each of 3 fold(s) of one run, got folds [" in told(*folds)
    first = told(2, 0, 1)  # in whatever order
    assert first["num_items"] == 40  # all, each once
    for fold in range(3):
        assert (runs / "alone" / f"fold-{fold}" / "model.json").exists()
    assert told(0, 1, 2) == first
