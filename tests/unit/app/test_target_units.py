"""Numbers to predict: learned by shared scales, told in the units of the files."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import toys
from matrix import mostly_slow

from datasets.molecules import warn_once
from datasets.own.infer import infer_schema
from datasets.tabular.schema_file import write_schema
from fedgraph_flwr.core.data import TELLS, Statistics
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.node import serve
from fedgraph_flwr.results.printed import summary_table, unlike_targets
from fedgraph_flwr.trained import load_model
from simulations.inline import run_inline

CHAINS = [
    f"{'C' * k}{end}" for k in range(1, 7) for end in ("O", "N", "Cl", "[C@H](F)N")
]
RINGED = [*CHAINS, *("C1CC1", "c1ccccc1C", "C1CC1/C=C/F", "N1CCC1", "C1CCC1=O")]
UNITS = 1024.0, 2048.0  # powers of two: scaling by them is exact


@pytest.fixture(autouse=True)
def _quiet():
    warn_once.cache_clear()
    serve.kept_data.clear()
    yield
    serve.kept_data.clear()


def write(path, head, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def value(k, times=1.0, plus=0.0):
    """A quarter of a whole number, in some unit; every seventh is missing."""
    return "" if k % 7 == 3 else repr((k * 5 % 17) / 4 * times + plus)


def molecules(folder, sites=((1.0, 0.0), (1.0, 0.0)), second=1.0, smiles=CHAINS):
    """Files with targets a, in the unit of the site, and b."""
    for site, (times, plus) in enumerate(sites):
        rows = [
            [s, value(k + site, times, plus), value(k + 2, second)]
            for k, s in enumerate(smiles)
        ]
        write(folder / f"{site}.csv", ["smiles", "a", "b"], rows)


def tables(folder, sites=((1.0, 0.0), (1.0, 0.0)), second=1.0):
    """Rings as tables of graphs, with the same targets."""
    for site, (times, plus) in enumerate(sites):
        place, numbers = folder / f"site-{site}", range(len(CHAINS))
        rows = [
            [k, value(k + site, times, plus), value(k + 2, second)] for k in numbers
        ]
        write(place / "graphs.csv", ["graph", "a", "b"], rows)
        ring = [
            (k, n, (n + 1) % (3 + k % 4)) for k in numbers for n in range(3 + k % 4)
        ]
        write(place / "nodes.csv", ["graph", "node", "x"],
            [[k, n, f"{np.sin(k + n):.3f}"] for k, n, _ in ring])  # fmt: skip
        write(place / "edges.csv", ["graph", "source", "target"], ring)


def start(tmp_path, name, method="fedavg", make=molecules, scale="", more=(), **made):
    """Run a method on two sites; ``scale`` is that of target a: (shift, scale)."""
    data = tmp_path / name / "data"
    make(data, **made)
    own = {"dataset": "smiles-csv", "csv-label-columns": "a,b"}
    if make is tables:
        own = {"dataset": "graphs-csv"}
        how = {"targets": ["a", "b"], "kind": "regression", "statistics": False}
        schema, _ = infer_schema(data / "site-0", **how)
        write_schema(schema, data / "schema.toml")
    if scale:
        own["csv-label-scale"] = "a={}:{}".format(*scale)
    places = {
        f"{k}-dir": str(tmp_path / name / k) for k in ("state", "results", "cache")
    }
    config = {**toys.TINY, **places, **own, "data-dir": str(data), "method": method,
        "csv-label-kind": "regression", "num-clients": 2, "num-server-rounds": 2,
        "shared-group": "all", "fgcl.views": "clean", **dict(more)}  # fmt: skip
    return toys.Run(run_inline(config), config)


@pytest.mark.parametrize(
    "own", [{"encoder": "gine"}, {"encoder": "gatv2", "edge-features": False}]
)
def test_models_of_bonds_predict_as_in_the_run(tmp_path, own):
    """Two targets with gaps, split by scaffold; new molecules have bonds, too."""
    more = {"features": "atoms+bonds", "split": "scaffold", **own}
    run = start(tmp_path, "bonds", scale=(2.0, 1.5), more=more, smiles=RINGED)
    folder = tmp_path / "bonds" / "state" / run.path.name / "client-1" / "model"
    site, final = tmp_path / "bonds" / "data" / "1.csv", run.summary["final"]
    model = load_model(folder, cache_dir=str(tmp_path / "cache"))
    test, new = model.predict_test(site), model.predict_folder(site)
    assert test.score() == final["per_client"]["1"]
    assert test.by_target()["a"] == final["by_task"]["mae"]["a"]["1"]
    rows = [new.names.index(name) for name in test.names]
    assert np.allclose(new.outputs[rows], test.outputs, rtol=1e-4)
    plain = replace(model, settings=replace(model.settings, features="atoms"))
    with pytest.raises(DataError, match=r"the model reads 133 features .* of bonds"):
        plain.predict_folder(site)


def close(a, b):
    return a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize("make", [molecules, tables])
@pytest.mark.parametrize(
    "method", mostly_slow(["fedavg", "fedgmtl", "spreadgnn", "fgcl"], fast=["fedavg"])
)
def test_units_change_no_weight_and_come_back(tmp_path, method, make):
    """The same targets in another unit, by its scale: one model, scores in the unit."""
    times, plus = UNITS
    plain = start(tmp_path, "plain", method, make, (0.0, 1.0))
    other = start(
        tmp_path, "other", method, make, (plus, times), sites=((times, plus),) * 2
    )
    weights = [r.path / "models" for r in (plain, other)]
    for file in weights[0].glob("*.safetensors"):
        assert file.read_bytes() == (weights[1] / file.name).read_bytes()
    one, two = (r.summary["best_val"] for r in (plain, other))
    assert one["round"] == two["round"]  # no target chooses it by its unit
    assert one["validation"] == pytest.approx(two["validation"], rel=1e-4)
    found = [r.summary["final"]["by_task"] for r in (plain, other)]
    for metric in ("mae", "mae-of-mean"):
        for client in "01":
            a, b = (f[metric]["a"][client] for f in found)
            assert close(b, a * times)
            assert close(found[1][metric]["b"][client], found[0][metric]["b"][client])
    told = []
    for r, data in ((plain, "plain"), (other, "other")):
        folder = tmp_path / data / "state" / r.path.name / "client-1" / "model"
        site, cache = tmp_path / data / "data" / "1.csv", str(tmp_path / "cache")
        model = load_model(folder, cache_dir=cache)
        if make is tables:
            site = tmp_path / data / "data" / "site-1"
            shutil.copy(site.parent / "schema.toml", site)
        test = model.predict_test(site)
        assert test.score() == r.summary["final"]["per_client"]["1"]
        assert close(
            test.by_target()["a"], r.summary["final"]["by_task"]["mae"]["a"]["1"]
        )
        new = model.predict_folder(site)
        rows = [new.names.index(n) for n in test.names] if make is tables else []
        assert np.allclose(new.outputs[rows], test.outputs[: len(rows)], rtol=1e-4)
        told.append(new.outputs.astype(float))
    assert np.allclose(told[1][:, 0], told[0][:, 0] * times + plus, rtol=1e-5)
    assert np.allclose(told[1][:, 1], told[0][:, 1], rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "scale", "warned", "ends"),
    [
        ({}, "", [], []),
        ({"second": 1e5}, "", ["client 0: targets are far .* b has mean",
         "by csv-label-scale=.a="],
         ["mae by target: a", "b weighs most", "worse than to predict .* b"]),
        ({"sites": [(1e3, 0.0), (1.0, 0.0)]}, (2e3, 1e3),
         ["client 1: scaled targets are far", "values of a are about .* at client 0"],
         ["a weighs most"]),
    ],
)  # fmt: skip
def test_units_far_from_one_or_from_each_other_are_told(
    tmp_path, caplog, made, scale, warned, ends
):
    caplog.set_level(logging.WARNING)
    table = " ".join(
        summary_table(start(tmp_path, "run", scale=scale, **made).summary).split()
    )
    told = [m for m in caplog.messages if "spread" in m or "values of" in m]
    assert bool(told) == bool(warned)
    assert all(re.search(words, "\n".join(told)) for words in warned)
    assert "mae of predicting the mean: a " in table
    assert all(re.search(words, table) for words in ends)
    assert ("weighs most" in table) == bool(ends)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({0: ([2.5], [1.0]), 1: ([2500.0], [1000.0])}, ["values of a", "over clients"]),
        ({0: ([2.4], [1.2]), 1: ([-2.3], [1.2])}, ["signs differ"]),
        ({0: ([2.5], []), 1: ([float("nan")], [1.0])}, []),  # whatever a site sends
    ],
)
def test_the_server_compares_what_sites_tell(told, words):
    nothing = dict.fromkeys(Statistics.__dataclass_fields__, 0.0)
    clients = {}
    for c, (mean, std) in told.items():
        means = {"counts": [], "target_mean": mean, "target_std": std}
        text = json.dumps({**nothing, "num_graphs": 0, "num_nodes": 0, **means})
        clients[c] = toys.info(c, tasks=("a",), introduced={TELLS: text})
    found = unlike_targets(clients, is_scaled=False)
    for line, word in zip(found, words, strict=True):
        assert word in line
