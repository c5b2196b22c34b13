"""The example files of own data: what they hold, and that they can be read."""

import numpy as np
import pytest

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.own.smiles import CsvFormat, build_from_csv
from datasets.tabular.schema_file import read_schema
from examples import fold_edges
from simulations.cli import main as fedgraph
from simulations.example_data import (
    BAD_SITE,
    BANKS,
    COMPOUNDS,
    EXPORTS,
    LABS,
    SCANNERS,
    SITES,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("example") / "new"
    assert fedgraph(["example-data", str(made)]) == 0
    return made


def test_whole_graphs_fit_the_schema_of_one_site_but_for_two_rows(folder):
    schema, _ = infer_schema(folder / "graphs" / "north")
    for site, count in SITES.items():
        data, *_ = build(folder / "graphs" / site, schema)
        bad = 2 if site == BAD_SITE else 0
        assert len(data.bad) == bad
        assert len(data.row) == count - bad
        assert data.not_used == []


def test_banks_fit_the_schema_of_one(folder):
    schema, _ = infer_schema(folder / "bank" / "bank-a")
    for site, count in BANKS.items():
        data, *_ = build(folder / "bank" / site, schema, bad_rows="refuse")
        assert data.node_ptr.tolist() == [0, count]
        assert 0.5 < (data.y >= 0).mean() < 0.8


def test_molecules_are_smiles_with_a_number(folder):
    form = CsvFormat("smiles", "", "refuse", "regression")
    for lab, count in LABS.items():
        path = folder / "molecules" / f"{lab}.csv"
        found = build_from_csv("x", path, form, raw_sha256="")
        assert found.tasks == ["solubility"]  # and not their id
        assert len(found) == count


def test_exports_of_banks_are_imported_with_their_fraud(folder, tmp_path):
    for bank, count in EXPORTS.items():
        files, out = folder / "transfers" / bank, tmp_path / bank
        words = f"""site import --nodes {files}/accounts.csv --edges
            {files}/transfers.csv --id account --label role --source from_account
            --target to_account --time ts --edge-label fraud --out {out}"""
        assert fedgraph(words.split()) == 0
        if bank == "alpha":
            schema = tmp_path / "schema.toml"
            words = f"site schema {out} --out {schema}"
            assert fedgraph(words.split()) == 0
            text = schema.read_text()
            assert text.count('outside = "refuse"') == 1
            schema.write_text(text.replace('outside = "refuse"', 'outside = "node"'))
        read = read_schema(tmp_path / "schema.toml")
        data, *_ = build(out, read, bad_rows="refuse")
        assert (data.y >= 0).sum() > 0.7 * count
        assert 0.015 < (data.edge_y == read.edges.classes.index("yes")).mean() < 0.02
        assert (not data.is_undirected, data.num_edge_features) == (True, 4)


def test_matrices_of_hospitals_are_imported_with_their_weights(folder, tmp_path):
    for site, count in SCANNERS.items():
        files, out = folder / "connectomes" / site, tmp_path / site
        words = f"site import --id subject --density 0.3 --out {out}"
        known = f" --label diagnosis --table {files}/subjects.csv {files}/matrices.npy"
        assert fedgraph((words + known).split()) == 0
        schema = infer_schema(out, targets=["label"])[0]
        assert [f.column for f in schema.graph_features] == ["age", "sex"]
        data, *_ = build(out, schema)
        assert (len(data), data.num_features) == (count, 24)
        assert data.edge_weight.max() > 0.5
        new = f"-new --table {files}/new-subjects.csv {files}/new-matrices.npy"
        assert fedgraph((words + new).split()) == 0
        assert len((tmp_path / f"{site}-new/graphs.csv").read_text().split()) == 1 + 6


def test_compounds_have_two_numbers_with_gaps(folder):
    form = CsvFormat("smiles", "", "refuse", "regression")
    for lab, count in COMPOUNDS.items():
        path = folder / "compounds" / f"{lab}.csv"
        found = build_from_csv("x", path, form, raw_sha256="")
        assert (found.tasks, len(found)) == (["logD", "IC50_nM"], count)
        assert 0.5 < (~np.isnan(found.y)).mean() < 0.8


def test_nothing_is_written_over(folder, capsys):
    assert fedgraph(["example-data", str(folder)]) == 2
    assert "is not empty; name a new folder" in capsys.readouterr().err
    assert (
        fedgraph(["example-data", str(folder / "graphs" / "north" / "nodes.csv" / "x")])
        == 2
    )


def test_amounts_of_edges_are_folded_into_columns_of_nodes(tmp_path):
    nodes, edges = "graph,node\ng,a\ng,b\nh,a\n", "graph,source,target,eur\n"
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text(f"{edges}g,a,b,10\ng,a,b,5.5\n")
    found = [list(row.values())[2:] for row in fold_edges.fold(tmp_path, "eur")]
    assert found == [[2, 15.5, 10, 0, 0, 0], [0, 0, 0, 2, 15.5, 10], [0] * 6]


@pytest.mark.parametrize(
    ("out", "cell", "column", "words"),
    [
        ("nodes.csv", "1", "eur", "nodes.csv is there already"),
        ("new.csv", "", "eur", "edges.csv, line 2, column 'eur': must be a finite"),
        ("new.csv", "1_0", "eur", "got '1_0'; correct it"),
        ("new.csv", "1", "usd", "line 1: has no column 'usd'"),
        ("new.csv", "1", "eur", ""),
    ],
)
def test_folding_writes_over_nothing(tmp_path, capsys, out, cell, column, words):
    (tmp_path / "nodes.csv").write_text("node\na\n-b\n")
    (tmp_path / "edges.csv").write_text(f"source,target,eur\na,-b,{cell}\n")
    given = [str(tmp_path), column, "--out", str(tmp_path / out)]
    assert fold_edges.main(given) == (2 if words else 0)
    assert words in capsys.readouterr().err
    assert (tmp_path / "nodes.csv").read_text() == "node\na\n-b\n"
    assert (tmp_path / "new.csv").exists() == (not words)
    if not words:
        assert (tmp_path / out).read_text().splitlines()[2] == "-b,0,0,0.0,1,1.0,1.0"
