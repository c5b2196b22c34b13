"""Whether clients' graphs resemble each other: a few means that a client may tell.

A run asks for them by ``tell-statistics``; a site tells them only if its policy has
``statistics = true``. They hold no smallest or largest value and nothing of one graph.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from .data import GraphPartition

TELLS = "statistics"  # name of the fact at roll call
_MOST_COUNTS, MOST_TARGETS = 50, 15  # a fact of the roll call is a short text
_LARGEST = 1e100  # of any mean: larger ones cannot be drawn
_LISTS = {
    "counts": _MOST_COUNTS,
    "target_mean": MOST_TARGETS,
    "target_std": MOST_TARGETS,
}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Means over the graphs of one client; NaN if there is nothing to average.

    Parameters
    ----------
    num_graphs, num_nodes : int
    nodes_per_graph, edges_per_graph : float
        An edge counts once.
    degree : float
        Mean number of neighbours of a node.
    isolated : float
        Share of nodes without neighbour.
    homophily : float
        Of the edges between labelled nodes, the share that joins nodes of one class;
        NaN for whole graphs.
    counts : tuple of int
        Graphs, or labelled nodes, of each of the first 50 classes; of binary targets
        the graphs with 1, target by target; empty for other targets.
    target_mean, target_std : tuple of float
        Of each of the first 15 targets that are numbers.
    """

    num_graphs: int
    num_nodes: int
    nodes_per_graph: float
    edges_per_graph: float
    degree: float
    isolated: float
    homophily: float
    counts: tuple[int, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()

    def to_json(self) -> str:
        """Write as a short text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Statistics | None:
        """Read what a client sent; None if these are no statistics."""
        try:
            found = json.loads(text)
            values = {f.name: found[f.name] for f in fields(cls)}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        for name, most in _LISTS.items():
            if not isinstance(values[name], list) or len(values[name]) > most:
                return None
            values[name] = tuple(values[name])
        counts = [values["num_graphs"], values["num_nodes"], *values["counts"]]
        means = [v for name, v in values.items() if name not in _LISTS]
        means += [*values["target_mean"], *values["target_std"]]
        if not all(type(n) is int and 0 <= n < 2**53 for n in counts):
            return None
        if not all(type(n) in (int, float) and not abs(n) > _LARGEST for n in means):
            return None
        return cls(**values)


def measure(partition: GraphPartition, *, is_binary: bool) -> Statistics:
    """Measure all graphs of a client.

    Parameters
    ----------
    partition : GraphPartition
    is_binary : bool
        Whether targets, if there are any, are 0 or 1.
    """
    graphs = partition.graphs
    degrees, count, y = graphs.degrees(), len(graphs), np.asarray(graphs.y)
    told: dict[str, Any] = {}
    if not graphs.has_tasks:
        told["counts"] = np.bincount(y[y >= 0], minlength=graphs.num_classes).tolist()
    elif is_binary:
        told["counts"] = (y == 1).sum(axis=0).tolist()
    else:
        told["target_mean"] = [_rounded(c[~np.isnan(c)], np.mean) for c in y.T]
        told["target_std"] = [_rounded(c[~np.isnan(c)], np.std) for c in y.T]
    return Statistics(
        num_graphs=count,
        num_nodes=graphs.num_nodes,
        nodes_per_graph=_rounded(np.diff(graphs.node_ptr), np.mean),
        edges_per_graph=_rounded(np.diff(graphs.edge_ptr) / 2, np.mean),
        degree=_rounded(degrees, np.mean),
        isolated=_rounded(degrees == 0, np.mean),
        homophily=_homophily(partition),
        **{name: tuple(values[: _LISTS[name]]) for name, values in told.items()},
    )


def _rounded(values: np.ndarray, of: Any) -> float:
    """Round to three digits; NaN if there is no value."""
    return float(f"{float(of(values)):.3g}") if len(values) else math.nan


def _homophily(partition: GraphPartition) -> float:
    graphs = partition.graphs
    if graphs.has_tasks or len(graphs.y) != graphs.num_nodes or len(graphs) > 1:
        return math.nan
    source, target = (np.asarray(graphs.y)[end] for end in graphs.edge_index)
    known = (source >= 0) & (target >= 0)
    return _rounded((source == target)[known], np.mean)
