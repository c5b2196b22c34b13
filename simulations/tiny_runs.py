"""Runs of a few seconds, of any method on any of its tasks, on generated federations.

A case is a method's name; on another than its first task, name and task's key.
"""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

import datasets
from datasets.splits import mask_tasks
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, pointer
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.tasks import (
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
)
from fedgraph_flwr.node import serve
from fedgraph_flwr.node.node_config import is_site
from fedgraph_flwr.registry import MethodOnTask, find_method, on_data
from fedgraph_flwr.results.reader import LEDGER, ROUNDS, load_summary

from .inline import run_inline

TINY: Mapping[str, Value] = {
    "dataset": "synthetic",
    "num-clients": 3,
    "num-server-rounds": 3,
    "local-epochs": 1,
    "persist-optimizer": True,
    "hidden-dim": 8,
    "num-layers": 2,
    "batch-size": 4,
    "learning-rate": 0.01,
    "shared-group": "convs",
    "device": "cpu",
}
OF_TASK: Mapping[str, Mapping[str, Value]] = {
    GRAPH_EMBEDDING.name: {
        "shared-group": "all",
        "batch-size": 8,
        "embedding.rounds": "0",
        "embedding.probe": False,  # most of the time of a small run
    },
    MULTI_TASK_CLASSIFICATION.name: {
        "dataset": "BACE",
        "features": "atoms-no-degree",
        "shared-group": "all",
        "batch-size": 8,
    },
    NODE_CLASSIFICATION.name: {
        "dataset": "planted",
        "shared-group": "all",
        "local-epochs": 2,  # of one step each, the first where nothing has drifted yet
    },
}
_SOON: Mapping[str, Value] = {"gcfl.min-round": 0, "gcfl.seq-length": 2}
_SPLITS: Mapping[str, Value] = {
    "gcfl.mean-norm-threshold": 1.0,
    "gcfl.max-norm-threshold": 0.0,
}
OF_METHOD: Mapping[str, Mapping[str, Value]] = {
    "gcfl": _SOON,
    "gcfl+": _SOON,
    "gcfl+ multi-task": {**_SOON, **_SPLITS},
    "fgcl": {"privacy.edge-epsilon": 2.0, "fgcl.num-negatives": 3},
    "fedsage+": {"fedsage-plus.rounds": 3},
    "adafgl": {"adafgl.federated-rounds": 2, "adafgl.personal-epochs": 2},
}


def row(case: str) -> MethodOnTask:
    """Return a case's method on its task."""
    method, _, key = case.partition(" ")
    found = find_method(method)
    task = next(t for t in found.clients if key in ("", t.key))
    return on_data(found, task.labels[0], task.key)


def own(case: str) -> dict[str, Value]:
    """Return method and task of a case, and the settings that they need."""
    method, _, key = case.partition(" ")
    named = {"method": method} | ({"task": key} if key else {})
    of_task = OF_TASK.get(row(case).task.name, {})
    return {**of_task, **named, **OF_METHOD.get(case, {})}


def tiny(case: str, **overrides: Value) -> dict[str, Value]:
    """Small settings of a case, with ``overrides``."""
    return {**TINY, **own(case), **overrides}


# Federations -----------------------------------------------------------------------


def random_graphs(
    num_graphs: int,
    *,
    num_features: int = 4,
    num_classes: int = 2,
    seed: int = 0,
    dense: bool = False,
    max_nodes: int = 8,
) -> GraphSet:
    """Undirected graphs of 1 to ``max_nodes`` nodes; every fifth is a single node.

    The last node of a graph of more than two is isolated. Features are one-hot
    columns, or real rows if ``dense``.
    """
    rng = np.random.default_rng(seed)
    sizes = [
        1 if g % 5 == 0 else int(rng.integers(2, max_nodes + 1))
        for g in range(num_graphs)
    ]
    edges = [_random_edges(rng, n, 0.5, is_cut=n > 2) for n in sizes]
    y = np.arange(num_graphs, dtype=np.int64) % num_classes
    if dense:
        x = rng.normal(size=(sum(sizes), num_features)).astype(np.float32)
    else:
        x = rng.integers(0, num_features, sum(sizes)).astype(np.uint8)
    return _graph_set("toy", sizes, edges, x, y, num_features, num_classes)


def make_whole_graph(
    num_nodes: int,
    *,
    num_features: int = 6,
    num_classes: int = 3,
    seed: int = 0,
    density: float = 0.2,
) -> GraphSet:
    """One undirected graph with classes of nodes; the last node is isolated."""
    rng = np.random.default_rng(seed)
    edges = _random_edges(rng, num_nodes, density, is_cut=True)
    y = np.arange(num_nodes, dtype=np.int64) % num_classes
    x = rng.normal(size=(num_nodes, num_features)) + np.eye(num_features)[y]
    sizes, x = [num_nodes], x.astype(np.float32)
    return _graph_set("toy-nodes", sizes, [edges], x, y, num_features, num_classes)


def _random_edges(
    rng: np.random.Generator, num_nodes: int, density: float, *, is_cut: bool
) -> NDArray[Any]:
    upper = np.triu(rng.random((num_nodes, num_nodes)) < density, 1)
    if is_cut:
        upper[:, -1] = False
    return np.argwhere(upper | upper.T).T


def _graph_set(
    name: str,
    sizes: Sequence[int],
    edges: Sequence[NDArray[Any]],
    x: NDArray[Any],
    y: NDArray[Any],
    num_features: int,
    num_classes: int,
) -> GraphSet:
    return GraphSet(
        name=name,
        x=x,
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=pointer(sizes),
        edge_ptr=pointer([e.shape[1] for e in edges]),
        y=y,
        num_features=num_features,
        num_classes=num_classes,
        is_undirected=True,
    )


