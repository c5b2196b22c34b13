"""MoleculeNet sets and their partition."""

import logging

import numpy as np
import pytest
import toys

import datasets
from datasets import partitioners
from datasets.public.moleculenet import RAW, load_moleculenet
from fedgraph_flwr.core.data import SPLITS
from fedgraph_flwr.core.errors import DataError

# Refused: rows 1 (valence) and 4 (no SMILES). Row 2 has one atom.
BBBP = (
    "num,name,p_np,smiles\n"
    "1,first,1,CCO\n"
    "2,five bonds,0,CN(C)(C)(C)C\n"
    '3,"salt, of a kind",0,[Na+]\n'
    "\n"
    "4,last,1,c1ccccc1\n"
    "5,odd,1,nonsense\n"
    "6,apart,0,C.C\n"
)
TOX21 = "{tasks},mol_id,smiles\n0,1,,0,,,,,,,,1,T1,CC\n,,,,,,,,,,,,T2,C\n".format(
    tasks=",".join(f"t{k}" for k in range(12))
)

# The table of ../shared/data/README.md: graphs, mean nodes, mean directed edges, tasks,
# missing labels; and with one atom (counted once, by this code).
COUNTS = {
    "SIDER": (1427, 33.64, 70.72, 27, 0, 25),
    "BACE": (1513, 34.09, 73.72, 1, 0, 0),
    "ClinTox": (1480, 26.25, 55.97, 2, 0, 1),
    "BBBP": (2039, 24.06, 51.91, 1, 0, 0),
    "Tox21": (7823, 18.57, 38.58, 12, 16012, 16),
    "QM8": (21786, 7.77, 16.17, 12, 0, 3),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data folder with small sets; no environment fallbacks."""
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    monkeypatch.setenv("FEDGRAPH_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data", "BBBP", BBBP)
    write(tmp_path / "data", "Tox21", TOX21)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Settings of 300 molecules C, CC, CCC, ... as BBBP: row r has r % 40 + 1 atoms."""
    root = tmp_path_factory.mktemp("chains")
    rows = [f"{r},n,{r % 2},{'C' * (r % 40 + 1)}\n" for r in range(300)]
    write(root / "data", "BBBP", "num,name,p_np,smiles\n" + "".join(rows))

    def settings(**changes):
        base = {"dataset": "BBBP", "partition": "auto", "num_clients": 4}
        folders = {"data_dir": str(root / "data"), "cache_dir": str(root / "cache")}
        return toys.run_settings(**{**base, **folders, **changes})

    return settings


def write(folder, name, text, layout="moleculenet"):
    path = folder / layout / RAW[name].key / "raw" / RAW[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- reading ---


def test_small_set_by_hand(folder, caplog):
    found = load_moleculenet("BBBP", data_dir=str(folder))
    assert found.name == "BBBP"
    assert found.tasks == ["p_np"]
    assert found.y.tolist() == [[1], [0], [1], [0]]
    assert found.row.tolist() == [0, 2, 3, 5]
    assert found.node_ptr.tolist() == [0, 3, 4, 10, 12]
    assert found.edge_ptr.tolist() == [0, 4, 4, 16, 16]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "BBBP: RDKit refuses 2 of 6 molecules of " in line
    assert "\n    row 1: Explicit valence" in line
    assert "\n    row 4: not a SMILES string" in line


def test_features_and_edges_are_those_of_each_molecule(folder):
    graphs = load_moleculenet("BBBP", data_dir=str(folder)).take(np.array([3, 0, 2]))
    for g, smiles in enumerate(("C.C", "CCO", "c1ccccc1")):
        x, edges = toys.smiles_to_graph(smiles)
        nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
        own = slice(graphs.edge_ptr[g], graphs.edge_ptr[g + 1])
        assert np.array_equal(graphs.x[nodes], x)
        assert np.array_equal(graphs.edge_index[:, own], edges)
    assert graphs.y.tolist() == [[0], [1], [1]]
    assert (graphs.num_features, graphs.num_classes) == (133, 1)
    assert graphs.x.flags.writeable  # a copy


def test_missing_labels_are_nan(folder):
    found = load_moleculenet("Tox21", data_dir=str(folder))
    assert found.tasks == [f"t{k}" for k in range(12)]
    nan = np.nan
    first = [0, 1, nan, 0, *[nan] * 7, 1]
    assert np.array_equal(found.y, [first, [nan] * 12], equal_nan=True)
    assert found.y.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("ESOL", "id,guess,log,smiles\na,9,-0.77,CCO\nb,8,1.5,C\n", "log"),
        ("FreeSolv", "iupac,smiles,expt,calc\na,CCO,-0.77,9\nb,C,1.5,8\n", "expt"),
        ("Lipo", "id,exp,smiles\na,-0.77,CCO\nb,1.5,C\n", "exp"),
    ],
)
def test_numbers_come_from_the_column_that_was_measured(folder, name, text, task):
    write(folder, name, text)
    found = load_moleculenet(name, data_dir=str(folder))
    assert found.tasks == [task]
    np.testing.assert_allclose(found.y, [[-0.77], [1.5]])
    assert np.diff(found.node_ptr).tolist() == [3, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BBBP.rstrip(), r"BBBP.csv is empty or cut off"),
        ("", r"BBBP.csv is empty or cut off"),
        ("num,name,p_np,smiles\n1,a,x,CC\n", r"'BBBP' in .*BBBP.csv cannot be read"),
        ("num,name,p_np,smiles\n1,a,1,CC\n2,b,1\n", r"line 3 has 3 cells, the header"),
    ],
)
def test_bad_files_are_named(folder, text, message):
    write(folder, "BBBP", text)
    with pytest.raises(DataError, match=message):
        load_moleculenet("BBBP", data_dir=str(folder))


