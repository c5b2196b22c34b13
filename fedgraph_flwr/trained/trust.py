"""How far to trust predictions: temperatures, and how unlike items are to known ones.

Both are made of the data that a client was trained on, and stay with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from ..core.data import GraphPartition, GraphSet, IntArray

_SPREAD = 0.5  # of a temperature's logarithm, before any item is seen
_BOUND = 3.0  # of that logarithm
_MOST = 5000  # training items to compare with; more say the same

Floats = NDArray[np.float64]


def fit_temperature(logits: NDArray[Any], y: NDArray[Any]) -> float:
    """Fit T > 0, by which logits are to be divided.

    Parameters
    ----------
    logits : array, shape (num_items, num_classes), or (num_items,) of yes
    y : array, shape (num_items,)
        Classes, or 0 and 1; items whose label is NaN do not count.

    Source
    ------
    Guo et al. 2017, arXiv:1706.04599, Sec. 4.2, who minimise cross-entropy.

    Differs
    -------
    Its sum has one more term, (log T)^2 / (2 * 0.5^2): a normal law of log T, by which
    the ten validation items of a small site hardly move T from 1.
    """
    known = ~np.isnan(y)
    wide, labels = logits[known].astype(np.float64), y[known].astype(np.int64)
    if wide.ndim == 1:
        wide = np.stack([np.zeros_like(wide), wide], 1)
    own = wide[np.arange(len(labels)), labels]

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        of_items = (logsumexp(wide / t, axis=1) - own / t).sum()
        return float(of_items + log_t**2 / (2 * _SPREAD**2))

    found = minimize_scalar(loss, bounds=(-_BOUND, _BOUND), method="bounded")
    return float(np.exp(found.x))


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What a client's own data say of predictions; made by :meth:`of`.

    Parameters
    ----------
    temperatures : tuple of float
        One for all classes, or one for each yes-or-no target; empty for numbers and
        embeddings.
    notes : list of str
        How they came about.
    kind : str
        See ``About``.
    seen : list of bool arrays
        Of each block of features, which columns training items have.
    known : float64 array, shape (num_items, num_columns)
        Training items, and by what they were standardised.
    near : float64 array, ascending
        Distance of each to the nearest other one.
    """

    temperatures: tuple[float, ...]
    notes: list[str]
    kind: str
    seen: list[NDArray[np.bool_]]
    known: Floats
    shift: Floats
    scale: Floats
    near: Floats = field(repr=False)

    @classmethod
    def of(
        cls, own: GraphPartition, outputs: NDArray[Any], kind: str, names: Sequence[str]
    ) -> Trust:
        """Read a client's data.

        Parameters
        ----------
        outputs : float32 array, shape (num_val, num_outputs)
            Of the validation items.
        names : sequence of str
            Of the outputs.
        """
        y, found = own.graphs.y[own.val], list[float]()
        if kind in ("classes", "nodes", "edges"):
            found = [fit_temperature(outputs, y.astype(np.float64))]
        elif kind in ("binary", "links"):
            pairs = zip(outputs.T, y.T, strict=True)
            found = [fit_temperature(*pair) for pair in pairs]
        whose = names if kind == "binary" else ["all outputs"]
        notes = [
            f"temperature of {name}: {t:.4g}, fitted on {len(y)} validation items"
            for name, t in zip(whose, found, strict=False)
        ]
        at = own.train[:: len(own.train) // _MOST + 1]
        blocks = _blocks(own.graphs, at, kind)
        seen = [abs(p).sum(0) > 0 for p, *_ in blocks]
        known = np.hstack([p.toarray() for p, *_ in blocks])
        shift, scale = known.mean(0), known.std(0)
        scale[scale < 1e-9] = np.inf
        known = (known - shift) / scale
        near = np.sort(_nearest(known, known, 1))
        return cls(
            temperatures=tuple(found),
            notes=notes,
            kind=kind,
            seen=seen,
            known=known,
            shift=shift,
            scale=scale,
            near=near,
        )

    def doubts(self, graphs: GraphSet, at: IntArray) -> dict[str, Floats]:
        """Columns that say how unlike the training items these items are.

        ``unseen``: share of the features of an item's nodes and edges, other than 0,
        that no training item has. ``unlike``: share of the training items that are
        nearer to another one than this item is to its nearest.
        """
        blocks = _blocks(graphs, at, self.kind)
        strange, features = np.zeros(len(at)), np.zeros(len(at))
        for (_, x, owner), seen in zip(blocks, self.seen, strict=True):
            strange += owner @ ((x != 0) @ (~seen).astype(float))
            features += owner @ (x != 0).sum(1)
        rows = np.hstack([p.toarray() for p, *_ in blocks])
        far = _nearest((rows - self.shift) / self.scale, self.known, 0)
        unlike = np.searchsorted(self.near, far, side="left") / len(self.near)
        return {"unseen": strange / np.maximum(features, 1e-9), "unlike": unlike}


def _nearest(rows: Floats, known: Floats, rank: int) -> Floats:
    """Distance of each row to the known one that is nearest, or next to it."""
    from sklearn.neighbors import NearestNeighbors  # here: it takes half a second

    search = NearestNeighbors(n_neighbors=rank + 1).fit(known)
    return np.asarray(search.kneighbors(rows)[0][:, rank], np.float64)


def _blocks(graphs: GraphSet, at: IntArray, kind: str) -> list[tuple[Any, Any, Any]]:
    """Describe items, which are graphs, nodes or pairs of nodes at these positions.

    Each block has the means of features (items x columns), the features (rows x
    columns), and the shares that rows have in an item (items x rows).
    """
    num_nodes, num_edges = graphs.num_nodes, graphs.edge_index.shape[1]
    all_nodes, items = np.arange(num_nodes), np.arange(len(at))
    of_node, of_edge = (
        np.repeat(np.arange(len(graphs)), np.diff(ptr))
        for ptr in (graphs.node_ptr, graphs.edge_ptr)
    )
    if graphs.pairs is not None:
        edge = graphs.item_edge
        edge = np.zeros(0, np.int64) if edge is None else edge[at]
        ends = graphs.pairs[:, at]
        owners = [_owner(items, end, len(at), num_nodes) for end in ends]
        owner_of_edge = _owner(items[: len(edge)], edge, len(at), num_edges)
    else:
        if kind == "nodes":
            of_node, of_edge = all_nodes, np.asarray(graphs.edge_index[0])
        size = num_nodes if kind == "nodes" else len(graphs)
        owners = [_owner(of_node, all_nodes, size, num_nodes)[at]]
        owner_of_edge = _owner(of_edge, np.arange(num_edges), size, num_edges)[at]
    degree = np.log1p(graphs.degrees())[:, None]
    x = _sparse(graphs.x, graphs.num_features)
    pairs = [(o, sparse.hstack([x, degree], "csr")) for o in owners]
    if graphs.edge_attr is not None:
        attr = _sparse(graphs.edge_attr, graphs.num_edge_features)
        pairs.append((owner_of_edge, attr))
    if graphs.pairs is None and kind != "nodes":
        beside = [np.log1p(np.diff(graphs.node_ptr))[:, None]]
        beside += [] if graphs.graph_x is None else [graphs.graph_x]
        own = sparse.eye_array(len(graphs)).tocsr()[at]
        pairs.append((own, sparse.csr_array(np.hstack(beside))))
    return [(owner @ x, x, owner) for owner, x in pairs]


def _owner(item: IntArray, row: IntArray, size: int, width: int) -> Any:
    """Shares of rows in items, (size, width); those of an item add up to 1."""
    count = np.bincount(item, minlength=size)
    return sparse.csr_array((1 / count[item], (item, row)), shape=(size, width))


def _sparse(x: NDArray[Any], width: int) -> Any:
    """Features as a sparse matrix; a number of a column becomes a row with a 1."""
    if x.ndim == 2:
        return sparse.csr_array(x.astype(np.float64))
    at = np.arange(len(x)), x
    return sparse.csr_array((np.ones(len(x)), at), shape=(len(x), width))
