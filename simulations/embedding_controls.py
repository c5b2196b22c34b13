"""Control rows without learning: k-means on trivial features of the same graphs.

Our spec, Sec. 7.1: such features reach the paper's accuracy on two of four data sets,
so that a method's accuracy alone says nothing about what it learned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from datasets import find_dataset
from datasets.tu import load_tu
from fedgraph_flwr.data import GraphSet
from fedgraph_flwr.embedding_scores import all_scores, probe_scores, transform
from fedgraph_flwr.errors import FedGraphError

from .embedding_rows import EmbeddingGroup
from .embedding_stats import Row, Scores, control_row

# The features are clustered as they are named: scaled to length 1, the first two would
# be the same.
TRANSFORM = "raw"


def trivial_features(graphs: GraphSet) -> dict[str, NDArray[np.float64]]:
    """Describe each graph by sums over its nodes.

    Returns
    -------
    dict
        Name -> array of shape (num_graphs, F) or (num_graphs, 2 F): the sum and the
        mean of the node features x, and log1p of [sum of x, sum of A x].
    """
    x = _dense(graphs)
    num_nodes = np.diff(graphs.node_ptr)
    graph_of_node = np.repeat(np.arange(len(graphs)), num_nodes)
    # A x, summed over the nodes, has each x as often as edges leave its node.
    total, neighbours = np.zeros((2, len(graphs), x.shape[1]))
    np.add.at(total, graph_of_node, x)
    np.add.at(neighbours, graph_of_node, graphs.degrees()[:, None] * x)
    return {
        "trivial: sum of x": total,
        "trivial: mean of x": total / num_nodes[:, None],
        "trivial: log1p [sum x, sum Ax]": transform(
            np.concatenate([total, neighbours], axis=1), "log1p"
        ),
    }


def trivial_scores(
    graphs: GraphSet, seeds: Sequence[int], *, probe: bool = False
) -> dict[str, Scores]:
    """Score trivial features by the code that scores embeddings: name -> scores."""
    found: dict[str, Scores] = {}
    for name, features in trivial_features(graphs).items():
        by_seed = {}
        for seed in sorted(seeds):
            by_seed[seed] = all_scores(
                features,
                graphs.y,
                num_classes=graphs.num_classes,
                seed=seed,
                headline=TRANSFORM,
            )
            if probe:
                by_seed[seed] |= probe_scores(features, graphs.y, seed=seed)
        found[name] = by_seed
    return found


def trivial_rows(
    group: EmbeddingGroup, *, data_dir: str = "", probe: bool = False
) -> tuple[list[Row], str]:
    """Compute the control rows of a group.

    Parameters
    ----------
    group : EmbeddingGroup
    data_dir : str
        Folder of TU data; "" means FEDGRAPH_DATA, else the folder that a run used.
    probe : bool
        Also train probes on the features, which takes minutes on NCI1.

    Returns
    -------
    rows : list of Row
    why_not : str
        Why there are none; empty where there are.
    """
    settings = group.runs[0].run.summary["config"]
    features = str(settings["features"])
    seeds = tuple(sorted({r.run.seed for r in group.runs}))
    folder = data_dir or os.environ.get("FEDGRAPH_DATA") or settings["data-dir"]
    if not folder:
        return [], "no data: set --data-dir or FEDGRAPH_DATA"
    try:
        info = find_dataset(group.dataset)
        if len(info.members) != 1 or info.members[0] == "synthetic":
            return [], f"{group.dataset} is not one TU data set"
        graphs = _load(info.members[0], features, str(folder))
        used = {s for r in group.runs for s in r.run.summary["data_sha256"].values()}
        if used - {graphs.raw_sha256}:
            return [], (
                f"the data in {folder} are not those of the runs"
                f" (SHA-256 {graphs.raw_sha256[:12]}, runs"
                f" {', '.join(sorted(s[:12] for s in used))}); set --data-dir"
            )
        found = _scores(info.members[0], features, folder, seeds, probe)
    except (FedGraphError, KeyError) as error:
        return [], f"{type(error).__name__}: {error}; set --data-dir or FEDGRAPH_DATA"
    return [control_row(name, of, TRANSFORM) for name, of in found.items()], ""


@lru_cache(maxsize=2)
def _load(name: str, features: str, data_dir: str) -> GraphSet:
    return load_tu(name, features, data_dir=data_dir)


@lru_cache(maxsize=32)
def _scores(
    name: str, features: str, data_dir: str, seeds: tuple[int, ...], probe: bool
) -> Mapping[str, Scores]:
    graphs = _load(name, features, data_dir)
    return MappingProxyType(trivial_scores(graphs, seeds, probe=probe))


def _dense(graphs: GraphSet) -> NDArray[np.float64]:
    """Node features as rows; integers stand for the column of a one."""
    if graphs.x.ndim == 1:
        rows = np.zeros((graphs.num_nodes, graphs.num_features))
        rows[np.arange(graphs.num_nodes), graphs.x.astype(np.int64)] = 1.0
        return rows
    return graphs.x.astype(np.float64)
