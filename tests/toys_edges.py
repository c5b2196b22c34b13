"""Small graphs whose edges have directions, repeats, loops, features and weights."""

from __future__ import annotations

import numpy as np
import toys

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet, pointer

NONE = np.zeros(0, np.int64)
DEGREE = 2.5
ENCODERS = [
    name
    for name in RunSettings.config_fields()["encoder"].metadata["rule"].choices
    if name not in ("paper", "gcn2")
]


def multigraphs(*, directed: bool, compact: bool = False, seed: int = 0) -> GraphSet:
    """Four graphs with repeated edges and loops; the third has no edge, and in each
    the last node has none."""
    rng = np.random.default_rng(seed)
    sizes, counts = [5, 7, 3, 6], [12, 20, 0, 15]
    parts, rows, edge_counts = [], [], []
    for n, count in zip(sizes, counts, strict=True):
        ends = rng.integers(n - 1, size=(2, count))
        row = np.arange(count) + sum(map(len, rows))
        if not directed:
            is_pair = ends[0] != ends[1]
            ends = np.concatenate([ends, ends[::-1][:, is_pair]], axis=1)
            row = np.concatenate([row, row[is_pair]])
        order = np.lexsort((row, ends[1], ends[0]))
        parts.append(ends[:, order])
        rows.append(row[order])
        edge_counts.append(len(order))
    row = np.concatenate(rows)
    values = rng.normal(size=(len(row) + 1, 3)).astype(np.float32)
    return GraphSet(
        name="toy",
        x=rng.normal(size=(sum(sizes), 4)).astype(np.float32),
        edge_index=np.concatenate(parts, axis=1).astype(np.int32),
        node_ptr=pointer(sizes),
        edge_ptr=pointer(edge_counts),
        y=np.array([0, 1, 0, 1]),
        num_features=4,
        num_classes=2,
        is_undirected=not directed,
        is_simple=False,
        edge_attr=(row % 3).astype(np.uint8) if compact else values[row],
        num_edge_features=3,
        edge_weight=rng.random(len(row) + 1).astype(np.float32)[row],
        graph_x=rng.normal(size=(4, 2)).astype(np.float32),
    )


def spec_of(graphs: GraphSet, name: str, direction: str, **more):
    run = toys.resolved(
        "fedavg",
        **{"encoder": name, "direction": direction, "pna-degree": DEGREE, **more},
    )
    return run.spec(**graphs.widths)
