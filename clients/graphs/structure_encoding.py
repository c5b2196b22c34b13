"""Describes a node's place in its graph by edges alone (FedStar)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import IntArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CELLS = 4_000_000  # entries of a block of columns that are held at a time


def encode_structure(
    edge_index: NDArray[np.integer],
    num_nodes: int,
    *,
    walk_length: int,
    max_degree: int,
) -> NDArray[np.float32]:
    """Random-walk return probabilities, then a one-hot degree.

    Parameters
    ----------
    edge_index : int array, shape (2, num_edges)
        Both directions of each edge.
    num_nodes, walk_length, max_degree : int

    Returns
    -------
    float32 array, shape (num_nodes, walk_length + max_degree)
        ``[v, k - 1]`` is the diagonal entry of node v in (A D^-1)^k, 0 for an isolated
        node; the degree is clipped to 1..``max_degree``.

    Source
    ------
    Tan et al. 2023, arXiv:2211.13009. Differs: their code divides by the
    degree of isolated nodes. Powers are made for a block of nodes at a time: no matrix
    of all pairs of nodes, at a cost of num_nodes x num_edges per step.
    """
    degree = np.bincount(edge_index[0], minlength=num_nodes)
    walk = _walk_matrix(edge_index, degree)
    encoding = np.zeros((num_nodes, walk_length + max_degree), np.float32)
    width = max(1, _CELLS // max(num_nodes, 1))
    for begin in range(0, num_nodes, width):
        nodes = np.arange(begin, min(begin + width, num_nodes))
        columns = np.arange(len(nodes))
        power = np.zeros((num_nodes, len(nodes)), np.float32)
        power[nodes, columns] = 1
        for k in range(walk_length):
            power = walk @ power
            encoding[nodes, k] = power[nodes, columns]
    hot = walk_length + np.clip(degree, 1, max_degree) - 1
    encoding[np.arange(num_nodes), hot] = 1
    return encoding


def _walk_matrix(edge_index: NDArray[np.integer], degree: IntArray) -> csr_array:
    from scipy.sparse import csr_array

    source, target = edge_index
    # Column v of A D^-1 is where one step from v leads.
    share = (1 / degree[target]).astype(np.float32)
    return csr_array((share, (source, target)), shape=(len(degree), len(degree)))
