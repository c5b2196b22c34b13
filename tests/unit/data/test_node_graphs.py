"""Graphs whose nodes are classified, from raw files, and the generated ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import toys
from scipy import sparse

import datasets
from datasets import synthetic
from datasets.public.node_graphs import load_node_graph, simple_edges, whole_graph
from fedgraph_flwr.core.errors import DataError

# Our specification of FedGKD, Sec. 3.1: nodes, directed edges, features, classes
SIZES = {
    "Cora": (2485, 10138, 1433, 7),
    "CiteSeer": (2120, 7358, 3703, 6),
    "Photo": (7487, 238086, 745, 8),
    "Computers": (13381, 491556, 767, 10),
    # ../shared/data/README.md, section 14, and Shchur et al. 2018, arXiv:1811.05868
    "CS": (18333, 163788, 6805, 15),
    "Physics": (34493, 495924, 8415, 5),
}
# ../shared/data/README.md, section 5: nodes, undirected edges, features, classes
HETEROPHILOUS_SIZES = {
    "actor": (7600, 26659, 932, 5),
    "chameleon_filtered": (890, 8854, 2325, 5),
    "squirrel_filtered": (2223, 46998, 2089, 5),
    "minesweeper": (10000, 39402, 7, 2),
    "tolokers": (11758, 519000, 10, 2),
    "texas": (183, 279, 1703, 5),
    "cornell": (183, 277, 1703, 5),
    "wisconsin": (251, 450, 1703, 5),
}
# A triangle 0-1-2 with a loop, a repeat and a one-way edge; 3-4 apart; 5 alone.
EDGES = np.array([[0, 1, 0, 1, 2, 2, 3], [1, 0, 1, 2, 2, 0, 4]])
X = np.array([[1, 3], [0, 0], [2, 2], [1, 0], [1, 0], [1, 0]], np.float32)
Y = np.array([0, 1, 0, 2, 2, 2])


def clean(x=X, edges=EDGES, y=Y, *, normalize=True):
    return whole_graph("made-up", x, edges, y, normalize=normalize)


def test_the_simple_edges_is_kept_simple_and_undirected():
    graph = clean()
    assert graph.num_nodes == 3
    expected = [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert graph.edge_index.tolist() == expected
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.num_classes == 3  # of the whole graph, as models need one width
    assert len(graph) == 1
    assert graph.is_undirected


@pytest.mark.parametrize("times", [127, 128, 256, 300])
def test_an_edge_that_is_listed_many_times_is_one(times):
    edges = np.array([[0] * times + [1], [1] * times + [2]])
    ids, kept = simple_edges(edges, 4)
    assert ids.tolist() == [0, 1, 2]
    assert kept.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def test_rows_are_divided_by_their_sum_and_zero_rows_stay():
    np.testing.assert_allclose(clean().x, [[0.25, 0.75], [0, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(clean(normalize=False).x, X[:3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": np.where(X == 3, np.nan, X)},
            "features of made-up hold NaN or infinity in 1 nodes, the first is node 0",
        ),
        ({"x": np.where(X == 3, np.inf, X)}, "NaN or infinity in 1 nodes"),
        ({"y": Y[:-1]}, r"features of shape \(6, 2\), classes of shape \(5,\)"),
        ({"y": Y - 1}, "the least number is -1: every node needs features and a class"),
        ({"edges": EDGES + 2}, "edges of nodes up to 6, "),
    ],
)
def test_bad_graphs_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        clean(**changes)


# ogbn-arxiv ---------------------------------------------------------------------------


def write_ogb(root: Path, *, below="ogb/ogbn-arxiv", tables=None) -> Path:
    """Make all that arxiv.zip holds below its folder, for the graph above."""
    raw = root / below / "raw"
    content = {
        "raw/edge": "\n".join(f"{a},{b}" for a, b in EDGES.T.tolist()),
        "raw/node-feat": "\n".join(",".join(map(str, row)) for row in X.tolist()),
        "raw/node-label": "\n".join(map(str, Y.tolist())),
        "raw/node_year": "\n".join(["2013"] * len(Y)),
        "raw/num-node-list": f"{len(Y)}",
        "raw/num-edge-list": f"{EDGES.shape[1]}",
        "split/time/train": "0\n1\n2",
        "split/time/valid": "3",
        "split/time/test": "4\n5",
        "mapping/nodeidx2paperid": "node idx,paper id\n0,9657784",
    }
    given = {f"raw/{name}": text for name, text in (tables or {}).items()}
    for name, text in {**content, **given}.items():
        path = root / below / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write(text + "\n" if text else "")
    return raw


def load(root, name="ogbn-arxiv", features="raw"):
    return load_node_graph(
        name, features, data_dir=str(root), cache_dir=str(root / "cache")
    )


@pytest.mark.parametrize(
    "below",
    ["ogb/ogbn-arxiv", "ogbn-arxiv", "arxiv", "ogbn_arxiv"],
    ids=["collection", "own-name", "archive", "package-ogb"],
)
def test_ogb_files_are_read_without_ogb(tmp_path, below):
    write_ogb(tmp_path, below=below)
    graph, expected = load(tmp_path), clean(normalize=False)
    for name in ("x", "y", "edge_index"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(expected, name))
    assert graph.raw_sha256
    assert load(tmp_path).raw_sha256 == graph.raw_sha256  # from the cache


def test_missing_ogb_files_name_folder_and_cure(tmp_path, monkeypatch):
    with pytest.raises(
        DataError, match=r"ogbn-arxiv is not in data-dir .*unpack arxiv\.zip"
    ):
        load(tmp_path)
    (write_ogb(tmp_path) / "edge.csv.gz").unlink()
    with pytest.raises(
        DataError, match=r"Looked for edge\.csv\.gz in .*ogbn-arxiv/raw; .*unpack"
    ):
        load(tmp_path)
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"not downloaded by itself: .*set data-dir .*unpack arxiv\.zip"
    ):
        load_node_graph("ogbn-arxiv", "raw", cache_dir=str(tmp_path / "cache"))


# Heterophilous graphs -----------------------------------------------------------------


def write_heterophilous(root: Path, **changes) -> None:
    path = root / "heterophilous" / "actor" / "raw" / "actor.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"node_features": X, "node_labels": Y, "edges": EDGES.T}
    masks = {"train_masks": np.ones((10, len(Y)), bool)}  # of other splits: not used
    kept = {k: v for k, v in {**arrays, **masks, **changes}.items() if v is not None}
    np.savez(path, **kept)


def test_heterophilous_files_are_read(tmp_path):
    write_heterophilous(tmp_path)
    graph, expected = load(tmp_path, "actor"), clean(normalize=False)
    for part in ("x", "y", "edge_index"):
        np.testing.assert_array_equal(getattr(graph, part), getattr(expected, part))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("ogbn-arxiv", {"edge": "0,one"}, "cannot read ogbn-arxiv in .* fetch the"),
        ("ogbn-arxiv", {"edge": "0,1,2"}, "every node needs features and a class"),
        ("actor", {"edges": EDGES}, "every node needs features and a class"),
        ("actor", {"node_labels": Y * 0.5}, "cannot read actor in .*float64"),
        ("actor", {"node_features": X.astype(str)}, "cannot read actor in .*<U"),
        ("actor", {"node_features": X.astype(object)}, "Object arrays cannot be load"),
        ("actor", {"edges": None}, "cannot read actor in .* fetch the data set again"),
        ("Photo", {}, r"cannot read Photo in .*Photo/raw"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, changes, message):
    if name == "actor":
        write_heterophilous(tmp_path, **changes)
    elif name == "Photo":
        raw = tmp_path / "Photo" / "raw"
        raw.mkdir(parents=True)
        (raw / "amazon_electronics_photo.npz").write_bytes(b"no archive")
    else:
        write_ogb(tmp_path, tables=changes)
    with pytest.raises(DataError, match=message):
        load(tmp_path, name)


# Real data ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", HETEROPHILOUS_SIZES)
def test_heterophilous_graphs_have_their_published_sizes(data_dir, tmp_path, name):
    graph = load_node_graph(name, "raw", data_dir=data_dir, cache_dir=str(tmp_path))
    sizes = (graph.num_nodes, graph.edge_index.shape[1] // 2)
    assert (*sizes, graph.num_features, graph.num_classes) == HETEROPHILOUS_SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_real_graphs_have_the_published_sizes(data_dir, name):
    graph = load_node_graph(name, "row-normalized", data_dir=data_dir)
    found = (
        graph.num_nodes,
        graph.edge_index.shape[1],
        graph.num_features,
        graph.num_classes,
    )
    assert found == SIZES[name]
    sums = graph.x.sum(axis=1)
    assert np.allclose(sums[sums > 0], 1, atol=1e-5)


# Pan et al. 2023 (FedGKD), table 4: means over clients of nodes, directed edges
# and clustering coefficient, by number of clients.
TABLE_4 = {
    "Cora": {5: (497, 1871, 0.250), 10: (249, 891, 0.261), 20: (124, 424, 0.266)},
    "CiteSeer": {5: (424, 1411, 0.176), 10: (212, 673, 0.177), 20: (106, 327, 0.181)},
    "Photo": {5: (1497, 42930, 0.431), 10: (749, 19294, 0.458), 20: (374, 8300, 0.478)},
    "Computers": {
        5: (2676, 84202, 0.383),
        10: (1338, 35589, 0.405),
        20: (669, None, 0.418),  # it prints 24 577 edges: see datasets/README.md
    },
}


def clustering(num_nodes, edges):
    """Mean share of pairs of neighbours that are joined; 0 for fewer than two."""
    shape, ones = (num_nodes, num_nodes), np.ones(edges.shape[1])
    matrix = sparse.csr_array((ones, tuple(edges.astype(np.int64))), shape=shape)
    closed = (matrix @ matrix).multiply(matrix).sum(axis=1)
    pairs = matrix.sum(axis=1) * (matrix.sum(axis=1) - 1)
    return np.divide(closed, pairs, where=pairs > 0, out=0 * pairs).mean()


def graphs_of(clients, **settings):
    found = toys.run_settings(num_clients=clients, **settings)
    return [datasets.load_partition(found, c).graphs for c in range(clients)]


@pytest.mark.parametrize("name", TABLE_4)
@pytest.mark.parametrize("clients", [5, 10, 20])
def test_clients_are_those_of_the_papers_table_4(data_dir, name, clients):
    found = graphs_of(clients, dataset=name, partition="metis", data_dir=data_dir)
    nodes, edges, coefficient = TABLE_4[name][clients]
    assert np.mean([g.num_nodes for g in found]) == pytest.approx(nodes, rel=0.02)
    if edges:
        ours = np.mean([g.edge_index.shape[1] for g in found])
        assert ours == pytest.approx(edges, rel=0.02)
    ours = np.mean([clustering(g.num_nodes, g.edge_index) for g in found])
    assert ours == pytest.approx(coefficient, rel=0.04)


# Generated data -----------------------------------------------------------------------


def test_planted_features_are_prototypes_with_noise_of_deviation_1():
    settings = toys.run_settings(dataset="planted", split_seed=7)
    graphs = [synthetic.generate_planted(client, settings) for client in range(10)]
    block = np.repeat(np.arange(4), 25)
    noise = np.stack([g.x - synthetic.prototypes(settings)[block] for g in graphs])
    assert abs(noise.mean()) < 0.02  # 32,000 numbers
    assert abs(noise.std() - 1) < 0.02
    edges = np.concatenate([block[g.edge_index] for g in graphs], axis=1)
    inside = (edges[0] == edges[1]).sum() / (10 * 4 * 25 * 24)
    between = (edges[0] != edges[1]).sum() / (10 * 12 * 25 * 25)
    assert abs(inside - 0.12) < 0.01
    assert abs(between - 0.03) < 0.003