def test_absent_sets_name_the_places(folder):
    message = (
        r"'BACE' is not in data-dir .*bace.csv in .*moleculenet/bace/raw.*to download"
    )
    with pytest.raises(DataError, match=message):
        load_moleculenet("BACE", data_dir=str(folder))
    with pytest.raises(
        DataError, match=r"'QM8' is not downloaded by itself: .*set data-dir"
    ):
        load_moleculenet("QM8")


# --- partition quantity-skew ---


def test_held_out_graphs_are_everybodys_and_the_others_shared_out(chains):
    parts = [datasets.load_partition(chains(), client) for client in range(4)]
    rows = {
        split: [p.graph_ids[p.positions(split)].tolist() for p in parts]
        for split in SPLITS
    }
    assert all(rows[split] == [rows[split][0]] * 4 for split in ("val", "test"))
    assert (len(rows["val"][0]), len(rows["test"][0])) == (30, 30)
    trained = [row for own in rows["train"] for row in own]
    everyone = sorted([*trained, *rows["val"][0], *rows["test"][0]])
    assert everyone == list(range(300))
    assert min(map(len, rows["train"])) >= 10
    shares = partitioners.quantity_skew(
        np.sort(trained), 4, seed=chains().split_seed, alpha=chains().dirichlet_alpha
    )
    assert rows["train"] == [share.tolist() for share in shares]
    for part in parts:
        assert np.diff(part.graphs.node_ptr).tolist() == [
            row % 40 + 1 for row in part.graph_ids
        ]
        assert part.graphs.y[:, 0].tolist() == [row % 2 for row in part.graph_ids]
        assert part.tasks == ("p_np",)
        assert part.shares_held_out


def test_rows_that_rdkit_refuses_shift_no_row_number(folder):
    """Another RDKit may take them, and accounts of privacy are kept by row."""
    rows = [f"{r},n,{r % 2},{'C' * (r + 1) if r % 9 else 'no'}\n" for r in range(90)]
    write(folder, "BBBP", "num,name,p_np,smiles\n" + "".join(rows))
    settings = toys.run_settings(
        dataset="BBBP", partition="auto", num_clients=2, data_dir=str(folder)
    )
    for client in range(2):
        part = datasets.load_partition(settings, client)
        assert np.diff(part.graphs.node_ptr).tolist() == (part.graph_ids + 1).tolist()


def test_shares_that_cannot_be(monkeypatch):
    with pytest.raises(DataError, match=r"39 training graphs .* 4 .* num-clients to 3"):
        partitioners.quantity_skew(np.arange(39), 4, seed=0, alpha=1)
    monkeypatch.setattr(partitioners, "MAX_DRAWS", 50)
    with pytest.raises(DataError, match=r"Dirichlet\(0.01\).*raise dirichlet-alpha"):
        partitioners.quantity_skew(np.arange(100), 8, seed=0, alpha=0.01)


# --- settings ---


# --- real data ---


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_readme(name, data_dir, real_cache):
    num_graphs, nodes, edges, num_tasks, num_missing, num_single = COUNTS[name]
    found = load_moleculenet(name, cache_dir=real_cache)
    assert len(found) == num_graphs
    assert round(float(found.node_ptr[-1]) / num_graphs, 2) == nodes
    assert round(float(found.edge_ptr[-1]) / num_graphs, 2) == edges
    assert found.y.shape == (num_graphs, num_tasks)
    assert len(set(found.tasks)) == num_tasks
    assert np.isnan(found.y).sum() == num_missing
    assert (np.diff(found.node_ptr) == 1).sum() == num_single
    values = set(np.unique(found.y[~np.isnan(found.y)]).tolist())
    assert (values == {0, 1}) == (name != "QM8")
