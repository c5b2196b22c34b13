"""What a run would take: actors, memory and time, from two short probes.

A few clients train two rounds in a process of their own, with folders that go
afterwards; then more clients do so, which shows what one more costs. All else is
multiplication, so every figure is an estimate.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedgraph_flwr.core.command import handled_signals
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.process import in_own_process, memory_share, resident_bytes
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.words import duration
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import read_times

from .inline import run_inline

_ROUNDS = 2  # the first one imports and fills caches; the second shows the pace
_FEW = 3
_MORE = 48  # clients that the second probe adds at most
_MORE_S = 10.0  # and about how long these may train


def machine() -> tuple[float, float]:
    """Cores and GPUs of this machine.

    Raises
    ------
    ConfigError
        Ray is told to start actors elsewhere.
    """
    if (address := os.environ.get("RAY_ADDRESS", "")) not in ("", "local"):
        raise ConfigError(
            f"--plan knows this machine alone, and RAY_ADDRESS={address!r} names a"
            " cluster; unset it"
        )
    import torch

    return os.cpu_count() or 1, torch.cuda.device_count()


def num_actors(there: tuple[float, float], *, nodes: int, gpus: float) -> int:
    """Count processes that train at the same time, as Flower lets Ray start them.

    An actor has one core; with ``gpus`` > 0 it also has that share of a GPU. ``there``
    has cores and GPUs.

    Raises
    ------
    ConfigError
        There is no such share of a GPU.
    """
    cpus, devices = there
    allowed = min(nodes, int(min(cpus, devices / gpus) if gpus > 0 else cpus))
    if not allowed:
        raise ConfigError(
            f"--gpus {gpus:g} leaves room for no actor: this machine has {cpus:g}"
            f" core(s) and {devices:g} GPU(s); give a smaller share, or 0"
        )
    return allowed


class Probe(NamedTuple):
    """What a few clients took; memory is that of the process, server included."""

    clients: tuple[int, ...]
    seconds: float  # computing time of one client in a round, mean
    peak_bytes: int
    kept_bytes: int  # at the end, with all that is kept of the clients
    samples: str = ""  # of a client that trains on these, in words


@handled_signals()
def probe(overrides: Mapping[str, Value], at_most: int) -> Probe:
    """Let a few clients train two rounds, in this process.

    Parameters
    ----------
    overrides : mapping
        Run-config keys that differ from ``pyproject.toml``.
    at_most : int
        Clients, evenly spread from the first to the last; all of them if clients talk
        to each other.
    """
    resolved = resolve({**defaults(), **overrides})
    count = resolved.settings.num_clients
    if resolved.method.strategy.HAS_NEIGHBOURS:
        at_most = count
    steps = max(1, min(at_most, count) - 1)
    clients = tuple(sorted({i * (count - 1) // steps for i in range(steps + 1)}))
    with tempfile.TemporaryDirectory(prefix="fedgraph-plan-") as scratch:
        config = {
            **overrides,
            "num-clients": count,
            "num-server-rounds": _ROUNDS,
            "client-fraction": 1.0,
            "tracker": "none",
            "resume": "",
            "results-dir": f"{scratch}/results",
            "state-dir": f"{scratch}/state",
        }
        nodes = [{"partition-id": c, "num-partitions": count} for c in clients]
        logging.getLogger("flwr").setLevel(logging.ERROR)  # of this process alone
        folder = run_inline(config, node_configs=nodes, only=clients, keep=True)
        times = {row.round: row for row in read_times(folder)}
        found = Probe(
            clients=clients,
            seconds=times[_ROUNDS].client_compute_s / len(clients),
            peak_bytes=resident_bytes(at_most=True),
            kept_bytes=resident_bytes(),
        )
        if not resolved.settings.fanout:
            return found
        return found._replace(samples=_samples(config, clients[0], Path(scratch)))


def _samples(config: Mapping[str, Value], client_id: int, scratch: Path) -> str:
    """Say how many batches make an epoch of a client, and how large the first is."""
    import torch

    from clients.job import Round
    from clients.store import ClientStore
    from fedgraph_flwr.node.serve import load_data

    run = resolve({**defaults(), **config})
    store = ClientStore(scratch, "plan", client_id=client_id)
    device = torch.device("cpu")
    data = load_data(run, client_id, device, None)  # kept, if the run was on the CPU
    site = run.site(store, is_secret=False)
    client = run.method.client(run.job(data, store, site, device))
    client.round = Round(number=1)
    train, size = client.trained_on(), run.settings.batch_size
    batch = client.batch(train[:size])
    return (
        f"{math.ceil(len(train) / size)} batches make an epoch of client {client_id};"
        f" one of {batch.num_graphs} items reads {len(batch.nodes):,} nodes and"
        f" {len(batch.arriving[0]):,} edges of {data.partition.graphs.num_nodes:,} and"
        f" {data.partition.graphs.edge_index.shape[1]:,}"
    )


def estimate(
    few: Probe,
    more: Probe,
    *,
    num_clients: int,
    clients_per_round: int,
    nodes: int,
    actors: int,
    processes: int,
) -> tuple[float, float]:
    """Bytes of all processes together and seconds of a round, from two probes.

    Parameters
    ----------
    few, more : Probe
        The second of more clients than the first, or both of all.
    processes : int
        Actors, and the server if it has a process of its own.

    Notes
    -----
    A node answers for its clients one after the other, and an actor serves one node at
    a time. By how much more memory the second probe held a client costs. An actor may
    meet every client, and keeps them up to `memory_share`; what a client costs beyond
    what is kept of it are its messages, which the server holds for a round.
    """
    probed = len(few.clients)
    added = max(1, len(more.clients) - probed)
    kept = max(0, more.kept_bytes - few.kept_bytes) / added
    messages = max(0.0, (more.peak_bytes - few.peak_bytes) / added - kept)
    memory = processes * few.peak_bytes + messages * max(0, clients_per_round - probed)
    memory += actors * min(kept * (num_clients - probed), memory_share())
    per_node = math.ceil(clients_per_round / nodes)
    return memory, math.ceil(nodes / actors) * per_node * more.seconds


def describe_plan(
    overrides: Mapping[str, Value], *, inline: bool, nodes: int, gpus: float
) -> str:
    """Probe a run in processes of their own, and word what it would take."""
    settings = resolve({**defaults(), **overrides}).settings
    actors = processes = 1
    if not inline:
        actors = num_actors(machine(), nodes=nodes, gpus=gpus)
        processes = actors + 1
    few = more = in_own_process(probe, dict(overrides), _FEW)
    if len(few.clients) < settings.num_clients:
        fit = int(_MORE_S / (_ROUNDS * few.seconds)) if few.seconds else _MORE
        at_most = _FEW + min(max(fit, _FEW), _MORE)
        more = in_own_process(probe, dict(overrides), at_most)
    rounds = settings.num_server_rounds
    nodes = 1 if inline else min(nodes, settings.num_clients)
    memory, seconds = estimate(
        few,
        more,
        num_clients=settings.num_clients,
        clients_per_round=settings.clients_per_round,
        nodes=nodes,
        actors=actors,
        processes=processes,
    )
    return "\n".join(
        [
            f"plan of {settings.method} on {settings.dataset}:"
            f" {settings.num_clients} clients, {rounds} rounds,"
            f" {'inline' if inline else 'simulated by Flower'}",
            f"  actors  {actors}, for {nodes} nodes",
            f"  memory  about {memory / 1e9:.1f} GB, of which each process"
            f" {few.peak_bytes / 1e9:.1f} GB before it has loaded all clients",
            # All rounds, and an evaluation as long as one at most.
            f"  time    about {duration(seconds * (rounds + 1))}, or"
            f" {seconds:.2f} s per round",
            *[f"  samples {more.samples}"] * bool(more.samples),
            f"Estimates from round {_ROUNDS} of {len(more.clients)} clients,"
            f" {more.seconds:.3f} s each, on this machine as busy as it is now."
            " Start-up, the server's work and Flower's own processes and messages come"
            " on top.",
        ]
    )
