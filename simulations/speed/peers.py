"""A round of FedAvg beside a peer's published code.

The peer is the package ``fedgraph``, or the code of GCFL's authors in a folder.

Each run has processes of its own. The kinds of runs take turns, so that a busy machine
slows all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from datasets import cache_root, find_dataset, load_partition
from datasets.tu_raw import find_raw
from fedgraph_flwr.errors import ConfigError, RunFailedError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.rules import Value

from .arguments import Parts, add_repeats
from .peer_run import VERSION, Run, authors_config, peer_config, run_peer
from .rounds import timed_rounds
from .timing import console, in_own_process, print_table

# The work that both do: FedAvg as in the paper of GCFL, from which both descend.
WORK: dict[str, Value] = {
    "method": "fedavg",
    "partition": "chunks",
    "features": "labels",
    "held-out": 0.2,
    "local-epochs": 1,
    "batch-size": 128,
    "optimizer": "adam",
    "learning-rate": 0.001,
    "weight-decay": 0.0005,
    "persist-optimizer": True,
    "hidden-dim": 64,
    "num-layers": 3,
    "dropout": 0.5,
    "patience": 0,
    "seed": 10,
    "split-seed": 123,
    "device": "cpu",
}


def add_peers(parts: Parts) -> None:
    """Declare ``peers`` and its arguments."""
    part = parts.add_parser("peers", help="a round of FedAvg beside a peer's code")
    part.set_defaults(measure=measure_peers)
    part.add_argument(
        "--peer-python", required=True, metavar="FILE",
        help="Python of an environment that has the package fedgraph",
    )  # fmt: skip
    part.add_argument(
        "--gcfl-code", type=Path, metavar="DIR",
        help="a clone of the code of GCFL's authors, to be the peer in its place",
    )  # fmt: skip
    part.add_argument(
        "--dataset", default="PROTEINS",
        help="of the TU collection, or a group of the authors, as molecules",
    )  # fmt: skip
    part.add_argument(
        "--clients", type=int, default=10, help="a group has one per member"
    )
    part.add_argument("--rounds", type=int, default=30, help="per run")
    add_repeats(part, 3)


def measure_peers(arguments: argparse.Namespace) -> int:
    """Print seconds of a round and of the start, of the peer's code and of ours."""
    members = find_dataset(arguments.dataset).members
    config: dict[str, Value] = {
        **WORK,
        "dataset": arguments.dataset,
        "num-clients": arguments.clients,
        "num-server-rounds": arguments.rounds,
    }
    if len(members) > 1:
        config |= {"partition": "datasets", "num-clients": len(members)}
    with tempfile.TemporaryDirectory() as scratch:
        found = _runs(config, members, arguments, Path(scratch))
    print_table(
        f"{arguments.dataset}, fedavg, {config['num-clients']} clients,"
        f" {arguments.rounds} rounds, median of {arguments.repeats} runs",
        [_row(kind, runs) for kind, runs in found.items()],
    )
    return 0


def _runs(
    config: dict[str, Value],
    members: Sequence[str],
    arguments: argparse.Namespace,
    scratch: Path,
) -> dict[str, list[Run]]:
    cores = len(os.sched_getaffinity(0))
    if not members:
        raise ConfigError(f"--dataset {arguments.dataset} is not of the TU collection")
    # Peers know tu:NAME as NAME.
    work = {**config, "dataset": members[0]} if len(members) == 1 else config
    if arguments.gcfl_code:
        peer = "the authors' GCFL, one process"
        given = authors_config(work, arguments.gcfl_code, scratch)
    elif len(members) > 1:
        raise ConfigError(
            f"--dataset {arguments.dataset} is a group, which --gcfl-code alone can"
            " compare; name one data set"
        )
    else:
        peer, given = f"fedgraph {VERSION}", peer_config(work, cores, scratch)
    for name in members:
        place_raw(name, scratch / "TUDataset" / name / "raw")
    kinds: dict[str, Callable[[], Run]] = {
        peer: lambda: run_peer(arguments.peer_python, given),
        "ours, one process": lambda: run_ours(config, 0),
        f"ours, Flower on {cores} nodes": lambda: run_ours(config, cores),
    }
    found: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for _ in range(arguments.repeats):
        for kind, action in kinds.items():
            run = action()
            found[kind].append(run)
            load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
            console.print(f"{kind}: {run.round:.3f} s per round, then a load of {load}")
            check_same_graphs([runs[0] for runs in found.values() if runs])
    return found


def place_raw(name: str, target: Path) -> None:
    """Put the files of a data set that we read where PyTorch Geometric looks for them.

    Raises
    ------
    DataError
        As :func:`~datasets.tu_raw.find_raw`.
    """
    target.mkdir(parents=True)
    files, _ = find_raw(name, "", cache_root("")).place(target)
    for file in files.values():
        if file.parent != target:  # those of an archive are there
            shutil.copy(file, target)


def check_same_graphs(runs: list[Run]) -> None:
    """Refuse to compare runs whose clients have other graphs.

    Raises
    ------
    RunFailedError
        Numbers of graphs differ.
    """
    if any(run.graphs != runs[0].graphs for run in runs):
        shown = " and ".join(str(run.graphs) for run in runs)
        raise RunFailedError(
            f"clients have other (graphs, test graphs), so there is nothing to compare:"
            f" {shown}"
        )


def run_ours(config: dict[str, Value], num_nodes: int) -> Run:
    """Run through Flower and Ray on some nodes; in one new process if 0."""
    begin = time.monotonic()
    summary = (
        timed_rounds(config, num_nodes)
        if num_nodes
        else in_own_process(timed_rounds, config)
    )
    wall = time.monotonic() - begin
    in_rounds = summary["times"][1 : int(config["num-server-rounds"])]
    settings = resolve({**defaults(), **config}).settings
    held = [load_partition(settings, c) for c in range(settings.num_clients)]
    graphs = [(len(p.graphs), len(p.test)) for p in held]
    seconds = [row.wall_s for row in in_rounds]
    return Run(seconds, wall, float(summary["final"]["mean"]), graphs)


def _row(kind: str, runs: list[Run]) -> dict[str, str]:
    seconds = [run.round for run in runs]
    starts = [run.start for run in runs]
    return {
        "what": kind,
        "s per round": f"{statistics.median(seconds):.3f}",
        "least to most": f"{min(seconds):.3f} to {max(seconds):.3f}",
        "start s": f"{statistics.median(starts):.0f}",
        "starts": f"{min(starts):.0f} to {max(starts):.0f}",
        "accuracy": f"{statistics.median(run.accuracy for run in runs):.3f}",
    }
