"""Models of a user's own tables: the schema travels, targets are not needed."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import numpy as np
import pytest
import torch
import toys
from commands import at_site
from matrix import mostly_slow
from safetensors.torch import load_file
from torch import nn
from torch_geometric.nn import GATConv, GINEConv, SAGEConv

from clients.graphs.node_data import NodeData
from datasets.own.graph_tables import build
from datasets.splits import with_roles
from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.trained import load_model
from fedgraph_flwr.trained.model_folder import read_about
from simulations.inline import run_inline


def write_graphs(folder, seed, *, targets=True, count=12):
    """Paths and rings; a column of numbers, one of categories."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    graphs, nodes, edges = [], [], []
    for g in range(count):
        size = 3 + g % 3
        graphs.append([f"g{g}", *(["ring" if g % 2 else "path"] if targets else [])])
        for n in range(size):
            nodes.append([f"g{g}", n, f"{rng.normal():.3f}", "CNO"[n % 3]])
        links = [[f"g{g}", n, n + 1, "bolt"] for n in range(size - 1)]
        edges += links + ([[f"g{g}", size - 1, 0, "weld"]] if g % 2 else [])
    head = ["graph", *(["shape"] if targets else [])]
    write(folder / "graphs.csv", head, graphs)
    write(folder / "nodes.csv", ["graph", "node", "charge", "element"], nodes)
    # What no model uses must not keep a model from predicting.
    write(folder / "edges.csv", ["graph", "source", "target", "joint"], edges)


def write_nodes(folder, seed, *, targets=True, count=40):
    """One ring of accounts, some of them without label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows = [
        [f"a{n}", f"{rng.normal() + n % 2:.3f}"]
        + ([("" if n % 7 == 0 else ["good", "bad"][n % 2])] if targets else [])
        for n in range(count)
    ]
    write(folder / "nodes.csv", ["node", "sum", *(["label"] * targets)], rows)
    edges = [[f"a{n}", f"a{(n + 1) % count}"] for n in range(count)]
    write(folder / "edges.csv", ["source", "target"], edges)


def write(path, head, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


CASES = {
    "fedavg": ("graphs-csv", write_graphs),
    "fedpub": ("graph-csv", write_nodes),
    "adafgl": ("graph-csv", write_nodes),
}


@pytest.fixture(params=CASES)
def trained(request, tmp_path):
    """A run on two sites' tables, and the model folder that site 1 keeps."""
    dataset, make = CASES[method := request.param]
    for site in (0, 1):
        make(tmp_path / "data" / f"site-{site}", site)
    schema = str(tmp_path / "data" / "schema.toml")
    command = ["schema", str(tmp_path / "data" / "site-0"), "--out", schema]
    assert at_site([*command, "--min-count", "1"]) == 0
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    own = {"dataset": dataset, "data-dir": str(tmp_path / "data")}
    config: dict[str, object] = {"csv-label-kind": "classes"}
    if dataset == "graph-csv":
        config = {"adafgl.federated-rounds": 1} if method == "adafgl" else {}
    path = run_inline({**toys.TINY, **places, **own, **config, "method": method,
        "num-clients": 2, "num-server-rounds": 2, "shared-group": "all"})  # fmt: skip
    return tmp_path, path, make


@pytest.mark.slow
def test_tables_without_targets_are_predicted(trained):
    root, path, make = trained
    folder = root / "state" / path.name / "client-1" / "model"
    assert "schema" in (folder / "SHA256SUMS").read_text()
    model = load_model(folder)
    make(root / "new", 1, targets=False)  # the same items, whose targets nobody knows
    predicted = model.predict_folder(root / "new")
    assert predicted.names[1] in ("g1", "a1")
    # They are the items of site 1: on its test items the outputs are those of the run.
    site = root / "site"
    shutil.copytree(root / "data" / "site-1", site)
    shutil.copy(root / "data" / "schema.toml", site)
    test = model.predict_test(site)
    assert test.column == predicted.column  # and not a number of a row
    rows = [predicted.names.index(name) for name in test.names]
    assert np.allclose(predicted.outputs[rows], test.outputs, atol=1e-5)
    summary = toys.Run(path, {}).summary
    assert test.score() == summary["final"]["per_client"]["1"]
    about = read_about(path / "models")
    if about.architecture and "global" in about.models:  # the server's copy of it
        shared = load_model(path / "models", "global")
        assert shared.predict_test(site, client=1).score() == test.score()
        told = shared.predict_folder(root / "new")
        assert np.array_equal(told.outputs, predicted.outputs)
    predicted.write(root / "p.csv")
    told = toys.csv_rows(root / "p.csv")
    assert set(told[0]) == {predicted.column, "prediction", "problem"} | {
        f"p({label})" for label in predicted.labels_of
    }
    assert len(told) == len(predicted.names)


