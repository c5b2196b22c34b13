"""Raw files of OGB's node property prediction sets: gzipped CSV without headers.

Read here, so that the package ``ogb`` is not needed.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import DataError

OGB_FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


def read_ogb(raw: Path) -> tuple[NDArray[np.float32], IntArray, IntArray]:
    """Read features, edges and classes of the one graph in ``raw``.

    Returns
    -------
    x : float32 array, shape (num_nodes, num_features)
    edges : int64 array, shape (2, num_edges)
        As written, in one direction.
    y : int64 array, shape (num_nodes,)

    Raises
    ------
    DataError
        A file is empty, cut off, or not a table of numbers.

    Source
    ------
    Hu et al. 2020, arXiv:2005.00687; layout of ``ogb/io/read_graph_raw.py``.
    """
    edges = _table(raw / "edge.csv.gz", np.int64)
    if edges.shape[1] != 2:
        raise DataError(
            f"edge.csv.gz in {raw} must have 2 columns, got {edges.shape[1]}; fetch"
            " the data set again"
        )
    x = _table(raw / "node-feat.csv.gz", np.float32)
    y = _table(raw / "node-label.csv.gz", np.int64)
    return x, np.ascontiguousarray(edges.T), y[:, 0]


def _table(path: Path, dtype: type) -> NDArray[Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            table: NDArray[Any] = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path.name} in {path.parent.resolve()} is corrupt: {error}; fetch the"
            " data set again"
        ) from error
    if not table.size:
        raise DataError(f"{path} is empty; fetch the data set again")
    return table
