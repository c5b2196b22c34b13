"""``fedgraph site import``: tables of matrices, of nodes and edges; what is refused."""

import os
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import at_site

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.seeding import numpy_rng

SUBJECTS = "who,state,ward,age\n007,ill,north,40\n7,well,north,50\n1e5,ill,south,60\n"
ACCOUNTS = ";acc;fraud;bank;since\n0;007;0;A;2,5\n1;7;1;A;1\n2;1e5;0;B;3\n"
TRANSFERS = "from;to;sum;when;bad\n007;7;1,5;10;0\n7;1e5;2,5;20;1\n9;9;3;30;0\n"
MATRIX = "m.npy --table subjects.csv --id who"
TABLES = "--edges t.csv --source from --target to"
NODES = "--nodes a.csv --id acc"
LABELS = "--label fraud --edge-label bad"
OF_A = """source,target,time,label,sum
007,7,10,0,1.5
7,1e5,20,1,2.5
"""


class Touches:
    """Who unpickles it makes a file."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def matrices(dtype=np.float32):
    """Three symmetric matrices of four regions; the diagonal is infinite."""
    made = numpy_rng(1, "matrices").normal(size=(3, 4, 4)).astype(dtype)
    made = made + made.transpose(0, 2, 1)
    made[:, range(4), range(4)] = np.inf
    made[0, 1, 2] = made[0, 2, 1] = 0
    return made


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Type an import of small files into ``out``; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    made = matrices()
    (tmp_path / "subjects.csv").write_text(SUBJECTS)
    (tmp_path / "a.csv").write_text(ACCOUNTS)
    (tmp_path / "t.csv").write_text(TRANSFERS)
    (tmp_path / "bare.csv").write_text(TRANSFERS.split("\n", 1)[1])
    (tmp_path / "float.csv").write_text(TRANSFERS.replace("007;7;", "007;7.0;"))
    (tmp_path / "twice.csv").write_text(SUBJECTS.replace("1e5", "7"))
    i, j = np.triu_indices(4, 1)
    np.save("m.npy", made)
    np.savez(
        "m.npz", fc=made[:, i, j], names=np.array([Touches()], object), r=np.ones(4)
    )
    np.savez("two.npz", a=made, b=made)
    np.save("objects.npy", np.array([[None]], object))
    np.save("flat.npy", np.ones(9))
    np.save("ones.npy", (made + 2 * np.eye(4))[:, *np.triu_indices(4)])
    bent, gap, wide = made.copy(), made.copy(), np.ones((3, 4, 5))
    bent[1, 0, 3] += 1
    gap[2, 0, 3] = np.nan
    for name, array in {
        "bent": bent,
        "gap": gap,
        "wide": wide,
        "few": made[:2],
    }.items():
        np.save(f"{name}.npy", array)
    (tmp_path / "each").mkdir()
    (tmp_path / "each/about.txt").write_text("no matrix")
    for name, one in zip(["007", "7", "other"], made, strict=True):
        np.save(f"each/{name}.npy", one)
    return lambda line: at_site(["import", *shlex.split(line), "--out", "out"])


def read(name):
    return pd.read_csv(f"out/{name}", dtype=str, keep_default_na=False)


@pytest.mark.parametrize("source", ["m.npy", "m.npz", "each"])
@pytest.mark.parametrize(
    ("option", "chosen"),
    [
        ("--density 0.5", lambda w: np.sort(np.argsort(-abs(w), kind="stable")[:3])),
        ("--threshold 1", lambda w: np.flatnonzero(abs(w) >= 1)),
        ("", np.flatnonzero),
    ],
)
def test_matrices_equal_a_plain_reading(typed, source, option, chosen):
    assert typed(f"{source} {MATRIX[6:]} --label state {option}") == 0
    graphs, nodes, edges = map(read, ("graphs.csv", "nodes.csv", "edges.csv"))
    assert list(graphs) == ["graph", "label", "ward", "age"]
    assert list(graphs.graph) == ["007", "7", "1e5"][: len(graphs)]
    assert not Path("unpickled").exists()
    assert len(graphs) == (2 if source == "each" else 3)
    i, j = np.triu_indices(4, 1)
    for name, matrix in zip(graphs.graph, matrices(), strict=False):
        np.fill_diagonal(matrix, 0)
        rows = nodes[nodes.graph == name].iloc[:, 2:].to_numpy(np.float32)
        assert (rows == matrix).all()
        own, at = edges[edges.graph == name], chosen(matrix[i, j])
        assert (own.source.astype(int) == i[at]).all()
        assert (own.target.astype(int) == j[at]).all()
        assert (own.weight.to_numpy(np.float32) == matrix[i, j][at]).all()


def test_sites_of_matrices_are_folders_and_a_schema_goes_on_from_them(typed, tmp_path):
    assert typed(f"{MATRIX} --label state --site ward --node-features none") == 0
    assert list(read("north/graphs.csv")) == ["graph", "label", "age"]
    assert list(read("south/graphs.csv").graph) == ["1e5"]
    assert list(read("south/nodes.csv")) == ["graph", "node"]
    options = "--targets label --min-count 1 --out s.toml"
    assert at_site(["schema", "out/north", *options.split()]) == 0
    data, *_ = build(tmp_path / "out/north", read_schema(tmp_path / "s.toml"))
    assert len(data) == 2


def test_accounts_and_transfers_of_each_bank(typed, tmp_path, capsys):
    assert typed(f"{TABLES} {NODES} {LABELS} --time when --site bank") == 0
    told = capsys.readouterr().out
    assert "1 end(s) of edges, such as '9', are in no row of a.csv" in told
    assert "a.csv: a column without a name is left out" in told
    assert "1 of 3 edges join no node" in told
    assert "out/A: 2 nodes, 2 edges, 1 with one end elsewhere" in told
    assert (tmp_path / "out/A/edges.csv").read_text() == OF_A
    assert (tmp_path / "out/A/nodes.csv").read_text() == (
        "node,label,since\n007,0,2.5\n7,1,1\n"
    )
    assert read("B/edges.csv").equals(
        read("A/edges.csv").iloc[1:].reset_index(drop=True)
    )


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"{TABLES} --drop sum", ["007", "7", "1e5", "9"]),
        (f"{TABLES} {NODES} --all-nodes --drop fraud", ["007", "7", "1e5", "9"]),
        (f"{TABLES} {NODES} --label fraud", ["007", "7", "1e5"]),
        ("--edges bare.csv --header source,target,a,b,c", ["007", "7", "1e5", "9"]),
    ],
)
def test_nodes_are_those_of_a_table_or_the_ends_of_edges(typed, tmp_path, line, names):
    assert typed(line) == 0
    assert list(read("nodes.csv").node) == names
    assert len(read("edges.csv")) == 3 - (len(names) == 3)
    if "fraud" in line and "drop" not in line:
        assert infer_schema(tmp_path / "out", min_count=1)[0].classes == ("0", "1")


REFUSED = {
    "objects.npy --table subjects.csv --id who": "cannot be read as numbers: Array",
    "flat.npy --table subjects.csv --id who": "got (9,) float64; save numbers",
    "two.npz --table subjects.csv --id who": "choose one by --array",
    "t.csv --table subjects.csv --id who": "must end with .npy or .npz; save numbers",
    "bent.npy --table subjects.csv --id who": "subject 7: the matrix is not symmetric",
    "gap.npy --table subjects.csv --id who": "subject 1e5: 1 cells are no finite",
    "wide.npy --table subjects.csv --id who": "subject 007: shape (4, 5) is not (4, 4)",
    "ones.npy --table subjects.csv --id who": "as if triangles had their diagonals",
    "few.npy --table subjects.csv --id who": "2 matrices, subjects.csv has 3 rows",
    "m.npy --table twice.csv --id who": "twice.csv: '7' is there twice",
    f"{TABLES} --nodes a.csv --id bank": "a.csv: 'A' is there twice",
    "m.npy --table subjects.csv --id name": "has no column 'name'",
    "m.npy --table subjects.csv": "give either FILES of matrices with --table, --id",
    "each --table a.csv --id since": "are no subject of a.csv, which has '2.5'",
    f"{TABLES} {NODES} --label bank --density 1": "give either FILES",
    f"{TABLES} --label fraud": "--id, --label and --site are columns of --nodes",
    f"{TABLES} {NODES} --time sum --edge-label to --site x": "has no column 'x'",
    "--edges t.csv --source from --target to --nodes a.csv --id since": "none is there",
    "--edges float.csv --source from --target to --nodes a.csv --id acc": "got '7.0'",
    "--edges bare.csv": "a line of names if there is none",
    "": "give either FILES",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_imported_is_refused_and_nothing_is_left(
    typed, tmp_path, line, capsys
):
    before = {*tmp_path.iterdir()}
    assert typed(line) == 2
    assert REFUSED[line] in " ".join(capsys.readouterr().err.split())
    assert {*tmp_path.iterdir()} == before


def test_a_folder_is_never_overwritten(typed, capsys):
    assert typed(TABLES) == 0
    assert typed(TABLES) == 2
    assert "out is there already; name a new folder" in capsys.readouterr().err


def test_real_files_equal_a_plain_reading(data_dir, tmp_path, monkeypatch):
    """Of two hospitals among sixteen, and of a bank's simulated transfers."""
    monkeypatch.chdir(tmp_path)
    abide, bank = f"{data_dir}/abide", f"{data_dir}/amlsim/20K_fanin200"
    people = pd.read_csv(f"{abide}/subjects.csv", dtype={"subject": str})
    few = people[people.site.isin(["CMU", "SBL"])]
    few.to_csv("few.csv", index=False)
    fc = np.load(f"{abide}/fc_ho.npz")["fc"][few.index]
    np.savez("few.npz", fc=fc)
    line = "few.npz --table few.csv --id subject --label label --site site --out out"
    assert at_site(["import", *line.split(), "--threshold", "0.5"]) == 0
    i, j = np.triu_indices(111, 1)
    for name in ("CMU", "SBL"):
        graphs, edges = read(f"{name}/graphs.csv"), read(f"{name}/edges.csv")
        there = (few.site == name).to_numpy()
        assert list(graphs.graph) == list(few.subject[there])
        subject, at = np.nonzero(abs(fc[there].astype(np.float32)) >= 0.5)
        assert list(edges.graph) == list(graphs.graph.to_numpy()[subject])
        assert (edges.source.astype(int) == i[at]).all()
        assert (edges.target.astype(int) == j[at]).all()
        weights = edges.weight.to_numpy(np.float32)
        assert (weights == fc[there][subject, at]).all()
    line = f"--nodes {bank}/nodes.csv --edges {bank}/transactions.csv --id nodeid"
    line += " --label isFraud --source sourceNodeId --target targetNodeId --out bank"
    assert at_site(["import", *line.split()]) == 0
    plain = pd.read_csv(f"{bank}/transactions.csv")
    plain.columns = ["source", "target", "value", "time"]
    assert pd.read_csv("bank/edges.csv").equals(plain)
    assert pd.read_csv("bank/nodes.csv").label.sum() == 954
