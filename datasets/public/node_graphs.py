"""Public graphs whose nodes have classes, from their publishers' files.

The data folder is only read; the result is stored as memory-mapped arrays.

A pickle may call anything, so a file from others could do anything at a site. Here only
arrays, sparse matrices and plain containers may stand in one.
"""

from __future__ import annotations

import gzip
import io
import logging
import pickle
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import DataError

from ..cache import cache_root, graphs_of_files, raw_folder

# Features (num_nodes, num_features), edges as written (2, num_edges), classes
# (num_nodes,): what each reader makes of the files of a graph.
Raw = tuple[NDArray[np.float32], IntArray, IntArray]
PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_CONTENT = {
    "graph": "lists of nodes by node",
    "test.index": "numbers of nodes",
}
_MOST_NODES = 100_000  # a table is made up to the largest number
# What the published files and copies written by newer versions of NumPy and SciPy name.
_RECONSTRUCT: Any = np.zeros(1).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,  # of Python 2
    ("builtins", "list"): list,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}
_SPARSE = (("scipy.sparse.csr", "csr_matrix"), ("scipy.sparse._csr", "csr_matrix"))


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows arrays, sparse matrices, lists and dicts."""

    @override
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Look a name up in the table of allowed ones."""
        if (module, name) in _SPARSE:
            from scipy.sparse import csr_matrix  # here: runs on graphs need no SciPy

            made: Callable[..., Any] = csr_matrix
            return made
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _ALLOWED[module, name]


def read_part(path: Path) -> NDArray[Any]:
    """Read one of Planetoid's files.

    Returns a matrix of float32; edges (2, num_edges) of the graph; or numbers of nodes.

    Raises
    ------
    DataError
        It is no pickle, or holds other things than arrays of numbers, or, for the
        graph, than lists of ints by int.
    """
    content, part = path.read_bytes(), path.name.split(".", 2)[2]
    try:
        if part == "test.index":
            numbers = np.array(content.split(), np.int64)
            if not ((numbers >= 0) & (numbers < _MOST_NODES)).all():
                _refuse(f"its numbers of nodes are not all below {_MOST_NODES}")
            return numbers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old SciPy names and array layouts
            found = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        return _edges(found) if part == "graph" else _matrix(found)
    except Exception as error:  # whatever a crafted file makes of these parts
        what = _CONTENT.get(part, "arrays of numbers")
        raise DataError(
            f"{path} is not taken: {type(error).__name__}: {error}; Planetoid's files"
            f" are pickles, which can run code, and this one may hold {what} only:"
            " fetch the data set again, from where you trust"
        ) from error


def _matrix(found: Any) -> NDArray[np.float32]:
    """Refuse all but a matrix of numbers with indices in range."""
    from scipy.sparse import csr_matrix

    is_sparse = isinstance(found, csr_matrix)
    if is_sparse:
        if any(map(callable, vars(found).values())):
            _refuse("its matrix brings methods of its own")
        found.check_format(full_check=True)  # todense() would write where it says
    elif not isinstance(found, np.ndarray) or found.ndim != 2:
        _refuse("it is not a matrix")
    entries = found.data if is_sparse else found
    if not isinstance(entries, np.ndarray) or entries.dtype.kind not in "biuf":
        _refuse("its entries are not numbers")
    return np.asarray(found.todense() if is_sparse else found, np.float32)


def _edges(found: object) -> IntArray:
    if not isinstance(found, dict):
        _refuse("it is not a dict")
    for node, others in found.items():
        if type(node) is not int or type(others) is not list:
            _refuse("it does not map ints to lists")
        if not all(type(other) is int for other in others):
            _refuse("its lists do not hold ints")
    pairs = [(node, other) for node, others in found.items() for other in others]
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _refuse(problem: str) -> Never:
    raise pickle.UnpicklingError(problem)


def _read_planetoid(raw: Path, name: str) -> Raw:
    """Read features, edges and classes; test nodes come last, in the index's order.

    Source
    ------
    As PyTorch Geometric's ``read_planetoid_data``: numbers that the index leaves out
    are nodes without edges.
    """
    _, _, tx, ty, allx, ally, edges, index = (
        read_part(raw / f"ind.{name.lower()}.{part}") for part in PARTS
    )
    ascending, both = np.sort(index), []
    for known, tested in ((allx, tx), (ally, ty)):
        rows = np.zeros((np.ptp(index) + 1, tested.shape[1]), np.float32)
        rows[ascending - ascending[0]] = tested
        table = np.concatenate([known, rows])
        table[index] = table[ascending]
        both.append(table)
    return both[0], edges, both[1].argmax(axis=1)


