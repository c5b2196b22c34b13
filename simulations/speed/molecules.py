"""Time per molecule of masked multi-task training, beside plain PyG, on one core.

``ours`` is what a client of SpreadGNN runs, penalty included: half of the tasks are its
own, a neighbour has the others. ``PyG`` has the same readout and loss, no penalty.

Times are of the process, so that other processes count less. The last columns are of
ours under ``torch.profiler``: shares of its time inside operators, elsewhere
in autograd and the optimiser's step, and in Python; and operators per batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from clients.models.sage_gat import ENCODERS
from clients.peers.letters import Letter
from clients.peers.mailbox import Mailbox
from clients.peers.neighbourhood import Neighbourhood
from clients.spreadgnn import PeerRound, SpreadGNNClient
from clients.store import ClientStore
from datasets import load_partition
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.methods.spreadgnn import NEIGHBOURS
from fedgraph_flwr.peers.mixing import Peer
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.rules import Value
from fedgraph_flwr.tasks import MultiTaskSettings

from .arguments import Parts, add_repeats
from .plain import PlainMultiTask, PlainPyG, masked
from .timing import median_seconds, print_table

CPU = torch.device("cpu")
HIDDEN, DROPOUT = 64, 0.3


def our_epoch(
    resolved: Resolved, partition: GraphPartition, folder: Path
) -> Callable[[], None]:
    """One epoch as a client of SpreadGNN trains it, from round 2 on."""
    client = _client(resolved, partition, folder)
    around = Neighbourhood(partition.client_id, partition.owned_tasks)
    around.learn({1: _neighbour(partition)})
    mailbox = Mailbox(
        "speed", 0, folder, is_sealed=False, notes={NEIGHBOURS: "{}"}, stored={}
    )
    client.round = PeerRound(  # no penalty in round 1
        number=2, mailbox=mailbox, around=around, silent={}
    )
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
        if event.key.startswith(("aten::", "mkldnn::")):
            inside += event.self_cpu_time_total / 1e6
            count += event.count
        elif not event.key.startswith("Optimizer."):  # a frame of Python
            beside += event.self_cpu_time_total / 1e6
    return inside / whole, beside / whole, count


def add_molecules(parts: Parts) -> None:
    """Declare ``molecules`` and its arguments."""
    part = parts.add_parser("molecules", help="multi-task training, per molecule")
    part.set_defaults(measure=measure_molecules)
    part.add_argument("--datasets", nargs="+", default=["SIDER", "QM8"])
    part.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    part.add_argument("--graphs", type=int, default=300, help="to train on")
    add_repeats(part, 3)


def measure_molecules(arguments: argparse.Namespace) -> int:
    """Print a table for each data set."""
    torch.set_num_threads(1)
    for dataset in arguments.datasets:
        config: dict[str, Value] = {
            **defaults(),
            "method": "spreadgnn",
            "dataset": dataset,
            "num-clients": 1,
        }
        whole = load_partition(resolve(config).settings, 0)
        small = replace(
            whole,
            train=whole.train[: arguments.graphs],
            task_ids=tuple(range(0, len(whole.tasks), 2)),
        )
        atoms = np.diff(small.graphs.node_ptr)[small.train].mean()
        given = [
            {"multitask.encoder": encoder, "batch-size": size}
            for encoder in ENCODERS
            for size in arguments.batches
        ]
        print_table(
            f"{dataset}: {len(small.train)} molecules of {atoms:.0f} atoms on average,"
            f" microseconds per molecule, median of {arguments.repeats} epochs",
            [measure(resolve(config | g), small, arguments.repeats) for g in given],
        )
    return 0


def measure(
    resolved: Resolved, small: GraphPartition, repeats: int
) -> dict[str, object]:
    """Return a row of the table of one data set."""
    assert isinstance(resolved.task, MultiTaskSettings)
    encoder, batch_size = resolved.task.encoder, resolved.settings.batch_size
    count, functional = len(small.train), nn.functional
    is_binary = resolved.method.task.larger_is_better
    plain = PlainPyG(
        PlainMultiTask(
            encoder, small.graphs.num_features, len(small.tasks),
            hidden=HIDDEN, dropout=DROPOUT,
        ),
        small,
        batch_size,
        loss=masked(
            functional.binary_cross_entropy_with_logits
            if is_binary
            else functional.l1_loss
        ),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ours = our_epoch(resolved, small, Path(folder))
        times = median_seconds(
            {"ours": ours, "PyG": plain.epoch},
            repeats,
            clock=time.process_time,
        )
        inside, beside, num_ops = shares(ours)
    others = {"operators": inside, "autograd": beside, "Python": 1 - inside - beside}
    return {
        "encoder": encoder,
        "batch": batch_size,
        **{name: f"{1e6 * t / count:.0f}" for name, t in times.items()},
        "ratio": f"{times['PyG'] / times['ours']:.1f}x",
        **{name: f"{share:.0%}" for name, share in others.items()},
        "ops": f"{num_ops / -(-count // batch_size):.0f}",
    }
