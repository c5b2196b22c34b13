"""Where the time goes: ``python -m simulations.speed [round|overhead|teachers]``.

``round``: one round of ``molecules`` (7 clients) through Flower and Ray on this machine
against a plain single-process loop over PyG's ``DataLoader`` and ``GINConv`` that does
the same training and the same validation and test evaluations. The two take turns in
one process tree; the figure is the ratio of medians.

``overhead``: share of the wall time in which no client computes, NCI1 with 50 clients
on 2 nodes.

``teachers``: FCLG's local round with its teachers' embeddings computed once per round
and epoch, against once per batch.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

import datasets
from clients.graphs.batching import ClientData
from clients.tasks.graph_classifier import build_gin
from clients.training import evaluate, train_epochs
from fedgraph_flwr.config import RunSettings, Value
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.resolve import defaults, resolve

from .flower import run_flower
from .speed_teachers import measure_teachers

console = Console(highlight=False)


class PlainGIN(nn.Module):
    """The same network from PyG's parts, as its examples write it."""

    def __init__(self, num_features: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.pre = nn.Linear(num_features, hidden)
        self.convs = nn.ModuleList(
            GINConv(
                nn.Sequential(
                    nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
                )
            )
            for _ in range(3)
        )
        self.post = nn.Linear(hidden, hidden)
        self.readout = nn.Linear(hidden, num_classes)

    def forward(self, batch: Data) -> Tensor:
        """Logits, shape (num_graphs, num_classes)."""
        x = self.pre(batch.x)
        for conv in self.convs:
            x = nn.functional.dropout(
                conv(x, batch.edge_index).relu(), 0.5, self.training
            )
        g = self.post(global_add_pool(x, batch.batch)).relu()
        logits: Tensor = self.readout(nn.functional.dropout(g, 0.5, self.training))
        return logits


def to_pyg(partition: GraphPartition, split: str) -> list[Data]:
    """Graphs of a split as PyG objects, one-hot features written out."""
    found = []
    graphs = partition.graphs
    for position in partition.positions(split):
        one = graphs.take(position[None])
        x = torch.from_numpy(one.x)
        if x.dim() == 1:
            x = nn.functional.one_hot(x.long(), graphs.num_features)
        found.append(
            Data(
                x=x.float(),
                edge_index=torch.from_numpy(one.edge_index).long(),
                y=torch.from_numpy(one.y),
            )
        )
    return found


class PlainClient:
    """A client of the plain loop."""

    def __init__(self, partition: GraphPartition, settings: RunSettings) -> None:
        graphs, size = partition.graphs, settings.batch_size
        self.model = PlainGIN(
            graphs.num_features, graphs.num_classes, settings.hidden_dim
        )
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        self.train_loader = DataLoader(to_pyg(partition, "train"), size, shuffle=True)
        self.held_out = [
            DataLoader(to_pyg(partition, split), size) for split in ("val", "test")
        ]

    def round(self) -> None:
        """Evaluate, train one epoch, evaluate: what a federated round does."""
        self.evaluate()
        self.model.train()
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(batch), batch.y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Accuracy and loss on validation and test graphs."""
        self.model.eval()
        for loader in self.held_out:
            hits = loss = 0.0
            for batch in loader:
                logits = self.model(batch)
                hits += int((logits.argmax(1) == batch.y).sum())
                loss += float(
                    nn.functional.cross_entropy(logits, batch.y, reduction="sum")
                )


def ours_single_process(
    partitions: list[GraphPartition], settings: RunSettings
) -> Callable[[], None]:
    """Return our training loop without Flower, to show what each layer costs."""
    device = torch.device("cpu")
    clients = []
    for partition in partitions:
        graphs = partition.graphs
        model = build_gin(
            settings, graphs.num_features, graphs.num_classes,
            client_id=partition.client_id,
        )  # fmt: skip
        optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate,
            weight_decay=settings.weight_decay, fused=True,
        )  # fmt: skip
        clients.append((model, optimizer, ClientData.collate(partition, device)))
    generator = torch.Generator().manual_seed(0)

    def one_round() -> None:
        for model, optimizer, data in clients:
            evaluate(model, data)

            def loss(batch: object, model: nn.Module = model) -> Tensor:
                logits = model(batch, generator)
                return nn.functional.cross_entropy(logits, batch.y)  # type: ignore[attr-defined]

            train_epochs(
                loss, optimizer, data, num_epochs=1, batch_size=settings.batch_size,
                generator=generator,
            )  # fmt: skip
            evaluate(model, data)

    return one_round


def median_seconds(action: Callable[[], None], repeats: int) -> float:
    """Median time of ``repeats`` calls after one to warm up."""
    action()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def flower_rounds(overrides: dict[str, Value], num_nodes: int) -> dict[str, object]:
    """Run through Flower and Ray; return the summary with per-round times added."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = run_flower(
            {
                **overrides,
                "state-dir": str(Path(scratch) / "state"),
                "results-dir": str(Path(scratch) / "results"),
            },
            num_nodes=num_nodes,
        )
        summary: dict[str, object] = json.loads((folder / "summary.json").read_text())
        with (folder / "times.csv").open(newline="") as file:
            summary["times"] = list(csv.DictReader(file))
    return summary


