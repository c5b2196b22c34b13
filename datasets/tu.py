"""TU data sets (Morris et al. 2020, arXiv:2007.08663) as flat arrays.

The data folder is only read: PyTorch Geometric's ``TUDataset`` works in a scratch
folder of our cache that links to the raw files, and its result is stored as
memory-mapped arrays.
"""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, pointer
from fedgraph_flwr.errors import DataError

from .cache import cache_root, checksum, open_or_build
from .tu_raw import RawSource, check_raw, find_raw

log = logging.getLogger("flwr.fedgraph")

# Widths of the one-hot degrees are published (GCFL, Sec. 3 of our spec).
MAX_DEGREE = {"COLLAB": 491, "IMDB-BINARY": 135, "IMDB-MULTI": 88}


def load_tu(
    name: str, features: str = "labels", *, data_dir: str = "", cache_dir: str = ""
) -> GraphSet:
    """Load one TU data set.

    Parameters
    ----------
    name : str
        Name in the collection, e.g. ``"PROTEINS"``.
    features : str
        ``"labels"``: one-hot node labels, or degrees where there are none;
        ``"degree"``: one-hot degrees always, of width ``max_degree + 1``, larger
        degrees counting as ``max_degree`` (published for COLLAB, IMDB-BINARY and
        IMDB-MULTI, else the largest of the data set).
    data_dir : str
        Folder with raw files; "" means FEDGRAPH_DATA, and without it a download.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Returns
    -------
    GraphSet
        Memory-mapped; graphs, edges and classes are in ``TUDataset``'s order.

    Raises
    ------
    DataError
        If the raw files are missing, incomplete or corrupt.
    """
    cache = cache_root(cache_dir)
    source = find_raw(name, data_dir, cache)
    entry = cache / f"{name}-{features}-{source.fingerprint()}"
    return open_or_build(entry, GraphSet, lambda work: _convert(source, features, work))


def _convert(source: RawSource, features: str, work: Path) -> GraphSet:
    """Check, parse and flatten one data set in the empty folder ``work``."""
    name = source.name
    log.info("converting TU data set %s from %s", name, source.origin)
    try:
        files = source.place(work / name / "raw")
        graph_of_node = check_raw(name, files, origin=source.origin)
        digest = checksum(files.values())
    except OSError as error:
        raise DataError(
            f"cannot read TU data set {name!r} from {source.origin}, or write a copy"
            f" to {work}: {error}; check permissions and free space"
        ) from error
    data, edge_ptr = _parse(source, work)
    num_nodes = np.bincount(graph_of_node)
    node_ptr = pointer(num_nodes)
    edge_index = data.edge_index.numpy().astype(np.int32)
    num_edges = np.diff(edge_ptr)
    offsets = np.repeat(node_ptr[:-1], num_edges)
    is_undirected = _is_undirected(edge_index + offsets)
    if not is_undirected:
        log.warning(
            "%s in %s has edges in one direction only; %s_A.txt may be cut off",
            name,
            source.origin,
            name,
        )
    labels = None if data.x is None or data.x.shape[1] == 0 else data.x.numpy()
    if labels is None and "node_labels" in files:
        raise DataError(
            f"PyTorch Geometric found no node labels of {name!r} below {work}; set"
            " cache-dir to a path without the characters *, ? and ["
        )
    if labels is None or features == "degree":
        degree = np.bincount(edge_index[0] + offsets, minlength=len(graph_of_node))
        width = MAX_DEGREE.get(name, int(degree.max())) + 1
        x = _smallest(np.minimum(degree, width - 1), width)
    else:
        width = labels.shape[1]
        x = _compact(labels)
    y = data.y.numpy().astype(np.int64)
    return GraphSet(
        name=name,
        x=x,
        edge_index=edge_index,
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        y=y,
        num_features=width,
        num_classes=int(y.max()) + 1,
        is_undirected=is_undirected,
        raw_sha256=digest,
    )


def _parse(source: RawSource, work: Path) -> tuple[Any, IntArray]:
    """Run ``TUDataset``; return its data in one piece and the edge pointer."""
    # here, because it takes seconds to import and the cache mostly spares it
    from torch_geometric.datasets import TUDataset

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # prints "Processing..."
            dataset = TUDataset(str(work), source.name)
        # The whole-set tensors are private: a public one would copy graph by graph.
        data, slices = dataset._data, dataset.slices
        return data, slices["edge_index"].numpy().astype(np.int64)
    except Exception as error:  # whatever its parser raises
        raise DataError(
            f"PyTorch Geometric cannot parse TU data set {source.name!r} in"
            f" {source.origin}: {error!r}; fetch the data set again"
        ) from error


def _smallest(columns: NDArray[Any], width: int) -> NDArray[Any]:
    """Column numbers below ``width`` in the smallest unsigned type."""
    return columns.astype(np.min_scalar_type(max(width - 1, 0)))


def _compact(rows: NDArray[np.float32]) -> NDArray[Any]:
    """Turn one-hot rows (num_nodes, width) into column numbers (num_nodes,)."""
    one_hot = ((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all()
    if not one_hot:  # several label columns side by side
        return rows.astype(np.float32)
    return _smallest(rows.argmax(axis=1), rows.shape[1])


def _is_undirected(edges: IntArray) -> bool:
    """Whether each edge (in data-set-wide node numbers) has its reverse."""
    source, target = edges.astype(np.int64)
    size = int(edges.max()) + 1
    # Edges are unique and sorted by (source, target), so this key is ascending.
    return bool(np.array_equal(source * size + target, np.sort(target * size + source)))