def _read_matrices(raw: Path, name: str) -> Raw:
    """Read features, as 0 or 1, edges and classes; objects are not unpickled."""
    from scipy.sparse import csr_matrix

    path, found = raw / NODE_SOURCES[name].files[0], []
    with np.load(path, allow_pickle=False) as file:
        for kind in ("attr", "adj"):
            parts = tuple(file[f"{kind}_{k}"] for k in ("data", "indices", "indptr"))
            found.append(csr_matrix(parts, file[f"{kind}_shape"]))
            found[-1].check_format(full_check=True)
        y = file["labels"].astype(np.int64)
    x, ends = np.asarray(found[0].todense(), np.float32), found[1].tocoo()
    x[x > 0] = 1
    return x, np.stack([ends.row, ends.col]).astype(np.int64), y


OGB_FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


def _read_ogb(raw: Path, _: str) -> Raw:
    """Read the one graph in ``raw``; each edge stands there in one direction.

    Source
    ------
    Hu et al. 2020, arXiv:2005.00687; layout of ``ogb/io/read_graph_raw.py``.
    """
    tables: list[NDArray[Any]] = []
    for file, dtype in zip(OGB_FILES, (np.int64, np.float32, np.int64), strict=True):
        with gzip.open(raw / file, "rt", encoding="utf-8") as opened:
            tables.append(np.loadtxt(opened, dtype, delimiter=",", ndmin=2))
    edges, x, y = tables
    return x, np.ascontiguousarray(edges.T), y[:, 0]


# Chameleon and Squirrel are without the nodes that occur twice in older copies.
HETEROPHILOUS = (
    "actor",
    "chameleon_filtered",
    "squirrel_filtered",
    "texas",
    "cornell",
    "wisconsin",
    "minesweeper",
    "tolokers",
)


def _read_heterophilous(raw: Path, name: str) -> Raw:
    """Read an NPZ file; the ten masks in it are not used.

    It holds ``node_features``, ``node_labels`` and ``edges`` (num_edges, 2), each edge
    in one direction or both. Objects are not unpickled.
    """
    with np.load(raw / f"{name}.npz", allow_pickle=False) as file:
        x, y, edges = (file[k] for k in ("node_features", "node_labels", "edges"))
    y, edges = (part.astype(np.int64, casting="same_kind") for part in (y, edges))
    return x.astype(np.float32, casting="same_kind"), edges.T, y


log = logging.getLogger("flwr.fedgraph")


@dataclass(frozen=True)
class NodeSource:
    """Place of a graph's raw files, and the function that reads them.

    Parameters
    ----------
    folder : str
        Of the collection, below the data folder; ``<folder>/<name>/raw`` or
        ``<name>/raw`` holds the files.
    also : tuple of str
        Other names of the folder ``<name>``, as the publishers' archives have them.
    read : callable
        Given the raw folder and the name; returns features, edges (2, num_edges) and
        classes.
    pyg : str
        Class of PyTorch Geometric that knows where files are downloaded from.
    cure : str
        How to come by the files if they cannot be downloaded; "" if they can.
    """

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path, str], Raw]
    pyg: str = ""
    cure: str = ""
    also: tuple[str, ...] = ()


def load_node_graph(
    name: str,
    features: str,
    component: str = "largest",
    *,
    data_dir: str = "",
    cache_dir: str = "",
) -> GraphSet:
    """Load a graph, or its largest connected component, as a set of one graph.

    Edges are made undirected, loops and repeats dropped; nodes keep their order. Arrays
    are memory-mapped; ``y`` has the nodes' classes.

    Parameters
    ----------
    name : str
        Key of ``NODE_SOURCES``.
    features : str
        ``"row-normalized"``: each row divided by its sum, a zero row left as it is;
        ``"raw"``: as in the files.
    component : str
        ``"largest"``, or ``"all"``: the whole graph.
    data_dir : str
        As in :func:`~datasets.cache.raw_folder`.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Raises
    ------
    DataError
        If the raw files are missing or unreadable, or features are not finite.
    """
    raw = _find(name, data_dir, cache_root(cache_dir))
    normalize, is_largest = features == "row-normalized", component == "largest"

    def convert(digest: str) -> GraphSet:
        log.info("converting %s from %s", name, raw)
        found = NODE_SOURCES[name].read(raw, name)
        return whole_graph(
            name, *found, normalize=normalize, is_largest=is_largest, raw_sha256=digest
        )

    files = [raw / f for f in NODE_SOURCES[name].files]
    kind = f"-{features}" + ("" if is_largest else "-whole")
    return graphs_of_files(name, files, convert, cache_dir, kind)


