"""Graphs whose nodes are classified (citations, purchases), as flat arrays.

The data folder is only read: PyTorch Geometric's classes work in a scratch folder of
our cache that links to the raw files, and the result is stored as memory-mapped arrays.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, pointer
from fedgraph_flwr.errors import DataError

from .cache import cache_root, checksum, fingerprint_files, open_or_build
from .heterophilous_raw import HETEROPHILOUS, read_heterophilous
from .ogb_raw import OGB_FILES, read_ogb
from .planetoid_raw import PARTS, check_npz, safe_copy
from .raw import DATA_ENV, data_folder, download, set_data_dir

log = logging.getLogger("flwr.fedgraph")

Raw = tuple[NDArray[np.float32], IntArray, IntArray]  # features, edges, classes


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
    files : tuple of str
    read : callable
        Given a folder with ``<name>/raw`` in it and the name; returns features, edges
        (2, num_edges) and classes.
    place : callable
        Given a raw file and a path, puts the file there for ``read``.
    url : callable, optional
        Where a file is downloaded from.
    cure : str
        How to come by the files if they cannot be downloaded; "" if they can.
    """

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path, str], Raw]
    place: Callable[[Path, Path], None]
    url: Callable[[str], str] | None = None
    cure: str = ""
    also: tuple[str, ...] = ()


def load_node_graph(
    name: str, features: str, *, data_dir: str = "", cache_dir: str = ""
) -> GraphSet:
    """Load the largest connected component of a graph, as a set of one graph.

    Edges are made undirected, loops and repeats dropped; nodes keep their order.

    Parameters
    ----------
    name : str
        Key of ``NODE_SOURCES``.
    features : str
        ``"row-normalized"``: each row divided by its sum, a zero row left as it is;
        ``"raw"``: as in the files.
    data_dir : str
        As in :func:`~datasets.raw.data_folder`.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Returns
    -------
    GraphSet
        Memory-mapped; x float32 (num_nodes, num_features), y the nodes' classes.

    Raises
    ------
    DataError
        If the raw files are missing or unreadable, or features are not finite.
    """
    cache = cache_root(cache_dir)
    raw = _find(name, data_dir, cache)
    files = [raw / f for f in NODE_SOURCES[name].files]
    entry = cache / f"{name}-{features}-{fingerprint_files(files)}"
    return open_or_build(
        entry, GraphSet, lambda work: _convert(name, files, features, work)
    )


