"""What a run would take: actors, memory and time, from a short probe.

A few clients train two rounds in a process of their own, with folders that go
afterwards. All else is multiplication, so every figure is an estimate.
"""

from __future__ import annotations

import csv
import logging
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.kept import memory_share, num_bytes
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.wording import name_clients
from strategies.relay import Relay

from .inline import run_inline
from .speed.timing import in_own_process, resident_bytes

_ROUNDS = 2  # the first one imports and fills caches; the second shows the pace


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a few clients took.

    Parameters
    ----------
    clients : tuple of int
        Who trained: the first client, the middle one, the last one; all of them if
        clients talk to each other.
    seconds : float
        Computing time of one client in a round, mean.
    peak_bytes : int
        Most memory that the process held, server included.
    data_bytes : float
        Data that a process keeps of one client, mean.
    moved_bytes : float
        What one client receives and sends in a round, mean.
    """

    clients: tuple[int, ...]
    seconds: float
    peak_bytes: int
    data_bytes: float
    moved_bytes: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Estimates for one run.

    Parameters
    ----------
    actors : int
        Processes that train at the same time.
    nodes : int
    memory_bytes : float
        Of all processes together.
    round_seconds : float
    rounds : int
    """

    actors: int
    nodes: int
    memory_bytes: float
    round_seconds: float
    rounds: int

    @property
    def seconds(self) -> float:
        """All rounds, and an evaluation as long as one at most."""
        return self.round_seconds * (self.rounds + 1)


def probe(overrides: Mapping[str, Value]) -> Probe:
    """Let a few clients train two rounds, in this process.

    Raises
    ------
    FedGraphError
        As a run does.
    """
    from datasets import load_partition  # what a process keeps of a client

    resolved = resolve({**defaults(), **overrides})
    settings, count = resolved.settings, resolved.settings.num_clients
    clients = tuple(sorted({0, count // 2, count - 1}))
    if issubclass(resolved.method.strategy, Relay):  # who trains with neighbours
        clients = tuple(range(count))
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
        folder = run_inline(config, node_configs=nodes, only=clients)
        with (folder / "times.csv").open(newline="") as file:
            times = {int(r["round"]): r for r in csv.DictReader(file)}
        with (folder / "ledger.csv").open(newline="") as file:
            moved = [
                int(r["bytes"])
                for r in csv.DictReader(file)
                if int(r["round"]) == _ROUNDS
            ]
    sizes = [num_bytes(load_partition(settings, c)) for c in clients]
    return Probe(
        clients=clients,
        seconds=float(times[_ROUNDS]["client_compute_s"]) / len(clients),
        peak_bytes=resident_bytes(at_most=True),
        data_bytes=sum(sizes) / len(clients),
        moved_bytes=sum(moved) / len(clients),
    )


def estimate(
    found: Probe,
    *,
    num_clients: int,
    clients_per_round: int,
    rounds: int,
    nodes: int,
    actors: int,
) -> Plan:
    """Multiply what a probe found; see `Plan`.

    Notes
    -----
    A node answers for its clients one after the other, and an actor serves one node at
    a time. The server holds what all clients receive and send in a round. An actor may
    meet every client, and keeps their data up to `memory_share`.
    """
    per_node = math.ceil(clients_per_round / nodes)
    data = min(found.data_bytes * num_clients, memory_share())
    server = found.moved_bytes * clients_per_round
    return Plan(
        actors=actors,
        nodes=nodes,
        memory_bytes=actors * (found.peak_bytes + data) + server,
        round_seconds=math.ceil(nodes / actors) * per_node * found.seconds,
        rounds=rounds,
    )


def num_actors(*, engine: str, nodes: int, gpus: float) -> int:
    """Count processes that train at the same time, as Ray starts them on a machine.

    An actor has one core; with ``gpus`` > 0 it also has that share of a GPU.

    Raises
    ------
    ConfigError
        There is no such share of a GPU.
    """
    if engine == "inline":
        return 1
    allowed = min(nodes, os.cpu_count() or 1)
    if gpus > 0:
        import torch

        devices = torch.cuda.device_count()
        allowed = min(allowed, int(devices / gpus + 1e-9))
        if not allowed:
            raise ConfigError(
                f"--gpus {gpus:g} leaves room for no actor: this machine has {devices}"
                " GPU(s); give a smaller share, or 0"
            )
    return allowed


def describe_plan(
    overrides: Mapping[str, Value], *, engine: str, nodes: int, gpus: float
) -> str:
    """Probe a run in a process of its own, and word what it would take.

    Raises
    ------
    FedGraphError
        As a run does.
    """
    settings = resolve({**defaults(), **overrides}).settings
    found = in_own_process(probe, dict(overrides))
    plan = estimate(
        found,
        num_clients=settings.num_clients,
        clients_per_round=settings.clients_per_round,
        rounds=settings.num_server_rounds,
        nodes=1 if engine == "inline" else min(nodes, settings.num_clients),
        actors=num_actors(engine=engine, nodes=nodes, gpus=gpus),
    )
    return "\n".join(
        [
            f"plan of {settings.method} on {settings.dataset}:"
            f" {settings.num_clients} clients, {plan.rounds} rounds, engine {engine}",
            f"  actors  {plan.actors}, for {plan.nodes} nodes",
            f"  memory  about {plan.memory_bytes / 1e9:.1f} GB, of which each actor"
            f" {found.peak_bytes / 1e9:.1f} GB before it has loaded all clients",
            f"  time    about {duration(plan.seconds)}, or {plan.round_seconds:.2f} s"
            " per round",
            f"Estimates from round {_ROUNDS} of {name_clients(found.clients)},"
            f" {found.seconds:.3f} s"
            " each, on this machine as busy as it is now. Start-up, the server's work"
            " and Flower's messages come on top.",
        ]
    )


def duration(seconds: float) -> str:
    """Write seconds as people say them: ``"45 s"``, ``"12 min"``, ``"3.4 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
