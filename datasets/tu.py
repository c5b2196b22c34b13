"""TU data sets (Morris et al. 2020, arXiv:2007.08663) as flat arrays.

The data folder is only read: PyTorch Geometric's ``TUDataset`` works in a scratch
folder of our cache that links to the raw files, and its result is stored as
memory-mapped arrays.
"""

from __future__ import annotations

import contextlib
import io
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, pointer
from fedgraph_flwr.errors import DataError

from .cache import cache_root, checksum, open_or_build
from .tu_check import RawFacts, check_raw
from .tu_raw import ATTRIBUTES, LABELS, RawSource, find_raw

log = logging.getLogger("flwr.fedgraph")

# Widths of the one-hot degrees, less one, as GCFL has them.
MAX_DEGREE = {"COLLAB": 491, "IMDB-BINARY": 135, "IMDB-MULTI": 88}


# Kinds of files, beside the required ones, that a setting of ``features`` reads.
READS = {
    "labels": (LABELS,),
    "degree": (LABELS,),
    "attributes": (ATTRIBUTES,),
    "labels+attributes": (ATTRIBUTES, LABELS),
}


def load_tu(
    name: str, features: str = "labels", *, data_dir: str = "", cache_dir: str = ""
) -> GraphSet:
    """Load one TU data set.

    Parameters
    ----------
    name : str
        Name in the collection, e.g. ``"PROTEINS"``.
    features : str
        Key of ``READS``. ``"labels"``: one-hot node labels; ``"attributes"``: the
        nodes' real numbers; ``"labels+attributes"``: the attributes, then the labels,
        or whichever of them the set has. Where it has neither, or ``"labels"`` finds no
        labels, degrees stand in; ``"attributes"`` must be there.
        ``"degree"``: one-hot degrees always, of width ``max_degree + 1``, larger
        degrees counting as ``max_degree`` (published for COLLAB, IMDB-BINARY and
        IMDB-MULTI, else the largest of the data set).
    data_dir : str
        As in :func:`~datasets.raw.data_folder`.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.

    Returns
    -------
    GraphSet
        Memory-mapped; graphs, edges and classes are in ``TUDataset``'s order. What its
        features are, and what is not used, is logged once per process.

    Raises
    ------
    DataError
        If the raw files are missing, incomplete or corrupt, or lack attributes that are
        asked for.
    """
    cache = cache_root(cache_dir)
    source = find_raw(name, data_dir, cache, READS[features])
    entry = cache / f"{name}-{features}-{source.fingerprint()}"
    found = open_or_build(
        entry, GraphSet, lambda work: _convert(source, features, work)
    )
    unused = f"; not used: {found.unused}" if found.unused else ""
    say_once(f"{name}: features: {found.columns}{unused}")
    return found


@cache
def say_once(text: str) -> None:
    """Log what a set's features are once per process, however many clients load it."""
    log.info("%s", text)


def _convert(source: RawSource, features: str, work: Path) -> GraphSet:
    """Check, parse and flatten one data set in the empty folder ``work``."""
    name = source.name
    log.info("converting TU data set %s from %s", name, source.origin)
    try:
        files, unused = source.place(work / name / "raw")
        facts = check_raw(name, files, origin=source.origin)
        digest = checksum(files.values())
    except OSError as error:
        raise DataError(
            f"cannot read TU data set {name!r} from {source.origin}, or write a copy"
            f" to {work}: {error}; check permissions and free space"
        ) from error
    data, edge_ptr = _parse(source, work)
    node_ptr = pointer(np.bincount(facts.graph_of_node))
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
    degrees = np.bincount(edge_index[0] + offsets, minlength=node_ptr[-1])
    x, width, columns = _features(name, features, data, degrees, facts)
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
        columns=columns,
        unused=unused,
        classes=facts.classes,
    )


def _features(
    name: str, features: str, data: Any, degrees: IntArray, facts: RawFacts
) -> tuple[NDArray[Any], int, str]:
    """Return x, its width, and what its columns are."""
    rows = np.zeros((len(degrees), 0)) if data.x is None else data.x.numpy()
    num_labels = sum(high - low + 1 for low, high in facts.label_ranges)
    num_attributes = rows.shape[1] - num_labels
    if num_attributes < 0:
        raise DataError(
            f"PyTorch Geometric found no node labels of {name!r}; set cache-dir to a"
            " path without the characters *, ? and ["
        )
    if features == "attributes" and not num_attributes:
        raise DataError(
            f"{name} has no node attributes, which features 'attributes' asks for; set"
            " features to 'labels', 'labels+attributes' or 'degree'",
            public="the set has no node attributes",
        )
    if features == "degree" or not rows.shape[1]:
        width = MAX_DEGREE.get(name, int(degrees.max())) + 1
        x = _smallest(np.minimum(degrees, width - 1), width)
        return x, width, f"degrees up to {width - 1}"
    ranges = "; ".join(f"{low} to {high}" for low, high in facts.label_ranges)
    words = [
        f"{count} {kind}{'s' * (count > 1)}"
        for count, kind in ((num_attributes, "attribute"), (num_labels, "label"))
        if count
    ]
    columns = ", ".join(words) + (f" ({ranges})" if num_labels else "")
    x = rows.astype(np.float32) if num_attributes else _compact(rows)
    return x, rows.shape[1], columns


def _parse(source: RawSource, work: Path) -> tuple[Any, IntArray]:
    """Run ``TUDataset``; return its data in one piece and the edge pointer."""
    # here, because it takes seconds to import and the cache mostly spares it
    from torch_geometric.datasets import TUDataset

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # prints "Processing..."
            dataset = TUDataset(str(work), source.name, use_node_attr=True)
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


def _compact(rows: NDArray[Any]) -> NDArray[Any]:
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
