"""Time of a round through Flower, beside a plain loop, and the share of overhead."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import datasets
from clients.graphs.batching import ClientData
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.training import evaluate, train_epochs
from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.results.reader import RoundTimes, load_summary, read_times
from fedgraph_flwr.rules import Value

from ..scratch import finished_run
from .arguments import Parts, add_repeats
from .molecules import shares
from .plain import PlainGIN, PlainPyG
from .timing import WARM_UP, console, median_seconds, print_table


def add_round(parts: Parts) -> None:
    """Declare ``round`` and its arguments."""
    part = parts.add_parser("round", help="a round through Flower, and plain loops")
    part.set_defaults(measure=compare_round)
    part.add_argument("--dataset", default="molecules")
    part.add_argument("--clients", type=int, default=7)
    part.add_argument(
        "--nodes", type=int, nargs="+", help="of Flower; 2, and one per client"
    )
    add_repeats(part, 5)


def compare_round(arguments: argparse.Namespace) -> int:
    """Time a round through Flower and Ray, and plain loops.

    All do the same training and the same validation and test evaluations. Operators
    alone are the limit: what a round takes if nothing but them takes time.
    """
    count = arguments.clients
    overrides: dict[str, Value] = {
        "method": "gcfl+",
        "dataset": arguments.dataset,
        "num-clients": count,
        "num-server-rounds": WARM_UP + arguments.repeats,
    }
    run = resolve({**defaults(), **overrides})
    settings = run.settings
    partitions = [datasets.load_partition(settings, c) for c in range(count)]
    plain = plain_round(partitions, settings)
    single = ours_single_process(partitions, run)
    loops = {
        "plain PyG loop, 1 thread": on_threads(1, plain),
        "plain PyG loop, 2 threads": on_threads(2, plain),
        "ours in one process, no Flower": on_threads(1, single, flushes=True),
    }
    cpu = median_seconds(loops, arguments.repeats, clock=time.process_time)
    rows = median_seconds(loops, arguments.repeats)
    *_, ours = loops
    inside, *_ = shares(loops[ours])
    limit = "ours: operators alone"
    rows[limit], cpu[limit] = inside * rows[ours], inside * cpu[ours]
    best, least = (
        min(s for name, s in found.items() if name.startswith("plain"))
        for found in (rows, cpu)
    )
    for nodes in arguments.nodes or sorted({2, count}):
        flower = _medians(timed_rounds(overrides, nodes))
        for what, key in (("some client computing", "busy_s"), ("wall", "wall_s")):
            rows[f"ours through Flower, {nodes} nodes: {what}"] = flower[key]
    print_table(
        f"{arguments.dataset}, {count} clients, one round, median of"
        f" {arguments.repeats}",
        [
            {
                "what": name,
                "s": f"{s:.3f}",
                "plain / this": f"{best / s:.2f}x",
                "CPU s": f"{cpu[name]:.3f}" if name in cpu else "",
                "plain CPU / this": f"{least / cpu[name]:.2f}x" if name in cpu else "",
            }
            for name, s in rows.items()
        ],
    )
    return 0


def on_threads(
    count: int, action: Callable[[], None], *, flushes: bool = False
) -> Callable[[], None]:
    """Let ``action`` run on so many threads, denormal numbers flushed as in a run."""

    def call() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        torch.set_flush_denormal(flushes)
        try:
            action()
        finally:
            torch.set_num_threads(before)
            torch.set_flush_denormal(False)

    return call


def plain_round(
    partitions: Sequence[GraphPartition], settings: RunSettings
) -> Callable[[], None]:
    """Return a round of all clients in a plain loop of PyG."""
    clients = [
        PlainPyG(
            PlainGIN(p.graphs.num_features, p.graphs.num_classes, settings.hidden_dim),
            p,
            settings.batch_size,
            loss=nn.functional.cross_entropy,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        for p in partitions
    ]

    def one_round() -> None:
        for client in clients:
            client.round()

    return one_round


def ours_single_process(
    partitions: Sequence[GraphPartition], run: Resolved
) -> Callable[[], None]:
    """Return our round without Flower, which shows what each layer costs."""
    clients, settings = [], run.settings
    for partition in partitions:
        g = partition.graphs
        spec = run.spec(num_features=g.num_features, num_classes=g.num_classes)
        model = GraphClassifierClient.build_model(spec)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate,
            weight_decay=settings.weight_decay, fused=True,
        )  # fmt: skip
        data = ClientData.collate(partition, torch.device("cpu"))
        clients.append((model, optimizer, data))
    generator = torch.Generator().manual_seed(0)

    def one_round() -> None:
        for model, optimizer, data in clients:
            evaluate(model, data)

            def loss(batch: Any, model: nn.Module = model) -> Tensor:
                return nn.functional.cross_entropy(model(batch, generator), batch.y)

            train_epochs(
                loss, optimizer, data, num_epochs=1, batch_size=settings.batch_size,
                generator=generator,
            )  # fmt: skip
            evaluate(model, data)

    return one_round


def add_overhead(parts: Parts) -> None:
    """Declare ``overhead`` and its arguments."""
    part = parts.add_parser("overhead", help="share of time that no client computes")
    part.set_defaults(measure=measure_overhead)
    part.add_argument("--rounds", type=int, default=20, help="rounds per run")
    add_repeats(part, 5)


def measure_overhead(arguments: argparse.Namespace) -> int:
    """Tell the share of the wall time in which no client computes.

    NCI1 with 50 clients on 2 nodes.
    """
    overrides: dict[str, Value] = {
        "method": "gcfl+",
        "dataset": "NCI1",
        "num-clients": 50,
        "num-server-rounds": arguments.rounds,
    }
    rows, shares = [], []
    for _ in range(arguments.repeats):
        summary = timed_rounds(overrides, 2)
        shares.append(float(summary["overhead_s"]) / float(summary["wall_s"]))
        medians = {f"{k} of a round": f"{v:.3f}" for k, v in _medians(summary).items()}
        whole = {k: f"{float(summary[k]):.1f}" for k in ("wall_s", "overhead_s")}
        rows.append({**whole, "share": f"{shares[-1]:.1%}", **medians})
    print_table(f"NCI1, 50 clients on 2 nodes, {arguments.rounds} rounds", rows)
    console.print(f"median overhead: {statistics.median(shares):.1%} of wall time")
    return 0


def timed_rounds(overrides: dict[str, Value], num_nodes: int = 0) -> dict[str, Any]:
    """Make a :func:`finished_run`; return its summary with per-round times added."""
    with finished_run(overrides, num_nodes) as folder:
        return {**load_summary(folder), "times": read_times(folder)}


def _medians(summary: dict[str, Any]) -> dict[str, float]:
    rows: list[RoundTimes] = summary["times"][WARM_UP:]
    return {
        key: statistics.median(getattr(row, key) for row in rows)
        for key in ("wall_s", "busy_s", "client_compute_s")
    }