def whole_graph(
    name: str,
    x: NDArray[np.float32],
    edges: IntArray,
    y: IntArray,
    *,
    normalize: bool,
    is_largest: bool = True,
    raw_sha256: str = "",
) -> GraphSet:
    """Clean a graph up: undirected, simple, largest component, normalised rows.

    Raises
    ------
    DataError
        Features are not finite, sizes do not fit, or a class is negative.
    """
    if not np.isfinite(x).all():
        rows = np.flatnonzero(~np.isfinite(x).all(axis=1))
        raise DataError(
            f"features of {name} hold NaN or infinity in {len(rows)} nodes, the first"
            f" is node {rows[0]}; mend or drop these nodes in the raw files"
        )
    last, least = edges.max(initial=0), min(edges.min(initial=0), y.min(initial=0))
    fits = x.ndim == 2 and y.shape == x.shape[:1] and len(edges) == 2
    if not (fits and least >= 0 and last < len(x)):
        raise DataError(
            f"{name} has features of shape {x.shape}, classes of shape {y.shape} and"
            f" edges of nodes up to {last}, the least number is {least}: every node"
            " needs features and a class >= 0; fetch the data set again"
        )
    ids, kept = simple_edges(edges, len(x), is_largest=is_largest)
    x = np.ascontiguousarray(x[ids], np.float32)
    if normalize:
        total = x.sum(axis=1, keepdims=True, dtype=np.float64)
        x = (x / np.where(total > 0, total, 1)).astype(np.float32)
    return GraphSet(
        name=name,
        x=x,
        edge_index=kept.astype(np.int32),
        node_ptr=pointer([len(ids)]),
        edge_ptr=pointer([kept.shape[1]]),
        y=np.ascontiguousarray(y[ids], np.int64),
        num_features=x.shape[1],
        num_classes=int(y.max()) + 1,
        is_undirected=True,
        raw_sha256=raw_sha256,
    )


def simple_edges(
    edges: IntArray, num_nodes: int, *, is_largest: bool = True
) -> tuple[IntArray, IntArray]:
    """Nodes of the largest component, or all, ascending, and simple edges among them.

    Returns
    -------
    ids : int array, shape (num_kept,)
        Of components of one size the one with the lowest node.
    edges : int array, shape (2, num_edges)
        In both directions, numbered by position in ``ids``, sorted by source, then
        target.
    """
    from scipy import sparse

    ones = np.ones(edges.shape[1], np.bool_)  # sums of small integers would overflow
    shape = (num_nodes, num_nodes)
    half = sparse.coo_array((ones, (edges[0], edges[1])), shape=shape).tocsr()
    both = ((half + half.T) > 0).tolil() if num_nodes < 2 else (half + half.T) > 0
    ids = np.arange(num_nodes)
    if is_largest:
        _, component = sparse.csgraph.connected_components(both, directed=False)
        ids = np.flatnonzero(component == np.bincount(component).argmax())
    rows, columns = sparse.csr_array(both)[ids][:, ids].nonzero()
    kept = np.stack([rows, columns])[:, rows != columns]
    order = np.lexsort((kept[1], kept[0]))
    return ids, np.ascontiguousarray(kept[:, order], np.int64)


def _planetoid(name: str) -> NodeSource:
    files = tuple(f"ind.{name.lower()}.{part}" for part in PARTS)
    return NodeSource("planetoid", files, _read_planetoid, "Planetoid")


def _matrices(folder: str, file: str) -> NodeSource:
    return NodeSource(folder, (f"{file}.npz",), _read_matrices, folder.capitalize())


def _heterophilous(name: str) -> NodeSource:
    made = "heterophilous", (f"{name}.npz",), _read_heterophilous
    return NodeSource(*made, "HeterophilousGraphDataset")


NODE_SOURCES: Mapping[str, NodeSource] = MappingProxyType(
    {
        "Cora": _planetoid("Cora"),
        "CiteSeer": _planetoid("CiteSeer"),
        "PubMed": _planetoid("PubMed"),
        "Photo": _matrices("amazon", "amazon_electronics_photo"),
        "Computers": _matrices("amazon", "amazon_electronics_computers"),
        "CS": _matrices("coauthor", "ms_academic_cs"),
        "Physics": _matrices("coauthor", "ms_academic_phy"),
        **{name: _heterophilous(name) for name in HETEROPHILOUS},
        "ogbn-arxiv": NodeSource(
            "ogb",
            OGB_FILES,
            _read_ogb,
            cure="unpack arxiv.zip of https://snap.stanford.edu/ogb/data/nodeproppred"
            " into that folder",
            also=("ogbn_arxiv", "arxiv"),  # of the package ogb, and of the archive
        ),
    }
)


def _find(name: str, data_dir: str, cache: Path) -> Path:
    """Folder of the raw files; all of them are there."""
    source = NODE_SOURCES[name]

    def addresses() -> dict[str, str]:
        """Addresses of the files alone: PyTorch Geometric would unpickle what came."""
        from torch_geometric import datasets  # takes long

        url = getattr(datasets, source.pyg).url.rstrip("/")
        return {file: f"{url}/{file}" for file in source.files}

    return raw_folder(
        name,
        source.folder,
        [f"{n}/raw" for n in (name, *source.also)],
        source.files,
        data_dir=data_dir,
        cache=cache,
        kept=f"{name}/raw",
        pin=name,
        addresses=addresses if source.pyg else None,
        cure=source.cure,
    )
