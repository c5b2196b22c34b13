"""How a run grows with its clients: start, round, server, memory, files on disk."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fedgraph_flwr.results.reader import TIMES, read_times
from fedgraph_flwr.rules import Value

from ..run import add_settings
from ..scratch import finished_run
from .arguments import Parts
from .timing import console, in_own_process, print_table, resident_bytes

_LINES = ("ready s", "round s", "server ms", "peak MB", "checkpoint kB", "results kB")


def run(config: dict[str, Value], num_nodes: int = 0) -> dict[str, float]:
    """Run in this process, or through Flower on some nodes; say what it took.

    ``ready s``: until round 1 begins: imports, loading, roll call, Flower's start.
    ``rest s``: all else that is no round: summary, figures. ``server ms``: of a round
    in which no client computes, per client. ``CPU s`` and ``peak MB``: of server and
    clients together; not of Flower's processes.
    """
    begin, cpu = time.time(), time.process_time()
    with finished_run(config, num_nodes) as folder:
        wall, cpu = time.time() - begin, time.process_time() - cpu
        rows = read_times(folder)
        in_rounds = sum(row.wall_s for row in rows)
        last = (folder / TIMES).stat().st_mtime  # its last round has ended
        ready = last - in_rounds - begin
        training = [r for r in rows if 1 <= r.round <= int(config["num-server-rounds"])]
        walls = [r.wall_s for r in training]
        beside = [r.wall_s - r.busy_s for r in training]
        per_client = len(training) * int(config["num-clients"])
        newest = max((folder / "checkpoint").iterdir())
        here = {"CPU s": cpu, "peak MB": resident_bytes(at_most=True) / 1e6}
        return {
            "clients": float(config["num-clients"]),
            "ready s": ready,
            "rest s": wall - in_rounds - ready,
            "round s": min(walls),
            "server ms": 1000 * sum(beside) / per_client,
            **({} if num_nodes else here),
            "checkpoint kB": newest.stat().st_size / 1e3,
            "results kB": sum(p.stat().st_size for p in files_in(folder)) / 1e3,
        }


def files_in(folder: Path) -> list[Path]:
    """List the files in a folder and those below it."""
    return [p for p in folder.rglob("*") if p.is_file()]


def add_scale(parts: Parts) -> None:
    """Declare ``scale`` and its arguments."""
    part = parts.add_parser("scale", help="how a run grows with its clients")
    part.set_defaults(measure=measure_scale)
    part.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    part.add_argument("--method", default="fedavg")
    part.add_argument("--dataset", default="planted")
    part.add_argument("--nodes", type=int, default=0, help="of Flower; 0: no Flower")
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--figure", type=Path, help="file to draw to")
    add_settings(part)


def measure_scale(arguments: argparse.Namespace) -> int:
    """Print a row for each number of clients; draw them if a file is named."""
    found = []
    for count in arguments.clients:
        config: dict[str, Value] = {
            "method": arguments.method,
            "dataset": arguments.dataset,
            "num-clients": count,
            "num-server-rounds": arguments.rounds,
            "device": "cpu",
            **dict(arguments.set),
        }
        found.append(in_own_process(run, config, arguments.nodes))
        told = {k: f"{v:.4g}" for k, v in found[-1].items()}
        console.print(", ".join(f"{k} {v}" for k, v in told.items()))
    how = f"Flower, {arguments.nodes} nodes" if arguments.nodes else "inline"
    title = (
        f"{arguments.method} on {arguments.dataset}, {arguments.rounds} rounds, {how}"
    )
    print_table(title, [{k: f"{v:.4g}" for k, v in row.items()} for row in found])
    if arguments.figure:
        draw(title, found, arguments.figure)
    return 0


def draw(title: str, found: list[dict[str, float]], path: Path) -> None:
    """Draw each quantity over clients, both on logarithmic scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained", dpi=150)
    axes: Any = figure.add_subplot()
    counts = [row["clients"] for row in found]
    for name in _LINES:
        if name not in found[0]:
            continue
        axes.plot(counts, [row[name] for row in found], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="clients", title=title)
    axes.legend(fontsize="small")
    figure.savefig(path)