def make_partition(
    client_id: int = 0, *, num_graphs: int = 20, held_out: float = 0.4, **kw: Any
) -> GraphPartition:
    """Of five graphs in a row, three train, one validates, one tests.

    With ``held_out`` = 0 all train.
    """
    graphs = random_graphs(num_graphs, **{"seed": client_id, **kw})
    return _partition(client_id, graphs, num_graphs, is_split=held_out > 0)


def make_node_partition(
    client_id: int = 0, *, num_nodes: int = 20, **kw: Any
) -> GraphPartition:
    """Of five nodes in a row, three train, one validates, one tests."""
    graph = make_whole_graph(num_nodes, **{"seed": client_id, **kw})
    return _partition(client_id, graph, num_nodes)


def _partition(
    client: int, graphs: GraphSet, count: int, *, is_split: bool = True
) -> GraphPartition:
    turn = np.arange(count) % 5 * is_split
    return GraphPartition(
        client_id=client,
        graphs=graphs,
        graph_ids=1000 * client + np.arange(count),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client % 2,
    )


def with_tasks(partition: GraphPartition, kind: str = "binary") -> GraphPartition:
    """Label the graphs 0 or 1 for two tasks, of which a few labels are missing.

    For "regression", by their number of nodes and half of it instead.
    """
    count = len(partition.graphs)
    y = np.stack([np.arange(count) // 5 % 2, np.arange(count) // 10 % 2], axis=1)
    if kind == "regression":
        y = np.diff(partition.graphs.node_ptr)[:, None] * np.array([1.0, 0.5])
    y = y.astype(np.float32)
    y[::7, 1] = np.nan
    return replace(partition, graphs=replace(partition.graphs, y=y), tasks=("a", "b"))


def federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Stand in for ``datasets.load_partition``: clients of 20, 25, 30, ... graphs.

    Or of so many nodes, where these are classified.
    """
    kind, size = datasets.label_kind(settings), 20 + 5 * client_id
    if kind == "nodes":
        return make_node_partition(client_id, num_nodes=size)
    held_out = settings.held_out
    partition = make_partition(client_id, num_graphs=size, held_out=held_out)
    if kind == "classes":
        return partition
    return mask_tasks(with_tasks(partition, kind), settings)


# Runs ------------------------------------------------------------------------------


class Run(NamedTuple):
    """A finished run, read back from its folder."""

    path: Path
    overrides: dict[str, Value]

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        return load_summary(self.path)

    @property
    def sha(self) -> str:
        """Hash of all weights."""
        return str(self.summary["weights_sha256"])

    @property
    def clusters(self) -> dict[str, Any]:
        """Clusters after each round."""
        found: dict[str, Any] = json.loads((self.path / "clusters.json").read_text())
        return dict(found["rounds"])

    @property
    def rounds(self) -> str:
        """All evaluations, as written."""
        return (self.path / ROUNDS).read_text()

    @property
    def ledger(self) -> list[dict[str, str]]:
        """Rows of bytes that travelled."""
        return list(csv.DictReader((self.path / LEDGER).read_text().splitlines()))

    def values(self, *metrics: str) -> dict[tuple[str, ...], float]:
        """Map (round, client, split, point, metric) to the value."""
        keys, wanted = ("round", "client", "split", "point", "metric"), set(metrics)
        return {
            tuple(r[k] for k in keys): float(r["value"])
            for r in csv.DictReader(self.rounds.splitlines())
            if r["metric"] in (wanted or {"accuracy", "roc-auc", "loss"})
        }

    @property
    def models(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The server's models."""
        found = (self.path / "models").glob("*.safetensors")
        return {p.stem: load_file(p) for p in found}


class Lab:
    """Runs toy federations in this process, below one folder.

    Whoever makes one replaces ``datasets.load_partition`` by :func:`federation`.

    Parameters
    ----------
    root : path
    settings : mapping, optional
        Run-config keys of every run.
    finished : dict, optional
        Where :meth:`once` finds runs that other laboratories have made.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Value] | None = None,
        *,
        finished: dict[tuple[Any, ...], Run] | None = None,
    ) -> None:
        self.root, self.settings = root, dict(settings or {})
        self._finished = {} if finished is None else finished

    def run(
        self,
        case: str = "fedavg",
        *,
        nodes: int = 1,
        node_configs: Iterable[Mapping[str, Any]] | None = None,
        **overrides: Any,
    ) -> Run:
        """Run a case on simulated nodes, or on nodes with ``node_configs``."""
        own_folder = self.root / secrets.token_hex(4)
        config: dict[str, Value] = {
            **tiny(case),
            "results-dir": str(own_folder / "results"),
            "state-dir": str(own_folder / "state"),
            "cache-dir": str(self.root / "cache"),
            **self.settings,
            **overrides,
        }
        # What a site's operator has set: a folder that holds the data, and a home.
        homes = {
            "XDG_STATE_HOME": str(config["state-dir"]),
            "FEDGRAPH_CACHE": str(config["cache-dir"]),
        }
        if node_configs and config["dataset"] not in ("synthetic", "planted"):
            node_configs = [
                {"data-path": "/toys", **node} if is_site(node) else node
                for node in node_configs
            ]
        serve.clear_kept()
        with mock.patch.dict(os.environ, homes):
            path = run_inline(config, num_nodes=nodes, node_configs=node_configs)
        return Run(path, config)

    def once(self, case: str, **overrides: Any) -> Run:
        """Run as :meth:`run` does, once per settings; later patches have no effect."""
        key = (case, datasets.load_partition, *sorted(overrides.items()))
        if key not in self._finished:
            self._finished[key] = self.run(case, **overrides)
        return self._finished[key]
