"""Raw files of the heterophilous graphs of Platonov et al. 2023, arXiv:2302.11640."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.errors import DataError

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


def read_heterophilous(
    path: Path,
) -> tuple[NDArray[np.float32], IntArray, IntArray]:
    """Read features, edges and classes; the ten masks in the file are not used.

    Parameters
    ----------
    path : Path
        NPZ file with ``node_features`` (num_nodes, num_features), ``node_labels``
        (num_nodes,) and ``edges`` (num_edges, 2), each edge in one direction or both.

    Returns
    -------
    x : float32 array, shape (num_nodes, num_features)
    edges : int64 array, shape (2, num_edges)
    y : int64 array, shape (num_nodes,)

    Raises
    ------
    DataError
        An array has another shape, or holds no numbers.
    ValueError, KeyError
        The file is no archive of arrays, or lacks one. Objects are not unpickled.
    """
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        x, y, edges = (file[k] for k in ("node_features", "node_labels", "edges"))
    shapes = x.ndim == 2 and y.ndim == 1 and edges.ndim == 2 and edges.shape[1:] == (2,)
    kinds = x.dtype.kind in "biuf" and y.dtype.kind in "iu" and edges.dtype.kind in "iu"
    if not (shapes and kinds):
        raise DataError(
            f"{path.name} holds features {x.dtype} {x.shape}, classes {y.dtype}"
            f" {y.shape} and edges {edges.dtype} {edges.shape}; they must be numbers"
            " (num_nodes, num_features), whole numbers (num_nodes,) and whole numbers"
            " (num_edges, 2): fetch the data set again"
        )
    return x.astype(np.float32), edges.T.astype(np.int64), y.astype(np.int64)
