"""Planetoid's pickles: those of arrays are read, others are refused before they run."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from scipy import sparse

from datasets.public.node_graphs import load_node_graph, read_part
from fedgraph_flwr.core.errors import DataError

NUM_NODES = 510  # PyTorch Geometric counts on 500 nodes to validate on
RING = {k: [(k + 1) % NUM_NODES, (k - 1) % NUM_NODES] for k in range(NUM_NODES)}
FEATURES = np.eye(3, dtype=np.float32)[np.arange(NUM_NODES) % 3]
CLASSES = np.eye(2)[np.arange(NUM_NODES) % 2]


class Runs:
    """What a crafted file holds: it makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return (os.mkdir, (str(self.made),))


class Python2(pickle._Pickler):
    """Writes texts and bytes as Python 2 did: one kind of string."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value) -> None:
        content = value.encode() if isinstance(value, str) else value
        size = struct.pack("<i", len(content))
        self.write(pickle.BINSTRING + size + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def as_published(value) -> bytes:
    """Pickle as in the published files: Python 2, and names of an old SciPy."""
    file = io.BytesIO()
    Python2(file, protocol=2).dump(value)
    old = file.getvalue().replace(b"scipy.sparse._csr\n", b"scipy.sparse.csr\n")
    return old.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")


def write(root: Path, name="CiteSeer", dump=pickle.dumps, **parts) -> Path:
    """Make a small graph: a ring, of which the last two nodes are held out."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    graph = defaultdict(list, RING)
    content = {
        "x": sparse.csr_matrix(FEATURES[:2]),
        "y": CLASSES[:2],
        "tx": sparse.csr_matrix(FEATURES[-2:]),
        "ty": CLASSES[-2:],
        "allx": sparse.csr_matrix(FEATURES[:-2]),
        "ally": CLASSES[:-2],
        "graph": graph,
        **parts,
    }
    for part, value in content.items():
        (raw / f"ind.{name.lower()}.{part}").write_bytes(dump(value))
    (raw / f"ind.{name.lower()}.test.index").write_text("508\n509\n")
    return raw


def load(root: Path, name="CiteSeer"):
    cache = str(root / "cache")
    return load_node_graph(name, "raw", data_dir=str(root), cache_dir=cache)


def test_pubmed_is_read_in_its_published_form(tmp_path):
    raw = write(tmp_path, "PubMed", as_published)
    (raw / "ind.pubmed.test.index").write_text("509\n508\n")  # in no order
    assert b"cscipy.sparse.csr\ncsr_matrix\n" in (raw / "ind.pubmed.allx").read_bytes()
    graph = load(tmp_path, "PubMed")
    turned = [*range(NUM_NODES - 2), NUM_NODES - 1, NUM_NODES - 2]
    np.testing.assert_array_equal(graph.x, FEATURES[turned])
    assert graph.y.tolist() == [turned[k] % 2 for k in range(NUM_NODES)]
    assert graph.edge_index.shape == (2, 2 * NUM_NODES)


@pytest.mark.parametrize("part", ["x", "graph"])
def test_a_file_that_would_run_code_is_refused_and_does_not(tmp_path, part):
    made = tmp_path / "made"
    write(tmp_path, **{part: Runs(made)})
    with pytest.raises(
        DataError, match=rf"ind\.citeseer\.{part} is not taken: .*mkdir"
    ):
        load(tmp_path)
    assert not made.exists()
    raw = tmp_path / "CiteSeer" / "raw"
    pickle.loads((raw / f"ind.citeseer.{part}").read_bytes())  # it would have run
    assert made.exists()


def pointing_outside(**changes):
    """Make a sparse matrix that says its entries stand elsewhere."""
    matrix = sparse.csr_matrix(FEATURES[:2])
    for name, value in changes.items():
        setattr(matrix, name, value)
    return matrix


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("x", pointing_outside(indices=np.array([0, 10**6])), "indices"),
        ("x", pointing_outside(indptr=np.array([0, 1, 10**6])), "index pointer"),
        ("x", pointing_outside(check_format=defaultdict), "methods of its own"),
        ("x", np.array([["a"]], dtype=object), "not numbers"),
        ("x", np.ones(3), "not a matrix"),
        ("y", [1, 2], "not a matrix"),
        ("graph", [1, 2], "not a dict"),
        ("graph", {0: (1,)}, "ints to lists"),
        ("graph", {0: ["1"]}, "do not hold ints"),
        ("graph", np.float64(1.0), "numpy"),
        ("y", b"no pickle at all", ""),
        ("y", b"", ""),
    ],
)
def test_what_is_no_matrix_or_graph_is_refused(tmp_path, part, value, problem):
    raw = write(tmp_path, **{part: value})
    if isinstance(value, bytes):
        (raw / f"ind.citeseer.{part}").write_bytes(value)
    with pytest.raises(DataError, match=f"{part} is not taken: .*(?:{problem})"):
        read_part(raw / f"ind.citeseer.{part}")


def test_a_node_number_that_would_fill_the_memory_is_refused(tmp_path):
    raw = write(tmp_path)
    (raw / "ind.citeseer.test.index").write_text("508\n1000000000\n")
    with pytest.raises(DataError, match=r"test\.index is not taken: .*100000"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attr_indices": np.array([0, 10**6])}, "indices"),
        ({"labels": np.array([object()])}, "allow_pickle|Object arrays"),
    ],
)
def test_amazon_files_point_inside_and_hold_no_objects(tmp_path, changes, problem):
    raw = tmp_path / "Photo" / "raw"
    raw.mkdir(parents=True)
    parts = {}
    for name, dense in (("attr", np.eye(2)), ("adj", np.eye(2)[::-1])):
        matrix = sparse.csr_matrix(dense)
        for part in ("data", "indices", "indptr", "shape"):
            parts[f"{name}_{part}"] = np.array(getattr(matrix, part))
    np.savez(
        raw / "amazon_electronics_photo.npz",
        **{**parts, "labels": np.array([0, 1]), **changes},
    )
    with pytest.raises(DataError, match=f"cannot read Photo .*(?:{problem})"):
        load_node_graph(
            "Photo", "raw", data_dir=str(tmp_path), cache_dir=str(tmp_path / "c")
        )


def test_downloads_are_read_with_the_same_care(tmp_path, monkeypatch):
    """PyTorch Geometric's class would unpickle what came; here only files are got."""
    made = tmp_path / "made"
    source = write(tmp_path / "there", "PubMed", tx=Runs(made))

    def fetch(url, path):
        path.write_bytes((source / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    monkeypatch.setattr("datasets.cache.fetch", fetch)
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=r"ind\.pubmed\.tx is not taken"):
        load_node_graph("PubMed", "raw", cache_dir=str(cache))
    assert not made.exists()