def _medians(summary: dict[str, object], warm_up: int = 2) -> dict[str, float]:
    rows = summary["times"][warm_up:]  # type: ignore[index]
    return {
        key: statistics.median(float(row[key]) for row in rows)
        for key in ("wall_s", "busy_s", "client_compute_s")
    }


def compare_round(repeats: int) -> float:
    """Ratio of the plain loop's round to ours on ``molecules``."""
    overrides: dict[str, Value] = {
        "method": "gcfl+",
        "dataset": "molecules",
        "num-server-rounds": 2 + repeats,
    }
    settings = resolve({**defaults(), **overrides}).settings
    partitions = [datasets.load_partition(settings, c) for c in range(7)]
    plain_clients = [PlainClient(p, settings) for p in partitions]

    def plain() -> None:
        for client in plain_clients:
            client.round()

    rows = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows[f"plain PyG loop, {threads} thread(s)"] = median_seconds(plain, repeats)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    single = ours_single_process(partitions, settings)
    rows["ours, one process, 1 thread, no Flower"] = median_seconds(single, repeats)
    flower = _medians(flower_rounds(overrides, num_nodes=7))
    rows["ours through Flower: sum over clients"] = flower["client_compute_s"]
    rows["ours through Flower: some client computing"] = flower["busy_s"]
    rows["ours through Flower: wall"] = flower["wall_s"]
    best_plain = min(v for k, v in rows.items() if k.startswith("plain"))
    table = Table(title=f"molecules, 7 clients, one round, median of {repeats}")
    table.add_column("what")
    table.add_column("s", justify="right")
    table.add_column("plain / this", justify="right")
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.3f}", f"{best_plain / seconds:.2f}x")
    console.print(table)
    return best_plain / flower["wall_s"]


def measure_overhead(rounds: int, repeats: int) -> float:
    """Median share of overhead, NCI1, 50 clients, 2 nodes."""
    shares = []
    for _ in range(repeats):
        summary = flower_rounds(
            {
                "method": "gcfl+",
                "dataset": "NCI1",
                "num-clients": 50,
                "num-server-rounds": rounds,
            },
            num_nodes=2,
        )
        wall, overhead = float(summary["wall_s"]), float(summary["overhead_s"])  # type: ignore[arg-type]
        medians = _medians(summary)
        shares.append(overhead / wall)
        console.print(
            f"NCI1, 50 clients on 2 nodes, {rounds} rounds: wall {wall:.1f} s, overhead"
            f" {overhead:.1f} s ({overhead / wall:.1%}); median round"
            f" {medians['wall_s']:.3f} s, some client computing"
            f" {medians['busy_s']:.3f} s, all clients together"
            f" {medians['client_compute_s']:.3f} s"
        )
    return statistics.median(shares)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m simulations.speed")
    parser.add_argument("what", choices=("round", "overhead", "teachers"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20, help="rounds per run")
    arguments = parser.parse_args(argv)
    if arguments.what == "round":
        console.print(f"ratio: {compare_round(arguments.repeats):.2f}x")
    elif arguments.what == "teachers":
        naive, ours = measure_teachers(arguments.repeats)
        console.print(
            f"FCLG, a local round of client 0 of PROTEINS: teachers per batch"
            f" {naive:.3f} s, once per epoch {ours:.3f} s, {naive / ours:.2f}x"
        )
    else:
        share = measure_overhead(arguments.rounds, arguments.repeats)
        console.print(f"median overhead: {share:.1%} of wall time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
