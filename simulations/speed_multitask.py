"""Time per molecule while training: ``python -m simulations.speed_multitask``.

One epoch of masked multi-task training on one core, by

``ours``: what a client of SpreadGNN runs, penalty included: half of the tasks are its
own, a neighbour has the others;
``PyG``: the plain loop of PyTorch Geometric: ``DataLoader``, ``SAGEConv`` or
``GATConv``, ``global_mean_pool``, the same readout and loss without penalty, Adam.

Times are of the process, so that other processes count less. The last columns are of
ours under ``torch.profiler``: shares of its time inside operators (``aten``), elsewhere
in autograd and the optimiser's step, and in Python; and operators per batch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, SAGEConv, global_mean_pool

from clients.models.sage_gat import ENCODERS
from clients.peers.letters import Letter
from clients.peers.neighbourhood import Neighbourhood
from clients.spreadgnn import SpreadGNNClient
from clients.store import ClientStore
from datasets import load_partition
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.peers.mixing import Peer
from fedgraph_flwr.resolve import Resolved, defaults, resolve

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
    resolved: Resolved, partition: GraphPartition, folder: Path
) -> Callable[[], None]:
    """One epoch as a client of SpreadGNN trains it, from round 2 on."""
    client = _client(resolved, partition, folder)
    client.server_round = 2  # no penalty in round 1
    client.around = Neighbourhood(partition.client_id, partition.owned_tasks)
    client.around.learn({1: _neighbour(partition)})
    optimizer = torch.optim.Adam(
        client.model.parameters(), lr=1e-3, amsgrad=True, fused=True
    )
    order, noise = (torch.Generator().manual_seed(0) for _ in range(2))

    def epoch() -> None:
        client.model.train()
        client.run_epochs(optimizer, 1, order=order, noise=noise)

    return epoch


def _client(
    resolved: Resolved, partition: GraphPartition, folder: Path
) -> SpreadGNNClient:
    store = ClientStore(folder, "speed", client_id=partition.client_id)
    site = resolved.site(store, is_secret=False)
    data = resolved.method.client.DATA.collate(partition, CPU)
    return SpreadGNNClient(resolved.job(data, store, site, CPU))


def _neighbour(partition: GraphPartition) -> Letter:
    """Make what a neighbour sends that has the tasks which the client has not."""
    others = np.setdiff1d(np.arange(len(partition.tasks)), partition.owned_tasks)
    rng = np.random.default_rng(0)
    return Letter(
        tensors={},
        task_ids=others,
        head_rows=rng.normal(size=(len(others), HIDDEN)).astype(np.float32),
        omega_task_ids=others,
        omega=(np.eye(len(others)) / max(len(others), 1)).astype(np.float32),
        peer=Peer(num_neighbours=1, num_examples=1),
    )


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


def shares(epoch: Callable[[], None]) -> tuple[float, float, int]:
    """Shares of time in operators and in autograd and optimiser; number of operators.

    The rest of the time is Python, whatever C++ that is called from it without an
    event included.
    """
    with torch.profiler.profile() as profile:
        begin = time.perf_counter()  # the profiler's clock
        epoch()
        whole = time.perf_counter() - begin
    inside, beside, count = 0.0, 0.0, 0
    for event in profile.key_averages():
        if event.key.startswith("aten::"):
            inside += event.self_cpu_time_total / 1e6
            count += event.count
        elif not event.key.startswith("Optimizer."):  # a frame of Python
            beside += event.self_cpu_time_total / 1e6
    return inside / whole, beside / whole, count


def compare(dataset: str, sizes: list[int], num_graphs: int, repeats: int) -> None:
    """Print the table of one data set."""
    torch.set_num_threads(1)
    config = {**defaults(), "method": "spreadgnn", "dataset": dataset, "num-clients": 1}
    whole = load_partition(resolve(config).settings, 0)
    small = replace(
        whole,
        train=whole.train[:num_graphs],
        task_ids=tuple(range(0, len(whole.tasks), 2)),
    )
    atoms = np.diff(small.graphs.node_ptr)[small.train].mean()
    count = len(small.train)
    table = Table(
        title=f"{dataset}: {count} molecules of {atoms:.0f} atoms on average,"
        f" microseconds per molecule, best of {repeats} epochs"
    )
    columns = "encoder batch ours PyG ratio operators autograd Python ops"
    for column in columns.split():
        table.add_column(column, justify="right")
    for encoder in ENCODERS:
        for size in sizes:
            given = {"spreadgnn.encoder": encoder, "batch-size": size}
            resolved = resolve({**config, **given})
            binary = resolved.method.task.larger_is_better
            with tempfile.TemporaryDirectory() as folder:
                ours = our_epoch(resolved, small, Path(folder))
                plain = plain_epoch(encoder, small, size, binary=binary)
                times = seconds([ours, plain], repeats)
                inside, beside, num_ops = shares(ours)
            table.add_row(
                *(encoder, str(size)),
                *(f"{1e6 * t / count:.0f}" for t in times),
                f"{times[1] / times[0]:.1f}x",
                *(f"{s:.0%}" for s in (inside, beside, 1 - inside - beside)),
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
