"""Peak memory of a client with a graph of ogbn-arxiv's size: a generated one.

Writes raw files in OGB's layout, converts them, and lets one client train a round, each
in a process of its own, through the code that a run uses. With one client that client
holds the whole graph. Linux only.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.rules import Value
from fedgraph_flwr.seeding import numpy_rng

from ..run import add_settings
from .arguments import Parts
from .timing import console, in_own_process, print_table, resident_bytes

# ogbn-arxiv: Hu et al. 2020, arXiv:2005.00687
NUM_NODES, NUM_FEATURES, NUM_CLASSES = 169_343, 128, 40
NUM_EDGES = 1_166_243  # written once; about 2.3 million with both directions
_BLOCKS, _INSIDE = 400, 0.8  # communities, and the share of edges within one


def write_raw(place: tuple[str, int]) -> str:
    """Write a graph with communities, and features that tell classes weakly.

    ``place`` is the data folder and the number of nodes; edges are in proportion.
    """
    root, num_nodes = place
    num_edges = NUM_EDGES * num_nodes // NUM_NODES
    rng = numpy_rng(0, "node-memory")
    raw = Path(root) / "ogb" / "ogbn-arxiv" / "raw"
    raw.mkdir(parents=True)
    size = num_nodes // _BLOCKS
    source = rng.integers(0, num_nodes, num_edges)
    near = (source // size * size + rng.integers(0, size, num_edges)) % num_nodes
    far = rng.integers(0, num_nodes, num_edges)
    target = np.where(rng.random(num_edges) < _INSIDE, near, far)
    y = np.arange(num_nodes) // size % NUM_CLASSES
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    x = centres[y] + 3 * rng.normal(size=(num_nodes, NUM_FEATURES))
    for name, table, pattern in (
        ("edge", np.stack([source, target], axis=1), "%d"),
        ("node-feat", x, "%.2f"),
        ("node-label", y[:, None], "%d"),
    ):
        with gzip.open(raw / f"{name}.csv.gz", "wt", compresslevel=1) as file:
            np.savetxt(file, table, fmt=pattern, delimiter=",")
    return f"{len(x)} nodes, {len(source)} edges, {x.shape[1]} features"


def convert(config: dict[str, Value]) -> str:
    """Read the raw files into the cache, which a machine does once."""
    from datasets.node_graphs import load_node_graph

    graph = load_node_graph(
        "ogbn-arxiv",
        "raw",
        data_dir=str(config["data-dir"]),
        cache_dir=str(config["cache-dir"]),
    )
    return f"largest component {_size(graph)}"


def train(config: dict[str, Value]) -> str:
    """Load client 0 and train one round of it, evaluations included."""
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from clients.base import start_of
    from clients.binding import bind_run
    from fedgraph_flwr.client_app import app
    from fedgraph_flwr.resolve import defaults, resolve
    from fedgraph_flwr.wire import (
        EXPERIMENT,
        KEEP_FROM,
        NUM_EXAMPLES,
        SERVER_ROUND,
        TRAIN_LOSS,
        Parcel,
        pack,
        unpack,
    )
    from strategies.report import ClientInfo

    run = resolve({**defaults(), **config})
    spec = run.spec(num_features=NUM_FEATURES, num_classes=NUM_CLASSES)
    start = start_of(run.method.client, spec).arrays()
    strategy = run.method.make_strategy(run.settings, run.params, experiment="memory")
    info = ClientInfo(
        client=0,
        node_id=1,
        num_train=0,
        num_val=0,
        num_test=0,
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        group=-1,
        split_hash="",
        raw_sha256="",
    )
    strategy.clients = {0: info}
    strategy.initialise(start)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    # As simulation has it: client 0, and files where the run says.
    node: dict[str, Value] = {
        "partition-id": 0,
        "num-partitions": run.settings.num_clients,
    }
    context = Context(1, 1, node, RecordDict(), {**defaults(), **config})
    header: dict[str, Any] = {SERVER_ROUND: 1, KEEP_FROM: 0, EXPERIMENT: "memory"}
    parcel = Parcel(arrays=strategy.outgoing(1)[0], facts=strategy.facts(0))
    message = Message(pack({0: parcel}, header), 1, "train")
    bind_run(Path(run.settings.state_dir), 1, "memory")  # as at roll call
    begin = time.perf_counter()
    reply = unpack(app(message, context).content)[0][0]
    if reply.error:
        raise RuntimeError(reply.error)
    loss = reply.metrics[TRAIN_LOSS]
    return (
        f"{reply.metrics[NUM_EXAMPLES]} training nodes, loss {loss:.3f} after"
        f" {run.settings.local_epochs} epochs, {time.perf_counter() - begin:.1f} s with"
        " loading and evaluation"
    )


def _size(graph: Any) -> str:
    return f"{graph.num_nodes} nodes, {graph.edge_index.shape[1]} directed edges"


def add_memory(parts: Parts) -> None:
    """Declare ``memory`` and its arguments."""
    part = parts.add_parser("memory", help="of a client with a graph like ogbn-arxiv")
    part.set_defaults(measure=measure_memory)
    part.add_argument("--clients", default="1,5", help="numbers of clients to try")
    part.add_argument("--methods", default="fedavg", help="names, by commas")
    part.add_argument("--nodes", type=int, default=NUM_NODES, help="of the graph")
    part.add_argument("--limit-gb", type=float, default=4.0, help="else exit with 1")
    add_settings(part)


def measure_memory(arguments: argparse.Namespace) -> int:
    """Print the peak memory of every step; return 1 if a client needs too much."""
    with tempfile.TemporaryDirectory() as scratch:
        common: dict[str, Value] = {
            "dataset": "ogbn-arxiv",
            "learning-rate": 0.01,
            "device": "cpu",
            "data-dir": scratch,
            "cache-dir": f"{scratch}/cache",
            **dict(arguments.set),
        }
        steps: list[tuple[str, Callable[[Any], str], Any]] = [
            ("raw files", write_raw, (scratch, arguments.nodes)),
            ("conversion, once", convert, common),
        ]
        for method, count in product(
            arguments.methods.split(","), arguments.clients.split(",")
        ):
            own: dict[str, Value] = {"method": method, "num-clients": int(count)}
            config = {**common, **own, "state-dir": f"{scratch}/{method}-{count}"}
            steps.append((f"{method}, client 0 of {count}", train, config))
        rows, worst = [], 0.0
        for name, action, argument in steps:
            said, peak = in_own_process(with_peak, action, argument)
            rows.append({"step": name, "peak GB": f"{peak:.2f}", "what": said})
            worst = max(worst, peak if action is train else 0.0)
    print_table("peak memory of a client", rows)
    is_within = worst <= arguments.limit_gb
    verdict = "within" if is_within else "ABOVE"
    console.print(f"client processes are {verdict} {arguments.limit_gb:g} GB")
    return 0 if is_within else 1


def with_peak(action: Callable[[Any], str], argument: Any) -> tuple[str, float]:
    """Call ``action``; return what it says, and the peak of this process in GB."""
    return action(argument), resident_bytes(at_most=True) / 1e9