def test_pairs_of_nodes_are_predicted_by_a_model_of_links(tmp_path):
    """Equal to the model on all edges of the folder; unknown nodes are told by line."""
    site = tmp_path / "data"
    write_nodes(site, 0)
    assert at_site(["schema", str(site), "--out", str(site / "schema.toml")]) == 0
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    path = run_inline({**toys.TINY, **places, "data-dir": str(site), "method": "fedavg",
        "dataset": "graph-csv", "task": "link-prediction", "encoder": "gin",
        "num-clients": 1, "num-server-rounds": 2, "shared-group": "all"})  # fmt: skip
    model = load_model(path / "models", "global")
    with pytest.raises(DataError, match=r"there is no .*pairs.csv; list the pairs"):
        model.predict_folder(site)
    pairs = [["a0", "a1"], ["a2", "b9"], ["a7", "a7"], ["a39", "a3"]]
    write(site / "pairs.csv", ["source", "target"], pairs)
    found = model.predict_folder(site)
    assert (found.names, found.column) == (["2", "4", "5"], "line")
    assert [line for line, _ in found.unfit] == ["3"]
    schema = read_schema(site / "schema.toml")
    graphs = build(site, schema, needs_targets=False)[0]
    known = np.array([[0, 7, 39], [1, 7, 3]])
    whole = with_roles(0, graphs, np.arange(40), np.zeros(40))
    data = NodeData.collate(whole, toys.CPU).whole
    expected = model.module.links(data, None, torch.from_numpy(known)).detach()
    assert np.allclose(found.outputs, expected, atol=1e-6)
    for text, words in (
        ("source\na0\n", "no column 'target'"),
        ("source,target\nx,y\n", "no pair of nodes that are known"),
    ):
        (site / "pairs.csv").write_text(text)
        with pytest.raises(DataError, match=words):
            model.predict_folder(site)


def test_each_line_of_edges_is_predicted_or_has_a_reason(tmp_path):
    """By a model with constants of the run; what is no edge is told, too."""
    site, rng = tmp_path / "data", np.random.default_rng(0)
    write_nodes(site, 0)
    ends = [[f"a{a}", f"a{b}"] for a, b in rng.integers(40, size=(80, 2)) if a != b]
    rows = [[*pair, str(rng.random()), "ny"[n % 2]] for n, pair in enumerate(ends)]
    head = ["source", "target", "sum", "label"]
    write(site / "edges.csv", head, rows)
    command = ["schema", str(site), "--out", str(site / "schema.toml")]
    assert at_site([*command, "--min-count", "1"]) == 0
    text = (site / "schema.toml").read_text().replace('"refuse"', '"drop"', 1)
    (site / "schema.toml").write_text(text)
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    path = run_inline({**toys.TINY, **places, "data-dir": str(site), "method": "fedavg",
        "dataset": "graph-csv", "task": "edge-classification", "encoder": "pna",
        "pna-degree": 2.0, "num-clients": 1, "num-server-rounds": 2,
        "shared-group": "all"})  # fmt: skip
    model = load_model(path / "models", "global")
    final = toys.Run(path, {}).summary["final"]["per_client"]
    assert model.predict_test(site).score() == final["0"]
    with (site / "nodes.csv").open("a") as nodes:
        nodes.write("a40,much,\n")
    bad = [["a1", "a1", "1"], ["a2", "b9", "1"], ["a2", "a3", "x"], ["a2", "a40", "1"]]
    write(site / "edges.csv", head, [*rows, *([*row, "n"] for row in bad)])
    found, last = model.predict_folder(site), len(rows) + 2
    assert sorted(map(int, found.names)) == [*range(2, last)]
    words = "joins a node to itself", "an end is in no table", "got 'x'", "got 'much'"
    for n, (line, why) in enumerate(found.unfit):
        assert line == str(last + n)
        assert words[n] in why
    assert len(found.unfit) == len(words)


@pytest.mark.parametrize(
    "method", mostly_slow(["fclg", "infograph", "mvgrl"], fast=["mvgrl"])
)
def test_embeddings_of_new_graphs_are_those_that_the_run_kept(tmp_path, method):
    for site in (0, 1):
        write_graphs(tmp_path / "data" / f"site-{site}", site)
    schema = str(tmp_path / "data" / "schema.toml")
    command = ["schema", str(tmp_path / "data" / "site-0"), "--out", schema]
    assert at_site([*command, "--min-count", "1"]) == 0
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    path = run_inline({**toys.TINY, **places, "data-dir": str(tmp_path / "data"),
        "dataset": "graphs-csv", "csv-label-kind": "classes", "method": method,
        "num-clients": 2, "num-server-rounds": 1, "shared-group": "all",
        "held-out": "auto"})  # fmt: skip
    own = tmp_path / "state" / path.name / "client-1"
    write_graphs(tmp_path / "new", 1, targets=False)
    words = ["predict", str(own / "model"), str(tmp_path / "new"), "--out"]
    assert at_site([*words, str(tmp_path / "e.csv")]) == 0
    with (tmp_path / "e.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    kept = np.load(own / "embeddings.npz")["embeddings"]
    assert head == ["graph", *(f"e{i}" for i in range(kept.shape[1])), "problem"]
    assert [row[0] for row in rows] == [f"g{g}" for g in range(12)]
    told = np.array([row[1:-1] for row in rows], np.float32)
    assert told.std(0).max() > 0.01  # graphs differ
    assert np.allclose(told, kept, rtol=1e-4, atol=1e-5)
    shared = load_model(path / "models", "global").predict_folder(tmp_path / "new")
    assert np.array_equal(shared.outputs, told)
    assert shared.score() is None
    with pytest.raises(ConfigError, match=r"its run tested none.*without --test"):
        load_model(own / "model").predict_test(tmp_path / "data" / "site-1")


def without(*kept):
    """Top-level modules that these distributions do not bring, with what they need."""
    has, ahead = set(), list(kept)
    while ahead:
        name = re.match(r"[\w.-]+", ahead.pop())[0].lower().replace("_", "-")
        if name not in has:
            has.add(name)
            try:
                ahead += [r for r in requires(name) or () if "extra ==" not in r]
            except ModuleNotFoundError:
                continue  # of another platform
    return [
        module
        for module, owners in packages_distributions().items()
        if not has & {o.lower().replace("_", "-") for o in owners}
    ]


PREDICT = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] not in {gone}:
            return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from fedgraph_flwr.trained import load_model
