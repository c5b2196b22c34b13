"""What a run will need, before it starts: ``python -m simulations.run NAME --plan``.

A dry run measures one round in a process of its own; the rest is arithmetic. The time
is an estimate: the first round is dearer than later ones. Nothing is kept.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.config import Value
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.dry_run import REPORT

from .inline import run_inline
from .speed.timing import in_own_process, print_table, resident_bytes

_MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One round of a run, in one process.

    Parameters
    ----------
    seconds : float
        Of the round.
    compute : float
        Of it, seconds that clients computed, one after another.
    megabytes : float
        The most memory that the process held; 1 MB is a million bytes.
    moved : float
        Megabytes that the round moved, in both directions.
    """

    seconds: float
    compute: float
    megabytes: float
    moved: float


def probe(overrides: Mapping[str, Value]) -> Probe:
    """Make a dry run of one round in a process of its own.

    Raises
    ------
    FedGraphError
        As :func:`~simulations.inline.run_inline`.
    """
    return in_own_process(_probe, dict(overrides))


def _probe(overrides: dict[str, Value]) -> Probe:
    with tempfile.TemporaryDirectory() as folder:
        places = {f"{k}-dir": str(Path(folder) / k) for k in ("results", "state")}
        path = run_inline({**overrides, **places, "dry-run": True})
        found = json.loads((path / REPORT).read_text())
    return Probe(
        seconds=found["seconds"],
        compute=sum(c["seconds"] or 0.0 for c in found["clients"].values()),
        megabytes=resident_bytes(at_most=True) / 1e6,
        moved=found["bytes"] / 1e6,
    )


def num_actors(num_nodes: int, *, gpus: float, cores: int, devices: int) -> int:
    """Return how many processes train at a time: one per node, if there is room.

    Parameters
    ----------
    num_nodes : int
        Simulated nodes.
    gpus : float
        Share of a GPU for each actor; 0 needs none.
    cores, devices : int
        CPU cores and GPUs of this machine.
    """
    room = min(num_nodes, cores)
    if gpus > 0:
        room = min(room, int(devices / gpus + 1e-9))
    return room


def print_plan(
    overrides: Mapping[str, Value], *, actors: int, num_runs: int, side_by_side: int
) -> None:
    """Measure one round, and print what all runs will take.

    Parameters
    ----------
    overrides : mapping
        Run-config keys of one of the runs, which differ in their seeds.
    actors : int
        See :func:`num_actors`.
    num_runs, side_by_side : int
        Number of runs, and how many of them at a time.

    Raises
    ------
    FedGraphError
        As :func:`probe`.
    """
    settings = resolve({**defaults(), **overrides}).settings
    found, rounds = probe(overrides), settings.num_server_rounds
    at_best = found.seconds - found.compute * (1 - 1 / max(actors, 1))
    waves = -(-num_runs // side_by_side)
    processes = actors * side_by_side
    rows = {
        "clients": str(settings.num_clients),
        "processes that train at a time": f"{processes} on {os.cpu_count()} cores",
        "one round in one process (measured)": f"{found.seconds:.2f} s",
        "a run, about": (
            f"{_time(at_best * rounds)} to {_time(found.seconds * rounds)}"
            f" ({rounds} rounds)"
        ),
        f"{num_runs} run(s), about": (
            f"{_time(at_best * rounds * waves)} to"
            f" {_time(found.seconds * rounds * waves)}"
        ),
        "memory of a process, at most": f"{found.megabytes:.0f} MB",
        "memory in all, at most": f"{found.megabytes * processes / 1e3:.1f} GB",
        "moved in a run": f"{found.moved * rounds:.1f} MB",
    }
    title = f"plan: {settings.method} on {settings.dataset}; nothing was kept"
    print_table(title, [{"what": k, "how much": v} for k, v in rows.items()])


def _time(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 2 * _MINUTE:
        return f"{minutes} min"
    return f"{minutes // _MINUTE} h {minutes % _MINUTE} min"
