"""TU data sets (Morris et al. 2020, arXiv:2007.08663) as flat arrays.

The data folder is only read; what is made of it is stored as memory-mapped arrays.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.errors import DataError

from .cache import cache_root, checksum, fingerprint_files, open_or_build
from .table import unchanged
from .tu_check import RawTables, read_raw
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
    mark = fingerprint_files(source.files)
    entry = cache / f"{name}-{features}-{mark}"

    def convert(work: Path) -> GraphSet:
        with unchanged(source.origin, mark, lambda: fingerprint_files(source.files)):
            return _convert(source, features, work)

    found = open_or_build(entry, GraphSet, convert)
    unused = f"; not used: {found.unused}" if found.unused else ""
    say_once(f"{name}: features: {found.columns}{unused}")
    return found


@cache
def say_once(text: str) -> None:
    """Log what a set's features are once per process, however many clients load it."""
    log.info("%s", text)


def _convert(source: RawSource, features: str, work: Path) -> GraphSet:
    """Check, parse and flatten one data set, with the empty folder ``work``."""
    name = source.name
    log.info("converting TU data set %s from %s", name, source.origin)
    try:
        files, unused = source.place(work)
        tables = read_raw(name, files, origin=source.origin)
        digest = checksum(files.values())
    except OSError as error:
        raise DataError(
            f"cannot read TU data set {name!r} from {source.origin}, or write a copy"
            f" to {work}: {error}; check permissions and free space"
        ) from error
    node_ptr = pointer(np.bincount(tables.graph_of_node))
    source_node, target_node = tables.edges.T
    edges = distinct_edges(source_node, target_node, int(node_ptr[-1]))
    graph_of_edge = tables.graph_of_node[edges[0]]
    is_undirected = _is_undirected(edges)
    if not is_undirected:
        log.warning(
            "%s in %s has edges in one direction only; %s_A.txt may be cut off",
            name,
            source.origin,
            name,
        )
    degrees = np.bincount(edges[0], minlength=node_ptr[-1])
    x, width, columns = _features(name, features, tables, degrees)
    classes, y = np.unique(tables.graph_labels, return_inverse=True)
    return GraphSet(
        name=name,
        x=x,
        edge_index=(edges - node_ptr[graph_of_edge]).astype(np.int32),
        node_ptr=node_ptr,
        edge_ptr=pointer(np.bincount(graph_of_edge, minlength=len(y))),
        y=y.astype(np.int64),
        num_features=width,
        num_classes=len(classes),
        is_undirected=is_undirected,
        raw_sha256=digest,
        columns=columns,
        unused=unused,
        classes=[str(label) for label in classes.tolist()],
    )


def _features(
    name: str, features: str, tables: RawTables, degrees: IntArray
) -> tuple[NDArray[Any], int, str]:
    """Return x, its width, and what its columns are."""
    num_attributes, ranges = tables.attributes.shape[1], tables.label_ranges
    if features == "attributes" and not num_attributes:
        raise DataError(
            f"{name} has no node attributes, which features 'attributes' asks for; set"
            " features to 'labels', 'labels+attributes' or 'degree'"
        )
    if features == "degree" or not (num_attributes or ranges):
        width = MAX_DEGREE.get(name, int(degrees.max())) + 1
        x = _smallest(np.minimum(degrees, width - 1), width)
        return x, width, f"degrees up to {width - 1}"
    widths = [high - low + 1 for low, high in ranges]
    words = [
        f"{count} {kind}{'s' * (count > 1)}"
        for count, kind in ((num_attributes, "attribute"), (sum(widths), "label"))
        if count
    ]
    told = "; ".join(f"{low} to {high}" for low, high in ranges)
    columns = ", ".join(words) + (f" ({told})" if ranges else "")
    width = num_attributes + sum(widths)
    ids = [own - low for own, (low, _) in zip(tables.labels.T, ranges, strict=True)]
    if len(ids) == 1 and not num_attributes:
        return _smallest(ids[0], width), width, columns
    one_hot = [
        (own[:, None] == np.arange(n)).astype(np.float32)
        for n, own in zip(widths, ids, strict=True)
    ]
    return np.concatenate([tables.attributes, *one_hot], axis=1), width, columns


def _smallest(columns: NDArray[Any], width: int) -> NDArray[Any]:
    """Column numbers below ``width`` in the smallest unsigned type."""
    return columns.astype(np.min_scalar_type(max(width - 1, 0)))


def _is_undirected(edges: IntArray) -> bool:
    """Whether each edge (in data-set-wide node numbers) has its reverse."""
    source, target = edges
    size = int(edges.max()) + 1
    # Edges are unique and sorted by (source, target), so this key is ascending.
    return bool(np.array_equal(source * size + target, np.sort(target * size + source)))