load_model({model!r}).predict_folder({data!r}).write({out!r})
assert not {gone} & {{m.split(".")[0] for m in sys.modules}}
"""


def molecules(folder, seed, *, targets=True):
    folder.mkdir(parents=True)
    head = ["smiles", *(["y"] if targets else [])]
    rows = [[s + "C" * k, *([k % 2] if targets else [])] for k in range(8) for s in
            ("CO", "CN", "C=O")]  # fmt: skip
    write(folder / "m.csv", head, rows)


ALONE = {
    "gin": ("fedavg", "graphs-csv", write_graphs, {}, None),
    "links": ("fedavg", "graph-csv", write_nodes, {"task": "link-prediction"}, None),
    "gat": ("examples.gat_nodes:METHOD", "graph-csv", write_nodes, {},
            lambda f, h, k: {"first": GATConv(f, h, heads=2),
             "last": GATConv(2 * h, k)}),
    "gine": ("examples.gine:METHOD", "graphs-csv", write_graphs, {},
             lambda f, h, k: {"pre": nn.Linear(f, h), "post": nn.Linear(h, k), "convs":
             nn.ModuleList(GINEConv(nn.Linear(h, h), edge_dim=3) for _ in range(2))}),
    "sage": ("examples.sage:METHOD", "graphs-csv", write_graphs, {},
             lambda f, h, k: {"pre": nn.Linear(f, h), "post": nn.Linear(h, k),
             "convs": nn.ModuleList(SAGEConv(h, h) for _ in range(2))}),
    "molecules": ("fedavg", "smiles-csv", molecules, {"csv-label-columns": "y"}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", mostly_slow(ALONE, fast=["gat", "molecules"]))
def test_a_model_predicts_alone_and_its_weights_are_those_of_plain_layers(
    tmp_path, case, monkeypatch
):
    method, dataset, make, own, plain = ALONE[case]
    for name, seed in {"data": 0, "new": 1}.items():
        make(tmp_path / name, seed, targets=name == "data")
    data, new = tmp_path / "data", tmp_path / "new"
    if dataset == "smiles-csv":
        data, new = data / "m.csv", new / "m.csv"
    else:
        schema = ["schema", str(data), "--out", str(data / "schema.toml")]
        assert at_site([*schema, "--min-count", "1"]) == 0
    if case == "links":
        write(new / "pairs.csv", ["source", "target"], [["a0", "a1"], ["a2", "a9"]])
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    path = run_inline({**toys.TINY, **places, "data-dir": str(data), "dataset": dataset,
        "method": method, "num-clients": 1, "num-server-rounds": 1, "shared-group":
        "all", **own})  # fmt: skip
    models, out = path / "models", tmp_path / "alone.csv"
    here = load_model(models)
    here.predict_folder(new).write(tmp_path / "here.csv")
    kept = ["rdkit"] if case == "molecules" else []
    gone = set(without("torch", "torch-geometric", *kept))
    assert {
        "flwr",
        "ray",
        "sklearn",
        "scipy",
        "pandas",
        "pydantic",
        "safetensors",
    } <= gone
    code = PREDICT.format(gone=gone, model=str(models), data=str(new), out=str(out))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == (tmp_path / "here.csv").read_bytes()
    if case == "molecules":
        monkeypatch.setitem(sys.modules, "rdkit", None)
        with pytest.raises(
            DataError, match=r"cannot be predicted here.*pip install rdkit"
        ):
            here.predict_folder(new)
    if plain:
        spec = here.spec
        widths = spec.num_features, spec.settings.hidden_dim, spec.num_classes
        net = nn.ModuleDict(plain(*widths))
        net.load_state_dict(load_file(models / "global.safetensors"))
        file = method.split(":")[0].replace(".", "/") + ".py"
        assert (models / "method.py").read_text() == (project_root() / file).read_text()
        assert "method.py" in (models / "SHA256SUMS").read_text()
