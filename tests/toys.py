"""Small federations for tests: graphs, partitions, settings, jobs, whole runs."""

from __future__ import annotations

import csv
import io
import json
import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Error, Message
from safetensors.numpy import load_file
from torch_geometric.data import Data

from clients.base import initial_arrays
from clients.graphs.batching import Batch, CollatedGraphs
from clients.graphs.diffusion_view import CollatedDiffusion
from clients.privacy.laplace import Adjacency, Triangles
from clients.protocols import Diffuses
from clients.store import ClientStore
from datasets import find_dataset, label_kind
from datasets.diffusion import diffuse
from datasets.task_masks import mask_tasks
from fedgraph_flwr.config import RunSettings, build
from fedgraph_flwr.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.registry import METHODS, MethodOnTask
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.tasks import (
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
)
from fedgraph_flwr.wire import Parcel, unpack, with_prefix
from simulations.inline import InlineGrid
from strategies.report import ClientInfo

CPU = torch.device("cpu")
TINY = {
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
    edges = []
    for n in sizes:
        upper = np.triu(rng.random((n, n)) < 0.5, 1)
        if n > 2:
            upper[:, -1] = False
        edges.append(np.argwhere(upper | upper.T).T)
    total = sum(sizes)
    return GraphSet(
        name="toy",
        x=(
            rng.normal(size=(total, num_features)).astype(np.float32)
            if dense
            else rng.integers(0, num_features, total).astype(np.uint8)
        ),
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=np.cumsum([0, *sizes]).astype(np.int64),
        edge_ptr=np.cumsum([0, *(e.shape[1] for e in edges)]).astype(np.int64),
        y=np.arange(num_graphs, dtype=np.int64) % num_classes,
        num_features=num_features,
        num_classes=num_classes,
        is_undirected=True,
    )


def clean_triangles(
    adjacency: Adjacency, num_nodes: IntArray, positions: IntArray
) -> Triangles:
    """Triangles of 0 and 1, without any noise."""
    read = [adjacency.upper_triangle(int(g)) for g in positions]
    return Triangles(
        values=np.concatenate([np.zeros(0), *read]).astype(np.float32),
        num_nodes=num_nodes[positions],
        positions=positions,
    )


def to_pyg(graphs: GraphSet) -> list[Data]:
    """Make the same graphs PyG objects, one-hot features written out."""
    x = torch.from_numpy(graphs.x)
    if x.dim() == 1:
        x = torch.nn.functional.one_hot(x.long(), graphs.num_features).float()
    found = []
    for g in range(len(graphs)):
        nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
        edges = slice(graphs.edge_ptr[g], graphs.edge_ptr[g + 1])
        found.append(
            Data(
                x=x[nodes],
                edge_index=torch.from_numpy(graphs.edge_index[:, edges]).long(),
                y=torch.tensor([graphs.y[g]]),
                num_nodes=nodes.stop - nodes.start,
            )
        )
    return found


def whole(graphs: GraphSet) -> Batch:
    """Make one batch of all graphs."""
    return CollatedGraphs(graphs, CPU).batch(np.arange(len(graphs)))


def doubled(batch: Batch) -> Batch:
    """Give the same batch in double precision."""
    parts = {f.name: getattr(batch, f.name) for f in fields(Batch)}
    parts["x"] = batch.x.double() if batch.x.dim() == 2 else batch.x
    parts["adjacency"] = batch.adjacency.double()
    parts["membership"] = batch.membership.double()
    return Batch(**parts)


def make_partition(
    client_id: int = 0, *, num_graphs: int = 20, held_out: float = 0.4, **kw
) -> GraphPartition:
    """Of five graphs in a row, three train, one validates, one tests.

    With ``held_out`` = 0 all train.
    """
    graphs = random_graphs(num_graphs, **{"seed": client_id, **kw})
    turn = np.arange(num_graphs) % 5 if held_out else np.zeros(num_graphs, int)
    return GraphPartition(
        client_id=client_id,
        graphs=graphs,
        graph_ids=1000 * client_id + np.arange(num_graphs),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client_id % 2,
    )


def federation(settings, client_id: int) -> GraphPartition:
    """Stand in for ``datasets.load_partition``: clients of 20, 25, 30, ... graphs.

    Or of so many nodes, where these are classified.
    """
    if label_kind(settings) == "nodes":
        return make_node_partition(client_id, num_nodes=20 + 5 * client_id)
    partition = make_partition(
        client_id, num_graphs=20 + 5 * client_id, held_out=settings.held_out
    )
    kind = label_kind(settings)
    if kind == "classes":
        return partition
    labelled = with_tasks(partition, kind)
    return mask_tasks(labelled, settings)


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
    upper = np.triu(rng.random((num_nodes, num_nodes)) < density, 1)
    upper[:, -1] = False
    edges = np.argwhere(upper | upper.T).T
    y = np.arange(num_nodes, dtype=np.int64) % num_classes
    x = rng.normal(size=(num_nodes, num_features)) + np.eye(num_features)[y]
    return GraphSet(
        name="toy-nodes",
        x=x.astype(np.float32),
        edge_index=edges.astype(np.int32),
        node_ptr=pointer([num_nodes]),
        edge_ptr=pointer([edges.shape[1]]),
        y=y,
        num_features=num_features,
        num_classes=num_classes,
        is_undirected=True,
    )


def make_node_partition(
    client_id: int = 0, *, num_nodes: int = 20, **kw
) -> GraphPartition:
    """Of five nodes in a row, three train, one validates, one tests."""
    turn = np.arange(num_nodes) % 5
    return GraphPartition(
        client_id=client_id,
        graphs=make_whole_graph(num_nodes, **{"seed": client_id, **kw}),
        graph_ids=1000 * client_id + np.arange(num_nodes),
        train=np.flatnonzero(turn < 3),
        val=np.flatnonzero(turn == 3),
        test=np.flatnonzero(turn == 4),
        group=client_id % 2,
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


def run_settings(**changes) -> RunSettings:
    """Settings of PROTEINS in ten chunks, changed but not checked; keys as fields."""
    base = {"dataset": "PROTEINS", "num_clients": 10, "partition": "chunks"}
    given = {k.replace("_", "-"): v for k, v in {**base, **changes}.items()}
    info = find_dataset(given["dataset"])
    of_task = {"task": "graph-classification", "patience": 0, "min-rounds": 0}
    automatic = {**of_task, **info.automatic}
    return build(RunSettings, {**defaults(), **given}, automatic)


OF_TASK = {
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
_SOON = {"gcfl.min-round": 0, "gcfl.seq-length": 2}
OF_METHOD = {
    "gcfl": _SOON,
    "gcfl+": _SOON,
    "gcfl+ multi-task": {
        **_SOON,
        "gcfl.mean-norm-threshold": 1.0,
        "gcfl.max-norm-threshold": 0.0,
    },
    "fgcl": {"privacy.edge-epsilon": 2.0, "fgcl.num-negatives": 3},
}


# A method on its first task has the method's name; on another, "<method> <task>". Nodes
# have a check-list of their own.
CASES = sorted(
    [
        *METHODS,
        "local graph-embedding",
        *(f"{m} multi-task" for m in ("local", "fedavg", "fedprox", "gcfl+")),
    ]
)


def row(case: str) -> MethodOnTask:
    """Return what a case is made of."""
    method, _, key = case.partition(" ")
    task = next(t for t in METHODS[method].clients if key in ("", t.key))
    return METHODS[method].on(task.labels[0], task.key)


def own(case: str) -> dict:
    """Method and task of a case, and settings that these cannot do without."""
    method, _, key = case.partition(" ")
    named = {"method": method} | ({"task": key} if key else {})
    of_task = OF_TASK.get(row(case).task.name, {})
    return {**of_task, **named, **OF_METHOD.get(case, {})}


def tiny(case: str, **overrides) -> dict:
    """Small settings of a case, with ``overrides``."""
    return {**TINY, **own(case), **overrides}


def resolved(method: str = "fedavg", **overrides) -> Resolved:
    """Resolve ``TINY`` with ``overrides``, given as {"run-config-key": value}."""
    return resolve({**defaults(), **tiny(method, **overrides)})


def make_client(root: Path, method: str = "fedavg", *, partition=None, **overrides):
    """Build one client as the ClientApp does."""
    run = resolved(method, **overrides)
    partition = partition or make_partition(held_out=run.settings.held_out)
    data = run.method.client.DATA.collate(partition, CPU)
    if issubclass(run.method.client, Diffuses):
        spec, graphs = run.method.client.diffusion(run.params), partition.graphs
        view = CollatedDiffusion(diffuse(graphs, spec), graphs.node_ptr, CPU)
        data = replace(data, view=view)
    store = ClientStore(root, "experiment", client_id=partition.client_id)
    site = run.site(store, is_secret=False)
    return run.method.client(run.job(data, store, site, CPU))


def in_doubles(client):
    """Give the client's diffusion view, stored as float32, as doubles."""
    view = client.job.data.view
    for half in ("_incoming", "_outgoing"):
        counts, columns, weight = getattr(view, half)
        setattr(view, half, (counts, columns, weight.double()))
    return client


def parcel(client, arrays=None, *, extras=None, facts=None) -> Parcel:
    """Shared tensors, by default as they are now, and what comes beside them."""
    arrays = shared_arrays(client) if arrays is None else arrays
    named = dict(zip(client.shared_keys, arrays, strict=True))
    return Parcel(
        arrays={**with_prefix(SHARED, named), **(extras or {})}, facts=facts or {}
    )


def begun(client, server_round: int = 1, *mail, **more):
    """The client as before the first epoch of a round; ``mail`` as of ``parcel``."""
    message = parcel(client, *mail, **more)
    client.round = client.begin(message, {"server-round": server_round})
    return client


def shared_arrays(client) -> list[np.ndarray]:
    """Return the shared tensors as they are now, ordered like ``shared_keys``."""
    named = client.tensors()
    return [named[n].detach().numpy().copy() for n in client.shared_keys]


@dataclass(frozen=True)
class Run:
    """A finished run, read back from its folder."""

    path: Path
    overrides: dict

    @property
    def summary(self) -> dict:
        return json.loads((self.path / "summary.json").read_text())

    @property
    def sha(self) -> str:
        return self.summary["weights_sha256"]

    @property
    def clusters(self) -> dict:
        return json.loads((self.path / "clusters.json").read_text())["rounds"]

    @property
    def rounds(self) -> str:
        return (self.path / "rounds.csv").read_text()

    @property
    def ledger(self) -> list[dict]:
        return list(csv.DictReader((self.path / "ledger.csv").read_text().splitlines()))

    def values(self, *metrics: str) -> dict[tuple, float]:
        """Map (round, client, split, point, metric) to the value."""
        return {
            tuple(r[k] for k in ("round", "client", "split", "point", "metric")): float(
                r["value"]
            )
            for r in csv.DictReader(self.rounds.splitlines())
            if r["metric"] in (metrics or ("accuracy", "roc-auc", "loss"))
        }

    @property
    def models(self) -> dict[str, dict[str, np.ndarray]]:
        return {p.stem: load_file(p) for p in (self.path / "models").iterdir()}


def info(client: int, **changes) -> ClientInfo:
    """Tell what a client with one of everything says at roll call."""
    names = ("num_train", "num_val", "num_test", "num_features", "num_classes", "group")
    ones = dict.fromkeys(names, 1)
    texts = {"split_hash": "", "raw_sha256": ""}
    return ClientInfo(client=client, **{"node_id": 0, **texts, **ones, **changes})


def of_task(task) -> list[str]:
    """Cases of a task."""
    return [case for case in CASES if row(case).task is task]


def federated(task=None) -> list[str]:
    """Cases that train common models, of one task or of all."""
    return [
        case
        for case in (CASES if task is None else of_task(task))
        if row(case).has_server_model
    ]


def has_buffers(method: str) -> bool:
    """Whether a method's model averages statistics that it does not train."""
    return any("running_" in name for name in shared_keys(method))


def shared_keys(method: str) -> list[str]:
    """Names of the shared tensors of a method's toy model."""
    run = resolved(method)
    return list(
        initial_arrays(run.method.client, run.spec(num_features=4, num_classes=2))
    )


def in_two_processes(action: Callable, *args: Any, **kw: Any) -> tuple[list[Any], str]:
    """Call an importable function in two processes at once: results, and their logs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch_geometric.datasets"])  # seconds, once
    start, answers = context.Barrier(2), context.SimpleQueue()
    processes = [
        context.Process(target=_answer, args=(start, answers, action, args, kw))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0], found
    return [result for result, _ in found], "".join(text for _, text in found)


def _answer(start: Any, answers: Any, action: Callable, args: tuple, kw: dict) -> None:
    written = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=written)
    start.wait(timeout=60)
    result = None
    try:
        result = action(*args, **kw)
    finally:  # a failure is seen by the exit code
        answers.put((result, written.getvalue()))


def lose_reply(monkeypatch, *, server_round: int, client: int) -> None:
    """Let the reply of a client's node get lost after the node has computed it."""
    deliver = InlineGrid.deliver

    def lose(self, message):
        reply = deliver(self, message)
        parcels, header = unpack(message.content)
        if header.get("server-round") == server_round and client in parcels:
            return Message(Error(2, "connection lost"), reply_to=message)
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", lose)
