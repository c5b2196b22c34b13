"""Integrated gradients of trained models: completeness, baselines, a planted motif."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import toys
from commands import at_site

import datasets
from datasets.splits import with_roles
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.trained import TrainedModel
from fedgraph_flwr.trained.attribution import TOLERANCE, explain
from fedgraph_flwr.trained.model_folder import About
from simulations.inline import run_inline
from simulations.tiny_runs import federation


def with_edges(graphs, seed=0):
    """Give edges features, and turn half of them around: the graphs are directed."""
    rng = np.random.default_rng(seed)
    kept = np.flatnonzero(rng.random(graphs.edge_index.shape[1]) < 0.6)
    cut = graphs.take_edges(kept)
    attr = rng.normal(size=(len(kept), 3)).astype(np.float32)
    return replace(cut, edge_attr=attr, num_edge_features=3, is_undirected=False)


def made(case, *, change=None, **settings):
    """Build a model as a client has it before round 1, and its client's graphs."""
    run = resolve({**defaults(), **toys.tiny(case, **settings)})
    graphs = federation(run.settings, 0).graphs
    graphs = change(graphs) if change else graphs
    spec = run.spec(**graphs.widths)
    about = About(experiment="e", config=run.to_config(), metric="accuracy", rounds=1,
        kind=datasets.label_kind(run.settings), columns="", why_not="",
        outputs=[f"c{k}" for k in range(graphs.num_classes)], architecture=None,
        models={"global": [0]})  # fmt: skip
    module = run.method.client.build_predictor(spec).eval()
    return TrainedModel(about=about, name="global", client=run.method.client, spec=spec,
        module=module, settings=run.settings, device=toys.CPU), graphs  # fmt: skip


def plain(model, graphs, item):
    """Outputs of the model as it predicts."""
    count = len(graphs.y)
    whole = with_roles(0, graphs, np.arange(count), np.full(count, 2))
    return model.outputs(whole)[item].astype(float)


EDGES = {"change": with_edges, "edge-features": True}
CASES = {
    "gin": ("fedavg", {}),
    "of PyG": ("fedavg", {"encoder": "graphconv"}),
    "gine": ("fedavg", {"encoder": "gine", **EDGES}),
    "both ways": ("fedavg", {"encoder": "gatv2", "direction": "both", **EDGES}),
    "two layers": ("fedavg", {"encoder": "gine", "direction": "separate", **EDGES}),
    "molecules, sage": ("spreadgnn", {}),
    "molecules, gat": (
        "fedavg",
        {"dataset": "ESOL", "multitask.encoder": "gat", "shared-group": "all"},
    ),
    "nodes, gcn": ("fedgkd", {}),
    "nodes, sage": ("fedsage", {}),
    "edges": ("fedavg", {"task": "edge-classification", "dataset": "planted"}),
}


@pytest.mark.parametrize("case", CASES)
def test_contributions_add_up_to_the_difference_of_outputs(case):
    method, settings = CASES[case]
    model, graphs = made(method, **settings)
    rows = plain(model, graphs, 3)
    is_of_classes = model.about.kind in ("classes", "nodes", "edges")
    found = explain(model, graphs, 3, "" if is_of_classes else "c0")
    k = model.about.outputs.index(found.output)
    expected = rows[k]
    if is_of_classes:
        assert k == rows.argmax()
        expected -= np.logaddexp.reduce(np.delete(rows, k))
    assert found.value == pytest.approx(expected, abs=1e-4)
    total = sum(
        a.sum() for a in (found.of_nodes, found.of_edges, found.of_edge_features)
    )
    difference = found.value - found.baseline
    assert difference - total == pytest.approx(found.gap, abs=1e-6)
    assert abs(found.gap) <= TOLERANCE * max(1, abs(difference))
    assert found.of_edges.any()
    assert found.of_edge_features.any() == ("change" in settings)


@pytest.mark.parametrize("case", ["gin", "of PyG", "molecules, sage", "nodes, sage"])
def test_the_baseline_is_the_graph_without_features_and_edges(case):
    """Of layers whose sums and means over no message are 0."""
    method, settings = CASES[case]
    model, graphs = made(method, **settings)
    found = explain(model, graphs, 3, "c0")
    x = np.zeros((graphs.num_nodes, graphs.num_features), np.float32)
    rows = plain(model, replace(graphs, x=x).without_edges(), 3)
    is_odds = model.about.kind != "binary"
    rest = np.logaddexp.reduce(rows[1:]) if is_odds else 0
    assert found.baseline == pytest.approx(rows[0] - rest, abs=1e-4)


def test_outputs_are_named(capsys):
    model, graphs = made("spreadgnn")
    with pytest.raises(
        ConfigError, match="2 targets; choose one of c0, c1 by --output"
    ):
        explain(model, graphs, 0)
    with pytest.raises(ConfigError, match=r"one of c0, c1 of a model.*got 'x'"):
        explain(model, graphs, 0, "x")


def chains(folder, seed, count):
    """Write random trees that end in a ring of five or, if odd, in a clique of five."""
    rng, edges, tables = np.random.default_rng(seed), [], ([], [], [])
    for g in range(count):
        tree = int(rng.integers(15, 25))
        edges = [(int(rng.integers(v)), v) for v in range(1, tree + 1)]
        ring = [(tree + k, tree + (k + 1) % 5) for k in range(5)]
        edges += combinations(range(tree, tree + 5), 2) if g % 2 else ring
        tables[0].append((f"g{g}", g % 2))
        tables[1].extend((f"g{g}", v) for v in range(tree + 5))
        tables[2].extend((f"g{g}", u, v) for u, v in edges)
    heads = {"graphs": "graph,clique", "nodes": "graph,node"}
    heads["edges"] = "graph,source,target"
    folder.mkdir()
    for (name, head), rows in zip(heads.items(), tables, strict=True):
        lines = [head, *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines))


@pytest.mark.slow
def test_edges_of_a_planted_clique_contribute_most(tmp_path):
    chains(tmp_path / "data", 1, 80)
    schema = str(tmp_path / "data" / "schema.toml")
    assert at_site(["schema", str(tmp_path / "data"), "--out", schema]) == 0
    places = {f"{k}-dir": str(tmp_path / k) for k in ("data", "results", "cache")}
    path = run_inline({**places, "method": "fedavg", "dataset": "graphs-csv",
        "csv-label-kind": "classes", "num-clients": 1, "num-server-rounds": 30,
        "encoder": "graphconv", "shared-group": "all", "seed": 1, "batch-size": 16,
        "learning-rate": 0.005, "device": "cpu"})  # fmt: skip
    chains(tmp_path / "new", 2, 20)
    given = [str(path / "models"), str(tmp_path / "new"), "--output", "1"]
    names = [f"g{g}" for g in range(1, 20, 2)]
    out = ["--items", ",".join(names), "--out", str(tmp_path / "why.csv")]
    assert at_site(["explain", *given, *out]) == 0
    rows = toys.csv_rows(tmp_path / "why.csv")
    hits = 0
    for name in names:
        own = [r for r in rows if r["item"] == name and r["part"] == "edge"]
        last = max(int(r["other"]) for r in own) - 4
        top = sorted(own, key=lambda r: -float(r["value"]))[:10]
        hits += sum(int(r["node"]) >= last for r in top)
    assert hits / 100 > 0.9
