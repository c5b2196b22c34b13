"""Rows without training for tables of embeddings, computed once and kept in the file.

Sums of node features reach a paper's accuracy on two of its four data sets. So the
accuracy of a method alone does not show that it learned anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from datasets.public.tu import load_tu
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.embedding_scores import all_scores, probe_scores, transform
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.resolve import defaults, resolve

from ..presets import load_preset
from .frame import FIELDS, KEY, START, Row, Table, records, table

NAMES = ("one-class", "sum-x", "mean-x", "log1p", "untrained")
# Trivial features are clustered as they are: at length 1, sum and mean are the same.
TRANSFORM = "raw"


def control_results(results: Table, presets: Sequence[str]) -> Table:
    """Compute control rows for every result of some presets.

    Parameters
    ----------
    results : Table
        Controls that stand among them already are not computed again.
    presets : sequence of str
        Names, ``<method>-<data>``. Results with other settings do not count.

    Returns
    -------
    Table
        Rows ``control-<name>-<data>`` for the ``NAMES``, with the seeds and the split
        of their result: all graphs in one class; the features of `trivial_features`;
        the encoder of round 0.

    Raises
    ------
    DataError
        There is no such result.
    """
    models = [r for r in records(results) if r["row"] in presets and START in r]
    if not models:
        raise DataError(
            "--controls needs runs, with their round 0, of presets"
            f" {', '.join(presets) or '(this study names none)'}"
        )
    found = [_untrained(r) for r in models]
    known = {tuple(r[k] for k in KEY) for r in records(results)}
    for r in models:
        first = _control(r, NAMES[0], {"accuracy": 0.0})
        if tuple(first[k] for k in KEY) not in known:
            scores = scores_of(*_source(r["row"]), r["seed"])
            for name, of_name in scores.items():
                found.append(_control(r, name, of_name))
    return table(found)


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
        "sum-x": total,
        "mean-x": total / num_nodes[:, None],
        "log1p": transform(np.concatenate([total, neighbours], axis=1), "log1p"),
    }


def one_class_scores(y: NDArray[np.int64]) -> dict[str, float]:
    """Score the assignment of all graphs to the largest class."""
    share = float(np.bincount(y).max() / len(y))
    f1 = 2 * share / (1 + share) / len(np.unique(y))
    return {"accuracy": share, "macro-f1": f1, "nmi": 0.0, "ari": 0.0}


def _untrained(r: Row) -> Row:
    """Take the scores of round 0 as those of a row of its own."""
    known = {m.partition(":")[2]: v for m, v in r.items() if m.startswith("start:")}
    return _control(r, "untrained", {"accuracy": r[START], **known})


@lru_cache(maxsize=64)
def scores_of(name: str, features: str, seed: int) -> Mapping[str, Mapping[str, float]]:
    """Score the rows that need the data; the split and its order do not matter."""
    graphs = load_graphs(name, features)
    y, count = graphs.y, graphs.num_classes
    found: dict[str, Mapping[str, float]] = {"one-class": one_class_scores(y)}
    for kind, x in trivial_features(graphs).items():
        scores = all_scores(x, y, num_classes=count, seed=seed, headline=TRANSFORM)
        found[kind] = scores | probe_scores(x, y, seed=seed)
    return found


def _control(r: Row, name: str, scores: Mapping[str, float]) -> Row:
    final = {f"final:{m}": value for m, value in scores.items() if m != "accuracy"}
    own = {
        "row": f"control-{name}-{r['row'].partition('-')[2]}",
        "rounds": 0,
        "weights": "",
        "wall_s": 0.0,
        "final": scores["accuracy"],
    }
    return {**{k: r[k] for k in FIELDS}, **own, **final}


def _source(row: str) -> tuple[str, str]:
    """Name of the data set, and its features."""
    settings = resolve({**defaults(), **load_preset(row)}).settings
    return settings.dataset, settings.features


@lru_cache(maxsize=2)
def load_graphs(name: str, features: str) -> GraphSet:
    """Load a TU data set once per process."""
    return load_tu(name, features)


def _dense(graphs: GraphSet) -> NDArray[np.float64]:
    """Node features as rows; integers stand for the column of a one."""
    if graphs.x.ndim == 1:
        rows = np.zeros((graphs.num_nodes, graphs.num_features))
        rows[np.arange(graphs.num_nodes), graphs.x.astype(np.int64)] = 1.0
        return rows
    return graphs.x.astype(np.float64)
