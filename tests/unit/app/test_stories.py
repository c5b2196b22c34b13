"""The stories in docs: from the files that people have to predictions of a model.

A bank, a hospital and a laboratory; the pages have the numbers, of longer runs.
"""

from __future__ import annotations

import pytest
import toys
from commands import at_site

from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.trained import load_model
from simulations.example_data import write_examples
from simulations.inline import run_inline

TRANSFERS = """--id account --label role --source from_account --target to_account
    --time ts --edge-label fraud
    --nodes {raw}/accounts.csv --edges {raw}/transfers.csv"""
MATRICES = """{raw}/matrices.npy --table {raw}/subjects.csv --id subject
    --label diagnosis --density 0.3 --node-features none"""
STORIES = {
    "transfers": {
        "dataset": "graph-csv",
        "task": "edge-classification",
        "split": "time",
        "encoder": "gine",
        "direction": "separate",
    },
    "connectomes": {
        "dataset": "graphs-csv",
        "csv-label-kind": "classes",
        "encoder": "graphconv",
        "folds": 5,
        "fold": 2,
    },
    "compounds": {
        "dataset": "smiles-csv",
        "csv-label-kind": "regression",
        "csv-label-scale": "logD=1.4:1.7,IC50_nM=1500:1700",
        "features": "atoms+bonds",
        "encoder": "gine",
        "split": "scaffold",
    },
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Files of :func:`write_examples`; tables of banks and hospitals made of them."""
    root = tmp_path_factory.mktemp("stories")
    write_examples(root / "raw")
    for kind, words in (("transfers", TRANSFERS), ("connectomes", MATRICES)):
        sites = sorted((root / "raw" / kind).iterdir())
        for raw in sites:
            out = root / kind / raw.name
            assert not at_site(
                ["import", *words.format(raw=raw).split(), "--out", str(out)]
            )
        schema = root / kind / "schema.toml"
        target = ["--targets", "label"] * (kind == "connectomes")
        first = str(root / kind / sites[-1].name)
        assert not at_site(["schema", first, "--out", str(schema), *target])
        if kind == "transfers":
            text = schema.read_text().replace('outside = "refuse"', 'outside = "node"')
            schema.write_text(text)
    (root / "raw" / "compounds").rename(root / "compounds")
    return root


@pytest.mark.parametrize("story", STORIES)
def test_predictions_are_those_of_the_run(examples, story, tmp_path):
    """Site 0's own model, on the files of site 0 alone, has the score of the run."""
    data = examples / story
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "cache", "results")}
    path = run_inline(
        {**toys.TINY, "shared-group": "all", "method": "fedavg", "num-clients": 3,
         "num-server-rounds": 2, "data-dir": str(data), **places, **STORIES[story]}
    )  # fmt: skip
    summary = load_summary(path)
    assert summary["status"] == "completed"
    model = load_model(tmp_path / "state" / path.name / "client-0" / "model")
    site = min(p for p in data.iterdir() if p.name != "schema.toml")
    if site.is_dir():
        (site / "schema.toml").write_bytes((data / "schema.toml").read_bytes())
    found = model.predict_test(site, client=0)
    assert found.score() == summary["final"]["per_client"]["0"]
    assert len(found.names) >= 8
    new = model.predict_folder(site)  # all of its items, as if they were new
    assert found.column == new.column
    rows = [new.names.index(name) for name in found.names]
    assert new.outputs[rows].shape == found.outputs.shape
    if story != "transfers":  # whose later edges the run's test items do not see
        assert abs(new.outputs[rows] - found.outputs).max() < 1e-4
