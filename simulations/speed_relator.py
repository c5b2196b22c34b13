"""What FedGKD costs beside FedAvg: ``python -m simulations.speed_relator [part]``.

``rounds``: seconds and bytes per round of both on the planted data, in one process, at
several numbers of clients; they take turns. Medians over rounds, the first two aside.

``relator``: seconds of the server alone, on random task features and models of the size
of Cora's (7 classes, 5 nodes each, 1433 features, 128 hidden): relatedness, kernel
and weights, and the mixing of the models.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from fedgraph_flwr.config import Value
from fedgraph_flwr.wire import NamedArrays
from strategies.fedgkd_relator import attention, relatedness, similarity
from strategies.personal import mix

from .inline import run_inline

console = Console(highlight=False)
CLIENTS, CLIENTS_ALONE = (5, 20, 50), (50, 500)
METHODS = ("fedavg", "fedgkd")
ROWS, FEATURES, HIDDEN, CLASSES = 35, 1433, 128, 7
_WARM_UP = 2  # rounds


def _config(method: str, num_clients: int, num_rounds: int) -> dict[str, Value]:
    return {
        "method": method,
        "dataset": "planted",
        "num-clients": num_clients,
        "num-server-rounds": num_rounds,
        "learning-rate": 0.01,
        "patience": 0,
    }


def measure_rounds(num_clients: int, num_rounds: int) -> dict[str, tuple[float, ...]]:
    """Map methods to (s per round, of which clients compute, kB up, kB down)."""
    found = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as scratch:
            own: dict[str, Value] = {
                f"{name}-dir": str(Path(scratch) / name)
                for name in ("results", "state", "cache")
            }
            folder = run_inline({**_config(method, num_clients, num_rounds), **own})
            found[method] = _read(folder, num_rounds)
    return found


def _read(folder: Path, num_rounds: int) -> tuple[float, ...]:
    with (folder / "times.csv").open(newline="") as file:
        times = [r for r in csv.DictReader(file) if _counts(r["round"], num_rounds)]
    sizes = {"up": 0, "down": 0}
    with (folder / "ledger.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if _counts(row["round"], num_rounds):
                sizes[row["direction"]] += int(row["bytes"])
    return (
        statistics.median(float(r["wall_s"]) for r in times),
        statistics.median(float(r["client_compute_s"]) for r in times),
        *(sizes[d] / len(times) / 1000 for d in ("up", "down")),
    )


def _counts(server_round: str, num_rounds: int) -> bool:
    return _WARM_UP < int(server_round) <= num_rounds


def measure_relator(num_clients: int, repeats: int) -> dict[str, float]:
    """Median seconds of the steps of the server."""
    rng = np.random.default_rng(0)
    shape = (ROWS, FEATURES + HIDDEN)
    features = [rng.standard_normal(shape, np.float32) for _ in range(num_clients)]
    shapes = [(HIDDEN, FEATURES), (HIDDEN, HIDDEN), (CLASSES, HIDDEN)]
    models: list[NamedArrays] = [
        {str(k): rng.standard_normal(s, np.float32) for k, s in enumerate(shapes)}
        for _ in range(num_clients)
    ]
    r = relatedness(features)
    tau = 5 / num_clients  # the largest that is not warned of
    q = attention(similarity(r, "exponential", tau=tau, kappa_start=0), 3.0)
    return {
        "relatedness": _seconds(lambda: relatedness(features), repeats),
        "kernel and weights": _seconds(
            lambda: attention(
                similarity(r, "exponential", tau=tau, kappa_start=0), 3.0
            ),
            repeats,
        ),
        "mixing": _seconds(lambda: mix(models, q), repeats),
    }


def _seconds(action: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def compare_rounds(num_rounds: int) -> None:
    """Print seconds and bytes per round."""
    table = Table(title=f"planted data, inline, medians of rounds 3 to {num_rounds}")
    columns = ("clients", "method", "s", "clients compute s", "kB up", "kB down")
    for column in columns:
        table.add_column(column, justify="right")
    for num_clients in CLIENTS:
        for method, values in measure_rounds(num_clients, num_rounds).items():
            seconds, compute, up, down = values
            cells = (f"{seconds:.3f}", f"{compute:.3f}", f"{up:.0f}", f"{down:.0f}")
            table.add_row(str(num_clients), method, *cells)
    console.print(table)


def compare_relator(repeats: int) -> None:
    """Print seconds of the server's steps, on one BLAS thread as in a run."""
    table = Table(title=f"server of FedGKD, sizes of Cora, medians of {repeats}, in s")
    table.add_column("clients", justify="right")
    for number, num_clients in enumerate(CLIENTS_ALONE):
        with threadpool_limits(limits=1, user_api="blas"):
            found = measure_relator(num_clients, repeats)
        if not number:
            for name in found:
                table.add_column(name, justify="right")
        table.add_row(str(num_clients), *(f"{s:.3f}" for s in found.values()))
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    """Run one part, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("rounds", "relator"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    if options.part != "relator":
        compare_rounds(options.rounds)
    if options.part != "rounds":
        compare_relator(options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
