"""Does a device compute what the CPU computes? ``python -m simulations.device_check``.

Runs every method whose task fits the data set for a few rounds on the given device and
on the CPU, without dropout (masks are drawn on the device, so they differ). Compares
the models, 32 wide. Also times a round on either. Exits with 1 if a method disagrees.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from datasets import find_dataset
from fedgraph_flwr.command import command
from fedgraph_flwr.device import choose_device
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.rules import Value

from .inline import run_inline

console = Console(highlight=False)
# What runs need that data sets' own settings do not say, by kind of labels.
_FOR_LABELS: Mapping[str, Mapping[str, Value]] = {
    "classes": {},
    "binary": {"features": "atoms-no-degree", "privacy.edge-epsilon": 10.0},
}


def largest_difference(one: Path, other: Path) -> float:
    """Largest absolute difference between what two runs trained.

    Compares the server's models and, for methods that have none, the clients' stored
    tensors (the optimiser's moments aside).
    """
    names = sorted(p.relative_to(one) for p in one.rglob("*.safetensors"))
    if names != sorted(p.relative_to(other) for p in other.rglob("*.safetensors")):
        return float("inf")
    largest = 0.0
    for name in names:
        left, right = load_file(one / name), load_file(other / name)
        for key, array in left.items():
            if not key.startswith("adam/"):
                gap = np.abs(array.astype(np.float64) - right[key])
                largest = max(largest, float(gap.max(initial=0.0)))
    return largest


def train(scratch: Path, overrides: Mapping[str, Value]) -> tuple[Path, float]:
    """Run once; return a folder with all tensors, and the seconds of a round."""
    state = scratch / "state"
    folder = run_inline(
        {**overrides, "results-dir": str(scratch / "results"), "state-dir": str(state)}
    )
    summary = load_summary(folder)
    tensors = scratch / "tensors"
    (folder / "models").rename(tensors)
    (state / folder.name).rename(tensors / "clients")
    return tensors, summary["client_compute_s"] / summary["rounds"]


def check(method: str, device: str, *, dataset: str, rounds: int) -> tuple[float, ...]:
    """Largest difference to the CPU, and seconds per round on CPU and device."""
    overrides: dict[str, Value] = {
        "method": method,
        "dataset": dataset,
        "num-server-rounds": rounds,
        "local-epochs": 2,
        "hidden-dim": 32,
        "dropout": 0.0,
        "embedding.rounds": "",
        "embedding.probe": False,
        **_FOR_LABELS[find_dataset(dataset).kind],
    }
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        cpu, cpu_s = train(scratch / "cpu", {**overrides, "device": "cpu"})
        there, there_s = train(scratch / "device", {**overrides, "device": device})
        return largest_difference(cpu, there), cpu_s, there_s


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m simulations.device_check")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dataset", default="synthetic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    arguments = parser.parse_args(argv)
    logging.disable(logging.INFO)
    device = str(choose_device(arguments.device))
    table = Table(
        title=f"{device} against cpu, {arguments.dataset}, {arguments.rounds} rounds"
    )
    for column in (
        "method",
        "largest difference",
        "cpu s/round",
        f"{device} s/round",
    ):
        table.add_column(column)
    worst = 0.0
    kind = find_dataset(arguments.dataset).kind
    fitting = [m for m, row in METHODS.items() if row.on(kind).task.fits(kind)]
    if others := sorted(set(METHODS) - set(fitting)):
        console.print(f"need another --dataset, e.g. BACE: {', '.join(others)}")
    for method in fitting:
        gap, cpu_s, there_s = check(
            method, device, dataset=arguments.dataset, rounds=arguments.rounds
        )
        worst = max(worst, gap)
        table.add_row(method, f"{gap:.1e}", f"{cpu_s:.3f}", f"{there_s:.3f}")
    console.print(table)
    agrees = worst <= arguments.tolerance
    console.print("agrees" if agrees else f"DIFFERS by more than {arguments.tolerance}")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
