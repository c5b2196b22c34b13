"""Time per molecule while training: ``python -m simulations.speed_multitask``.

One epoch of masked multi-task training on one core, by

``ours``: what clients run, ``clients.training.train_epochs``;
``PyG``: the plain loop of PyTorch Geometric: ``DataLoader``, ``SAGEConv`` or
``GATConv``, ``global_mean_pool``, the same readout, loss and Adam.

Times are of the process, so that other processes count little. The last columns are of
ours under ``torch.profiler``: the share of time inside operators, the rest being Python
and autograd, and the number of operators per batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, SAGEConv, global_mean_pool

from clients.batching import Batch, ClientData
from clients.models.sage_gat import ENCODERS, MultiTaskGNN
from clients.multitask import masked_bce, masked_l1
from clients.propagation import clean_structure
from clients.training import train_epochs
from datasets import find_dataset, load_partition
from fedgraph_flwr.config import RunSettings, build
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.registry import defaults

console = Console(highlight=False)
CPU = torch.device("cpu")
HIDDEN, DROPOUT = 64, 0.3


class PlainModel(nn.Module):
    """The model of SpreadGNN by PyG's layers."""

    def __init__(self, encoder: str, num_features: int, num_tasks: int) -> None:
        super().__init__()
        self.is_gat = encoder == "gat"
        if self.is_gat:
            self.first = GATConv(num_features, HIDDEN, heads=2, dropout=DROPOUT)
            self.second = GATConv(2 * HIDDEN, HIDDEN, dropout=DROPOUT)
        else:
            self.first = SAGEConv(num_features, HIDDEN, bias=False)
            self.second = SAGEConv(HIDDEN, HIDDEN, bias=False)
        self.readout_in = nn.Linear(num_features + HIDDEN, HIDDEN)
        self.readout_out = nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, num_tasks)

    def forward(self, data: Data) -> Tensor:
        """Logits, shape (num_graphs, num_tasks)."""
        x, edges = data.x, data.edge_index
        if self.is_gat:
            h = nn.functional.elu(self.first(_drop(x), edges))
            h = nn.functional.elu(self.second(_drop(h), edges))
        else:
            h = _drop(self.first(x, edges).relu())
            h = self.second(h, edges).relu()
        r = self.readout_in(torch.cat([x, h], 1)).relu()
        r = self.readout_out(r).relu()
        return self.head(global_mean_pool(r, data.batch))  # type: ignore[no-any-return]


def _drop(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, DROPOUT)


def plain_epoch(
    encoder: str, partition: GraphPartition, batch_size: int, *, binary: bool
) -> Callable[[], None]:
    """One epoch of the plain loop; graphs are PyG objects beforehand."""
    model = PlainModel(encoder, partition.graphs.num_features, len(partition.tasks))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        [_to_pyg(partition, g) for g in partition.train], batch_size, shuffle=True
    )
    entropy, error = nn.BCEWithLogitsLoss(reduction="none"), nn.L1Loss(reduction="none")

    def epoch() -> None:
        model.train()
        for data in loader:
            optimizer.zero_grad()
            mask = ~data.y.isnan()
            each = (entropy if binary else error)(model(data), data.y.nan_to_num())
            ((each * mask).sum() / mask.sum()).backward()
            optimizer.step()

    return epoch


def _to_pyg(partition: GraphPartition, position: int) -> Data:
    one = partition.graphs.take(np.array([position]))
    return Data(
        x=torch.from_numpy(one.x),
        edge_index=torch.from_numpy(one.edge_index.astype(np.int64)),
        y=torch.from_numpy(one.y),
    )


def our_epoch(
    encoder: str, partition: GraphPartition, batch_size: int, *, binary: bool
) -> Callable[[], None]:
    """One epoch as clients train it."""
    data = ClientData.collate(partition, CPU)
    generator = torch.Generator().manual_seed(0)
    model = MultiTaskGNN(
        encoder,
        partition.graphs.num_features,
        len(partition.tasks),
        generator=generator,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of = masked_bce if binary else masked_l1

    def loss(batch: Batch) -> Tensor:
        return loss_of(model(batch, clean_structure(batch), generator), batch.y)

    def epoch() -> None:
        model.train()
        train_epochs(
            loss,
            optimizer,
            data,
            num_epochs=1,
            batch_size=batch_size,
            generator=generator,
        )

    return epoch


def seconds(epochs: list[Callable[[], None]], repeats: int) -> list[float]:
    """Least seconds of each, which take turns, after one epoch to warm up."""
    found: list[list[float]] = [[] for _ in epochs]
    for repeat in range(repeats + 1):
        for times, epoch in zip(found, epochs, strict=True):
            begin = time.process_time()
            epoch()
            if repeat:
                times.append(time.process_time() - begin)
    return [min(times) for times in found]


def kernel_share(epoch: Callable[[], None]) -> tuple[float, int]:
    """Share of CPU time that ops themselves take, and number of ops."""
    with torch.profiler.profile() as profile:
        begin = time.perf_counter()  # the profiler's clock
        epoch()
        whole = time.perf_counter() - begin
    events = [e for e in profile.key_averages() if e.key.startswith("aten::")]
    inside = sum(e.self_cpu_time_total for e in events) / 1e6
    return inside / whole, sum(e.count for e in events)


def compare(dataset: str, sizes: list[int], num_graphs: int, repeats: int) -> None:
    """Print the table of one data set."""
    torch.set_num_threads(1)
    info = find_dataset(dataset)
    config = {**defaults(), "dataset": dataset, "num-clients": 1}
    settings = build(RunSettings, config, {**info.automatic, **info.fixed})
    partition = load_partition(settings, 0)
    small = GraphPartition(
        client_id=0,
        graphs=partition.graphs,
        graph_ids=partition.graph_ids,
        train=partition.train[:num_graphs],
        val=partition.val,
        test=partition.test,
        tasks=partition.tasks,
    )
    atoms = np.diff(small.graphs.node_ptr)[small.train].mean()
    count = len(small.train)
    table = Table(
        title=f"{dataset}: {count} molecules of {atoms:.0f} atoms on average,"
        f" microseconds per molecule, best of {repeats} epochs"
    )
    for column in ("encoder", "batch", "ours", "PyG", "ratio", "in kernels", "ops"):
        table.add_column(column, justify="right")
    for encoder in ENCODERS:
        for size in sizes:
            binary = info.kind == "binary"
            ours = our_epoch(encoder, small, size, binary=binary)
            plain = plain_epoch(encoder, small, size, binary=binary)
            times = seconds([ours, plain], repeats)
            share, num_ops = kernel_share(ours)
            table.add_row(
                *(encoder, str(size)),
                *(f"{1e6 * t / count:.0f}" for t in times),
                f"{times[1] / times[0]:.1f}x",
                f"{share:.0%}",
                f"{num_ops / -(-count // size):.0f}",
            )
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m simulations.speed_multitask")
    parser.add_argument("--datasets", nargs="+", default=["SIDER", "QM8"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--graphs", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(argv)
    for dataset in arguments.datasets:
        compare(dataset, arguments.sizes, arguments.graphs, arguments.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
