"""Diffusion views: each graph's edges replaced by where a random walk leads.

With A~ = A + I, D~ its degrees and T = D~^-1/2 A~ D~^-1/2:

    S = alpha (I - (1 - alpha) T)^-1, personalised PageRank

Entries of S below the threshold are dropped and every column is scaled to sum to 1.
Entry S_uv weighs the message from u to v. Nothing is random here and no graph depends
on another one, so views are made once and kept on disk.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import (
    DiffusionSpec,
    GraphSet,
    IntArray,
    WeightedEdges,
    pointer,
)
from fedgraph_flwr.core.errors import DataError

from .cache import CACHE_FORMAT, cache_root, open_or_build

log = logging.getLogger("flwr.fedgraph")

DIFFUSION_FORMAT = 2  # part of every fingerprint: raise it when the views change
MAX_NODES = 10_000  # of one graph: a matrix of 0.8 GB, and six of them at a time
TIE = 1e-9  # relative: an entry this close to the threshold is not dropped

FloatArray = NDArray[np.float64]


def load_diffusion(
    graphs: GraphSet, spec: DiffusionSpec, *, cache_dir: str = ""
) -> WeightedEdges:
    """Return what :func:`diffuse` makes, memory-mapped from our cache.

    Parameters
    ----------
    graphs : GraphSet
        Only its edges and pointers matter.
    cache_dir : str
        Cache folder; "" means FEDGRAPH_CACHE, and without it the user's cache.
    """
    entry = cache_root(cache_dir) / "diffusion" / _fingerprint(graphs, spec)
    return open_or_build(entry, WeightedEdges, lambda _scratch: diffuse(graphs, spec))


def _fingerprint(graphs: GraphSet, spec: DiffusionSpec) -> str:
    """SHA-256 over the formats, the spec and all edges, shortened."""
    arrays = (graphs.edge_index, graphs.node_ptr, graphs.edge_ptr)
    recipe = (CACHE_FORMAT, DIFFUSION_FORMAT, astuple(spec), [a.shape for a in arrays])
    digest = hashlib.sha256(repr(recipe).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
    return digest.hexdigest()[:16]


def diffuse(graphs: GraphSet, spec: DiffusionSpec) -> WeightedEdges:
    """Compute the diffusion view of every graph.

    Parameters
    ----------
    graphs : GraphSet
        Edges may be one-way (a node's degree is then that of its incoming edges) and
        need not reach every node; a repeated edge counts once.

    Returns
    -------
    WeightedEdges
        The weights of the edges into each node sum to 1. A node whose column has no
        entry left keeps a self-loop of weight 1.

    Raises
    ------
    DataError
        If there are no graphs, or one has more than 10,000 nodes.

    Source
    ------
    The diffusion view of FCLG; Klicpera et al. 2019, arXiv:1911.05485, and PyTorch
    Geometric's ``GDC`` with the exact diffusion, normalisation "sym" in and "col" out.
    Differs: float64; a column without entries, which ``GDC`` leaves empty.
    """
    num_nodes = np.diff(graphs.node_ptr)
    _check_sizes(graphs.name, num_nodes)
    log.info("computing diffusion views of %d graphs", len(num_nodes))
    edges, weights = [], []
    for graph, size in enumerate(num_nodes.tolist()):
        adjacency = np.zeros((size, size))
        span = slice(graphs.edge_ptr[graph], graphs.edge_ptr[graph + 1])
        adjacency[tuple(graphs.edge_index[:, span])] = 1.0
        kept = _sparsify(diffusion_matrix(adjacency, spec), spec.threshold)
        edges.append(np.stack(np.nonzero(kept)).astype(np.int32))
        weights.append(kept[kept != 0].astype(np.float32))
    return WeightedEdges(
        edge_index=np.concatenate(edges, axis=1),
        weight=np.concatenate(weights),
        edge_ptr=pointer([len(w) for w in weights]),
    )


def _check_sizes(name: str, num_nodes: IntArray) -> None:
    if len(num_nodes) == 0:
        raise DataError(f"{name} has no graphs to make views of; lower num-clients")
    largest = int(num_nodes.argmax())
    if num_nodes[largest] > MAX_NODES:
        raise DataError(
            f"graph {largest} of {name} has {num_nodes[largest]} nodes, but the exact"
            f" diffusion view, which needs a full matrix, is made for at most"
            f" {MAX_NODES}; choose another data set, or a method without such views"
        )


def diffusion_matrix(adjacency: FloatArray, spec: DiffusionSpec) -> FloatArray:
    """Return S of a graph, given A of shape (n, n), sources in rows."""
    identity = np.eye(len(adjacency))
    transition = adjacency + identity
    scale = transition.sum(axis=0) ** -0.5  # (n,), over the sources
    transition *= scale[:, None]
    transition *= scale[None, :]
    # T is similar to a column-stochastic matrix, hence this is never singular.
    inverse = np.linalg.inv(identity - (1 - spec.alpha) * transition)
    return np.asarray(spec.alpha * inverse, dtype=np.float64)


def _sparsify(diffused: FloatArray, threshold: float) -> FloatArray:
    """Zero what is below the threshold; scale columns of (n, n) to 1.

    Entries equal to the threshold do occur (alpha 0.2: every pair in a complete graph
    of 80 nodes has 0.01) and must not be left to rounding.
    """
    kept = np.where(diffused >= threshold * (1 - TIE), diffused, 0.0)
    sums = kept.sum(axis=0)  # (n,), over the sources
    np.fill_diagonal(kept, np.where(sums == 0, 1.0, kept.diagonal()))
    sums[sums == 0] = 1.0
    kept /= sums[None, :]
    return kept