def whole_graph(
    name: str,
    x: NDArray[np.float32],
    edges: IntArray,
    y: IntArray,
    *,
    normalize: bool,
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
    if len(x) != len(y) or (len(y) and y.min() < 0):
        raise DataError(
            f"{name} has {len(x)} rows of features and {len(y)} classes, the smallest"
            f" {y.min(initial=0)}; every node needs one class >= 0: fetch the data set"
            " again"
        )
    if edges.size and not 0 <= edges.min() <= edges.max() < len(x):
        raise DataError(
            f"{name} has edges of nodes {edges.min()}..{edges.max()}, but"
            f" {len(x)} nodes; fetch the data set again"
        )
    ids, kept = largest_component(edges, len(x))
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


def largest_component(edges: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """Nodes of the largest component, ascending, and the simple edges among them.

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
    _, component = sparse.csgraph.connected_components(both, directed=False)
    ids = np.flatnonzero(component == np.bincount(component).argmax())
    rows, columns = sparse.csr_array(both)[ids][:, ids].nonzero()
    kept = np.stack([rows, columns])[:, rows != columns]
    order = np.lexsort((kept[1], kept[0]))
    return ids, np.ascontiguousarray(kept[:, order], np.int64)


def _convert(name: str, files: list[Path], features: str, work: Path) -> GraphSet:
    source = NODE_SOURCES[name]
    log.info("converting %s from %s", name, files[0].parent)
    target = work / name / "raw"
    target.mkdir(parents=True)
    try:
        for path in files:
            source.place(path, target / path.name)
        digest = checksum([target / path.name for path in files])  # of what is read
        x, edges, y = source.read(work, name)
    except DataError:
        raise
    except Exception as error:  # whatever the parsers raise
        raise DataError(
            f"cannot read {name} in {files[0].parent}: {error!r}; fetch the data set"
            " again"
        ) from error
    normalize = features == "row-normalized"
    return whole_graph(name, x, edges, y, normalize=normalize, raw_sha256=digest)


def _link(path: Path, target: Path) -> None:
    target.symlink_to(path.resolve())


def _read_planetoid(root: Path, name: str) -> Raw:
    from torch_geometric.datasets import Planetoid

    return _arrays(lambda: Planetoid(str(root), name))


def _read_amazon(root: Path, name: str) -> Raw:
    from torch_geometric.datasets import Amazon

    for file in NODE_SOURCES[name].files:
        check_npz(root / name / "raw" / file)
    return _arrays(lambda: Amazon(str(root), name))


def _arrays(load: Callable[[], Any]) -> Raw:
    # prints "Processing..."; unpickling old SciPy arrays warns
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load()[0]
    return data.x.numpy(), data.edge_index.numpy(), data.y.numpy()


def _read_arxiv(root: Path, name: str) -> Raw:
    return read_ogb(root / name / "raw")


def _read_heterophilous(root: Path, name: str) -> Raw:
    return read_heterophilous(root / name / "raw" / f"{name}.npz")


def _planetoid(name: str) -> NodeSource:
    def url(file: str) -> str:
        from torch_geometric.datasets import Planetoid

        return f"{Planetoid.url}/{file}"

    files = tuple(f"ind.{name.lower()}.{part}" for part in PARTS)
    return NodeSource("planetoid", files, _read_planetoid, safe_copy, url)


def _amazon(name: str) -> NodeSource:
    file = f"amazon_electronics_{name.lower()}.npz"

    def url(file: str) -> str:
        from torch_geometric.datasets import Amazon

        return f"{Amazon.url}{file}"

    return NodeSource("amazon", (file,), _read_amazon, _link, url)


def _heterophilous(name: str) -> NodeSource:
    def url(file: str) -> str:
        from torch_geometric.datasets import HeterophilousGraphDataset

        return f"{HeterophilousGraphDataset.url}/{file}"

    return NodeSource(
        "heterophilous", (f"{name}.npz",), _read_heterophilous, _link, url
    )


NODE_SOURCES: Mapping[str, NodeSource] = MappingProxyType(
    {
        "Cora": _planetoid("Cora"),
        "CiteSeer": _planetoid("CiteSeer"),
        "PubMed": _planetoid("PubMed"),
        "Photo": _amazon("Photo"),
        "Computers": _amazon("Computers"),
        **{name: _heterophilous(name) for name in HETEROPHILOUS},
        "ogbn-arxiv": NodeSource(
            "ogb",
            OGB_FILES,
            _read_arxiv,
            _link,
            cure="unpack arxiv.zip of https://snap.stanford.edu/ogb/data/nodeproppred"
            " into that folder",
            also=("ogbn_arxiv", "arxiv"),  # of the package ogb, and of the archive
        ),
    }
)


def _find(name: str, data_dir: str, cache: Path) -> Path:
    """Folder of the raw files; all of them are there."""
    folder, source = data_folder(data_dir), NODE_SOURCES[name]
    if folder is None:
        return _download(name, cache)
    names = (name, *source.also)
    places = [p for n in names for p in folder.places(source.folder, f"{n}/raw")]
    here = next((p for p in places if p.is_dir()), None)
    missing = [f for f in source.files if here and not (here / f).is_file()]
    if here and not missing:
        return here
    looked = here or " and ".join(map(str, places))
    problem = f"{looked} lacks {', '.join(missing or source.files)}"
    cure = source.cure or "fetch the data set"
    raise DataError(
        f"{name} is not complete in {folder.says}: {problem}; {cure}, or correct"
        f" data-dir (or {DATA_ENV})"
    )


def _download(name: str, cache: Path) -> Path:
    """Download the files from PyTorch Geometric's address; return their folder.

    The files alone: its class would unpickle what came.
    """
    source = NODE_SOURCES[name]
    below = f"{source.folder}/{name}/raw"
    if source.url is None:
        raise DataError(
            f"{name} is not downloaded by itself: no data-dir is set; set data-dir (or"
            f" {DATA_ENV}) to a folder of yours, and {source.cure}"
        )
    raw = cache / "downloads" / name / "raw"
    targets = [raw / file for file in source.files]
    if not all(target.exists() for target in targets):
        download(
            {target: source.url(target.name) for target in targets},
            what=name,
            pin=name,
            cache=cache,
            entry=raw.parent,
            cure=set_data_dir(below),
        )
    return raw
