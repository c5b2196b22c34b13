"""A rare class: what chooses rounds, and what a run, a site and a report say of it."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import toys
from commands import at_site, fedgraph

from fedgraph_flwr import server_app
from fedgraph_flwr.core.tasks import AVERAGE_PRECISION, NODE_CLASSIFICATION
from fedgraph_flwr.core.wire import TRAIN_COUNT
from fedgraph_flwr.results.printed import summary_table
from fedgraph_flwr.results.record import RunRecord
from simulations.inline import run_inline
from strategies.round_report import Evaluation, Rarest


def nodes(folder, classes, seed):
    """Write a graph whose nodes have these classes, which a column tells by half."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(classes)
    rows = [[f"n{i}", f"{rng.normal() + len(k):.3f}", k] for i, k in enumerate(y)]
    edges = [[f"n{a}", f"n{b}"] for a, b in rng.integers(len(y), size=(len(y), 2))]
    write(folder / "nodes.csv", [["node", "x", "label"], *rows])
    write(folder / "edges.csv", [["source", "target"], *edges])


def graphs(folder, classes, seed):
    """Write paths of three nodes that have these classes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(classes)
    of = [[f"g{i}", str(n)] for i in range(len(y)) for n in range(3)]
    rows = [[*r, f"{rng.normal() + len(y[int(r[0][1:])]):.3f}"] for r in of]
    edges = [[g, n, str(int(n) + 1)] for g, n in of if n != "2"]
    kinds = [[f"g{i}", k] for i, k in enumerate(y)]
    write(folder / "graphs.csv", [["graph", "kind"], *kinds])
    write(folder / "nodes.csv", [["graph", "node", "x"], *rows])
    write(folder / "edges.csv", [["graph", "source", "target"], *edges])


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


FEW = ["no"] * 95 + ["fraud"] * 5
KINDS = {  # writer, classes at each site, rarest, mean over how many clients
    "nodes": (nodes, [FEW, FEW], "fraud", 2),
    "three classes": (nodes, [["a"] * 60 + ["bb"] * 55 + ["ccc"] * 5] * 2, "ccc", 2),
    "whole graphs": (graphs, [["no"] * 92 + ["fraud"] * 8] * 2, "fraud", 2),
    "a site without any": (nodes, [FEW, ["no"] * 100], "fraud", 1),
    "nobody validates by it": (nodes, [["no"] * 99 + ["fraud"]] * 2, "fraud", 0),
    "not rare": (nodes, [["no"] * 80 + ["fraud"] * 20] * 2, "", 2),
}


@pytest.fixture
def start(tmp_path, task_identity, monkeypatch):
    monkeypatch.setattr(server_app, "draw_all", lambda _: None)

    def run(make, sites, node_configs=None, **config):
        for site, classes in enumerate(sites):
            make(tmp_path / f"data/{site}", classes, site)
        schema = tmp_path / "data" / "schema.toml"
        words = ["schema", str(tmp_path / "data" / "0"), "--out", str(schema)]
        if not schema.exists():
            assert at_site([*words, "--min-count", "1"]) == 0
        places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
        places["data-dir"] = str(tmp_path / "data")
        own = {"dataset": "graphs-csv", "csv-label-kind": "classes"}
        own = own if make is graphs else {"dataset": "graph-csv"}
        path = run_inline(
            {**toys.TINY, **places, **own, "method": "fedavg", "num-clients": 2,
             "num-server-rounds": 4, "patience": 0, "min-rounds": 0, "held-out": 0.2,
             "shared-group": "all", "learning-rate": 0.1, **config},
            node_configs=node_configs,
        )  # fmt: skip
        return toys.Run(path, {})

    return run


def chosen(run, metric):
    """Round of the best mean, of equals that of the lowest loss, from rounds.csv."""
    found = defaultdict(list)
    for r in toys.csv_rows(run.path / "rounds.csv"):
        at = r["split"], r["point"]
        if at == ("val", "post_aggregation") and r["round"] != "0":
            found[r["metric"], int(r["round"])].append(float(r["value"]))
    means = {key: fmean(values) for key, values in found.items()}
    rounds = range(1, 5)
    return max(rounds, key=lambda t: (means.get((metric, t), 0), -means["loss", t]))


@pytest.mark.parametrize("kind", KINDS)
def test_average_precision_chooses_where_a_class_is_rare(start, kind):
    make, sites, rarest, count = KINDS[kind]
    run = start(make, sites)
    summary, best = run.summary, run.summary["best_val"]
    told = summary["rarest_class"]
    assert told["chooses_by_precision"] == bool(rarest)
    table = " ".join(summary_table(summary).split())
    share = max(map(sites[0].count, sites[0])) / len(sites[0])
    assert re.search(r"predicts the commonest class: [01]\.\d{4}", table)
    assert best["also"]["accuracy-of-commonest"] == pytest.approx(share, abs=0.06)
    assert best["round"] == chosen(run, "average-precision" if rarest else "accuracy")
    if len(set(sites[0])) == 2:
        items = [s.count(told["class"]) // 10 for s in sites]
        counts = re.search(
            r"test items of class '\w+', by client: (\d+) and (\d+)", table
        )
        assert [*map(int, counts.groups())] == pytest.approx(items, abs=1)
    if not rarest:
        assert best["protocol"].startswith("round with the best mean validation accur")
        return
    assert told["class"] == rarest
    assert told["share"] < 0.1
    if count == 0:
        assert "lowest mean validation loss, as no client has" in best["protocol"]
        return
    assert f"average precision (class {rarest!r} has" in best["protocol"]
    assert best["num_clients_chosen_by"] == count
    assert ("a client has no such score if" in best["protocol"]) == (count < 2)
    page = (run.path / "report.html").read_text()
    assert "predicts the commonest class" in page
    assert "average precision" in page
    assert "average-precision" in (run.path / "metrics.prom").read_text()


def test_a_run_says_that_all_predictions_are_of_one_class(start, capsys):
    run = start(nodes, [FEW, FEW], **{"learning-rate": 0.0})
    (name,) = {*run.summary["final"]["one_class"].values()}
    assert name in ("no", "fraud")
    assert f"final: all 20 predictions are class {name!r}" in summary_table(run.summary)
    assert fedgraph(["compare", str(run.path), "--markdown"]) == 0
    told = capsys.readouterr().out
    columns = r"\| average precision \| macro-F1 \| .*\| commonest class \|"
    assert re.search(columns, told)


def only_held_out(folder, classes, seed):
    """Write a graph whose column of splits has no "fraud" to train on."""
    parts = ["val", "test", "train", "train"]
    rows = [
        [f"n{i}", f"{i % 7 + seed}", k, parts[i % (2 if k == "fraud" else 4)]]
        for i, k in enumerate(classes)
    ]
    write(folder / "nodes.csv", [["node", "x", "label", "split"], *rows])
    write(folder / "edges.csv", [["source", "target"], ["n0", "n1"]])


@pytest.mark.parametrize("make", [only_held_out, nodes])
def test_a_class_that_no_client_trains_on_is_named(start, make, caplog):
    start(make, [FEW, FEW])
    words = "no client trains on an item of class 'fraud', which no model can learn"
    assert (words in caplog.text) is (make is only_held_out)


@pytest.mark.parametrize(
    ("by", "patience", "due"),
    [(AVERAGE_PRECISION, 2, True), ("", 2, False), (AVERAGE_PRECISION, 0, False)],
)
def test_early_stopping_goes_by_the_same_score(by, patience, due):
    settings = toys.run_settings(patience=patience, min_rounds=0)
    so_far = RunRecord(NODE_CLASSIFICATION)
    so_far.by = by
    resolved = SimpleNamespace(settings=settings)
    stop = server_app._stopper(SimpleNamespace(resolved=resolved, so_far=so_far))
    told = []
    for t in (1, 2, 3):  # accuracy rises, and ranking gets worse
        values = {"accuracy": t / 10, "average-precision": 1 / t, "loss": 1 / t}
        at = {"server_round": t, "client": 0, "split": "val", "num_examples": 9}
        point = {"point": "post_aggregation", **at}
        told.append(
            stop(Evaluation(metric=m, value=v, **point) for m, v in values.items())
        )
    assert told == [False, False, due]


def test_a_site_that_keeps_scores_tells_no_counts(start, tmp_path):
    policy = toys.policy(tmp_path, scores=False)
    first = [["a"] * 6 + ["bb"] * 94] * 2  # the first of two is the rare one
    own = [
        {"clients": str(c), "data-path": str(tmp_path / "data"),
         "state-dir": str(tmp_path / f"s{c}"), **policy}
        for c in range(2)
    ]  # fmt: skip
    run = start(nodes, first, own)
    assert run.summary["rarest_class"] is None
    assert TRAIN_COUNT not in (run.path / "roll-call.json").read_text()
    noise = {"privacy.update-clip": 1.0, "privacy.update-noise": 1.0}
    noisy = start(nodes, first, **noise)
    words = "accuracy (no site tells its classes)"
    assert words in noisy.summary["best_val"]["protocol"]
    # A constant has 0.94 if the commoner class counts, and 0.5 if both do.
    assert noisy.summary["final"]["also"]["average-precision"] < 0.9


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(9, 0, 1), (), (9, 0, 1)], Rarest(2, 0.1)),
        ([(5, 5)], Rarest(1, 0.5)),
        ([()], None),
        ([(5, 0)], None),  # nobody can learn a class without a label
        ([(1, 2), (1, 2, 3)], None),
    ],
)
def test_the_rarest_class_is_that_of_all_clients_who_tell(told, expected):
    infos = [toys.info(c, train_counts=k) for c, k in enumerate(told)]
    assert Rarest.of(infos, may_choose=True) == expected
