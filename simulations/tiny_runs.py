"""Runs of a few seconds, of any method on any of its tasks, on generated federations.

A case is a method's name; on another than its first task, name and task's key.
"""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

import datasets
from datasets import load_partition
from datasets.edge_items import edge_items
from datasets.splits import mask_tasks, with_roles
from datasets.synthetic import generate_client
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition
from fedgraph_flwr.core.rules import Value, read_toml
from fedgraph_flwr.core.tasks import (
    EDGE_CLASSIFICATION,
    GRAPH_EMBEDDING,
    LINK_PREDICTION,
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
_ONE_GRAPH: Mapping[str, Value] = {
    "dataset": "planted",
    "shared-group": "all",
    "local-epochs": 2,  # of one step each, the first where nothing has drifted yet
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
    NODE_CLASSIFICATION.name: _ONE_GRAPH,
    EDGE_CLASSIFICATION.name: _ONE_GRAPH,
    LINK_PREDICTION.name: {**_ONE_GRAPH, "negatives": 3},
}
OF_CASE: Mapping[str, Mapping[str, Value]] = read_toml(
    Path(__file__).with_suffix(".toml")
)


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
    return {**of_task, **named, **OF_CASE.get(case, {})}


def tiny(case: str, **overrides: Value) -> dict[str, Value]:
    """Small settings of a case, with ``overrides``."""
    return {**TINY, **own(case), **overrides}


def federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Stand in for ``datasets.load_partition``: a few graphs of "synthetic".

    Of five in a row three train, one validates and one tests. Where nodes are
    classified, it is the graph of "planted"; where edges are, the class of one says
    whether its ends have the same. Where graphs have tasks, they have two.
    """
    kind, count = datasets.label_kind(settings), 20 + 5 * client_id
    if kind in ("nodes", "links"):
        return load_partition(settings, client_id)
    if kind == "edges":
        of_nodes = load_partition(
            replace(settings, task="node-classification"), client_id
        )
        graphs = of_nodes.graphs
        source, target = graphs.y[graphs.edge_index]
        labelled = replace(
            graphs, edge_y=(source == target) * 1, edge_classes=["unlike", "alike"]
        )
        return edge_items(replace(of_nodes, graphs=labelled), settings)
    graphs = generate_client(client_id, settings.split_seed).take(np.arange(count))
    tasks: tuple[str, ...] = ()
    if kind != "classes":
        y = np.stack([graphs.y, np.diff(graphs.node_ptr) // 4 % 2], axis=1)
        graphs, tasks = replace(graphs, y=y.astype(np.float32)), ("a", "b")
    turn = np.arange(count) % 5 * (settings.held_out > 0)
    ids, roles = 1000 * client_id + np.arange(count), np.maximum(turn - 2, 0)
    group = client_id % 2
    partition = with_roles(client_id, graphs, ids, roles, group=group, tasks=tasks)
    return mask_tasks(partition, settings) if tasks else partition


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
